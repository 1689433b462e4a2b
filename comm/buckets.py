"""Arrays that travel together: a message for each of BERT's 200 gradients takes longer than what most of them
hold."""

from __future__ import annotations

from typing import NamedTuple, Sequence

BUCKET_BYTES = 1 << 20


class Bucket(NamedTuple):
    """Arrays that travel together. `indices`: their positions in the caller's list, ascending; `dtype` and
    `nbytes` of all of them together."""

    indices: tuple[int, ...]
    dtype: str
    nbytes: int


def make_buckets(arrays: Sequence[tuple[str, int]], limit: int) -> list[Bucket]:
    """Buckets in the order in which they become ready.

    Args:
        arrays: (dtype, bytes) of each array, in the order of the forward pass. The backward pass makes their
            gradients ready from the last to the first, so the buckets are filled, and listed, from the end.
        limit: bytes. An array of at least so many is a bucket by itself; smaller neighbours of one dtype
            share a bucket as long as they stay within it.
    """
    buckets: list[Bucket] = []
    for index in range(len(arrays) - 1, -1, -1):
        dtype, nbytes = arrays[index]
        last = buckets[-1] if buckets else None
        if last and last.dtype == dtype and last.nbytes + nbytes <= limit:
            buckets[-1] = Bucket((index, *last.indices), dtype, last.nbytes + nbytes)
        else:
            buckets.append(Bucket((index,), dtype, nbytes))
    return buckets
