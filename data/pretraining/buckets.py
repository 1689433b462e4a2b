"""Length buckets and the order of an epoch's blocks: arithmetic over lengths, without data.

Packing several pairs into a row would bring little: packed as tightly as first-fit-decreasing can, WikiText-2
keeps 1.7% of padding at 128 and 0.9% at 512 (short_seq_prob 0.1), ten buckets leave 0.8% and 2.4% (0.5% and
1.4% where the data is large against the batch). That is not worth a mask between the pairs of a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

import numpy as np

from data.pretraining.randomness import draw

LENGTH_MULTIPLE = 8  # GluonNLP pads to this too; matrix units like it
_CHUNK = 1 << 20  # samples worked on at a time: bounds temporaries, and how long a thread holds the GIL


def padded_to(length: int, max_length: int) -> int:
    """`length` rounded up to a multiple of 8, but not above `max_length`."""
    return min(-(-length // LENGTH_MULTIPLE) * LENGTH_MULTIPLE, max_length)


def length_counts(lengths: np.ndarray) -> np.ndarray:
    """Numbers of `lengths` (whole numbers >= 0) that are 0, 1, 2, ... long, int64 up to the longest."""
    counts = np.zeros(int(lengths.max(initial=0)) + 1, dtype=np.int64)
    for start in range(0, len(lengths), _CHUNK):
        counts += np.bincount(lengths[start : start + _CHUNK], minlength=len(counts))
    return counts


def bucket_bounds(lengths: np.ndarray, num_buckets: int, max_length: int) -> tuple[int, ...]:
    """At most `num_buckets` rising padded lengths that cover all `lengths` with the least padding.

    Exact, by dynamic programming over the possible bounds, of which there are at most max_length / 8 + 1.
    """
    counts = length_counts(lengths)
    occurring = np.flatnonzero(counts)
    bounds = np.unique(np.minimum(-(-occurring // LENGTH_MULTIPLE) * LENGTH_MULTIPLE, max_length))
    below = np.cumsum(counts)[np.minimum(bounds, len(counts) - 1)]  # samples that fit under each bound
    count = len(bounds)
    # cost[j]: least positions for the samples under bound j with the buckets so far; the last bucket ends at
    # j.
    cost = bounds * below
    previous = []
    for _ in range(min(num_buckets, count) - 1):
        split = cost[:, None] + bounds[None, :] * (below[None, :] - below[:, None])
        split[np.tril_indices(count)] = np.iinfo(np.int64).max
        previous.append(split.argmin(axis=0))
        cost = np.minimum(split.min(axis=0), cost)
    # One bucket more is always better, since some sample ends at each bound.
    chosen = [count - 1]
    for choice in reversed(previous):
        chosen.append(choice[chosen[-1]])
    return tuple(bounds[chosen[::-1]].tolist())


def rows_per_batch(bound: int, batch_size: int, use_avg_len: bool) -> int:
    """Sequences in a rank's batch of sequences padded to `bound`.

    `batch_size` counts sequences, or with `use_avg_len` tokens: then as many rows as keep the padded tokens
    within batch_size, so that memory is bounded, and one at least. (GluonNLP divides by the bucket's mean
    length plus one standard deviation, which can exceed it.)
    """
    return max(1, batch_size // bound) if use_avg_len else batch_size


@dataclass(frozen=True, eq=False)
class EpochOrder:
    """The blocks of an epoch in the order in which they are dealt to the ranks, one block a batch.

    Memory is 4 bytes a sample and a block (8 where there are 2**32 samples or more). Block b of bucket k,
    counted before the blocks are shuffled, has the samples from first_sample[k] + rows[k] * (b -
    first_block[k]) on.
    """

    samples: np.ndarray  # (N,) every sample once, blocks side by side
    blocks: np.ndarray  # (M,) shuffled: the block that comes first, second, ...
    first_block: np.ndarray  # (K,) int64, number of the first block of each bucket
    first_sample: np.ndarray  # (K,) int64, where in `samples` it starts
    rows: np.ndarray  # (K,) int64, samples in a block
    padded: np.ndarray  # (K,) int64, length that the block's sequences are padded to

    def __len__(self) -> int:
        return len(self.blocks)

    @property
    def nbytes(self) -> int:
        """Memory held, in bytes."""
        return self.samples.nbytes + self.blocks.nbytes

    def block(self, place: int) -> tuple[np.ndarray, int]:
        """The samples, int64, of the block at a place from 0 to len - 1, and the length to pad them to."""
        block = int(self.blocks[place])
        bucket = int(np.searchsorted(self.first_block, block, side="right")) - 1
        rows = int(self.rows[bucket])
        start = int(self.first_sample[bucket]) + rows * (block - int(self.first_block[bucket]))
        return self.samples[start : start + rows].astype(np.int64), int(self.padded[bucket])

    def shapes(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows and padded length of every block in order, int64 (M,) each: they tell the padding."""
        bucket = np.searchsorted(self.first_block, self.blocks, side="right") - 1
        return self.rows[bucket], self.padded[bucket]


def epoch_order(
    lengths: np.ndarray, bounds: Sequence[int], rows: Sequence[int], key: int | None
) -> EpochOrder:
    """Shuffle all samples, cut each bucket b into blocks of rows[b] samples, and shuffle the blocks.

    What does not fill a block moves up into the next longer bucket; what is left at the end makes one last,
    smaller block. `lengths` (whole numbers, (N,), N >= 1) must not exceed bounds[-1]. `key` is 64 random bits
    (see data.pretraining.randomness); None keeps samples of a bucket, and blocks, in order.
    """
    # Sorting words of (bucket, random bits, sample) puts samples into buckets and shuffles them in one pass,
    # in one array, and without the GIL, which NumPy's own shuffle holds.
    total = len(lengths)
    index_bits = max(total - 1, 1).bit_length()
    bucket_bits = max(len(bounds) - 1, 1).bit_length()
    table = np.searchsorted(np.asarray(bounds), np.arange(bounds[-1] + 1)).astype(np.uint64)
    words = np.empty(total, dtype=np.uint64)
    per_bucket = np.zeros(len(bounds), dtype=np.int64)
    for start in range(0, total, _CHUNK):
        place = np.arange(start, min(start + _CHUNK, total), dtype=np.uint64)
        bucket = table[lengths[start : start + _CHUNK]]
        per_bucket += np.bincount(bucket.astype(np.int64), minlength=len(bounds))
        chunk = words[start : start + _CHUNK]
        chunk[:] = place | (bucket << np.uint64(64 - bucket_bits))
        if key is not None:
            random = draw(np.array([key], dtype=np.uint64), place)
            chunk |= (random >> np.uint64(bucket_bits + index_bits)) << np.uint64(index_bits)
    words.sort()
    words &= np.uint64((1 << index_bits) - 1)
    samples = _narrowed(words)

    # Buckets lie side by side, shortest first, so what is left over of one stands just before the next.
    table_rows: list[tuple[int, int, int, int]] = []
    start = blocks = 0
    for bound, size, end in zip(bounds, rows, np.cumsum(per_bucket).tolist()):
        full = (end - start) // size
        if full:
            table_rows.append((blocks, start, size, bound))
            blocks, start = blocks + full, start + full * size
    if start < total:
        table_rows.append((blocks, start, total - start, bounds[-1]))
        blocks += 1
    numbers = np.arange(blocks, dtype=_index_dtype(blocks))
    if key is not None:
        # The words of samples are drawn from place 0 on; these come from the other end of the sequence.
        words = draw(np.array([key], dtype=np.uint64), ~numbers.astype(np.uint64))
        numbers = np.argsort(words, kind="stable").astype(numbers.dtype)
    first_block, first_sample, block_rows, padded = np.array(table_rows, dtype=np.int64).T
    return EpochOrder(samples, numbers, first_block, first_sample, block_rows, padded)


def _narrowed(words: np.ndarray) -> np.ndarray:
    """The numbers 0 to len - 1 in some order as the type that holds them, in the memory of `words` itself."""
    if _index_dtype(len(words)).itemsize == words.itemsize:
        return words.view(_index_dtype(len(words)))
    narrow, count = words.view(np.uint32), len(words)
    for start in range(0, count, _CHUNK):  # what is written over has been read
        narrow[start : min(start + _CHUNK, count)] = words[start : start + _CHUNK]
    del narrow
    words.resize(-(-count // 2), refcheck=False)  # gives the second half back
    return words.view(np.uint32)[:count]


def _index_dtype(count: int) -> np.dtype:
    return np.dtype(np.uint32 if count <= 1 << 32 else np.int64)
