"""Length buckets and the order of an epoch's batches: arithmetic over lengths, without data."""

from __future__ import annotations

from typing import NamedTuple, Sequence

import numpy as np

LENGTH_MULTIPLE = 8  # GluonNLP pads to this too; matrix units like it


def padded_to(length: int, max_length: int) -> int:
    """`length` rounded up to a multiple of 8, but not above `max_length`."""
    return min(-(-length // LENGTH_MULTIPLE) * LENGTH_MULTIPLE, max_length)


def bucket_bounds(lengths: np.ndarray, num_buckets: int, max_length: int) -> tuple[int, ...]:
    """At most `num_buckets` rising padded lengths that cover all `lengths` with the least padding.

    Exact, by dynamic programming over the possible bounds, of which there are at most max_length / 8 + 1.
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    bounds = np.unique(np.minimum(-(-lengths // LENGTH_MULTIPLE) * LENGTH_MULTIPLE, max_length))
    below = np.searchsorted(np.sort(lengths), bounds, side="right")  # samples that fit under each bound
    count = len(bounds)
    # cost[j]: least positions for the samples under bound j with the buckets so far; the last bucket ends at
    # j.
    cost = bounds * below
    previous = []
    for _ in range(min(num_buckets, count) - 1):
        split = cost[:, None] + bounds[None, :] * (below[None, :] - below[:, None])
        split[np.tril_indices(count)] = np.iinfo(np.int64).max
        best = split.min(axis=0, initial=np.iinfo(np.int64).max)
        choice = split.argmin(axis=0)
        previous.append(np.where(best < cost, choice, -1))
        cost = np.minimum(best, cost)
    chosen, at = [], count - 1
    for choice in reversed(previous):
        if choice[at] >= 0:
            chosen.append(int(bounds[at]))
            at = int(choice[at])
    return tuple(sorted([*chosen, int(bounds[at])]))


def rows_per_batch(bound: int, batch_size: int, use_avg_len: bool) -> int:
    """Sequences in a rank's batch of sequences padded to `bound`.

    `batch_size` counts sequences, or with `use_avg_len` tokens: then as many rows as keep the padded tokens
    within batch_size, so that memory is bounded, and one at least. (GluonNLP divides by the bucket's mean
    length plus one standard deviation, which can exceed it.)
    """
    return max(1, batch_size // bound) if use_avg_len else batch_size


class EpochOrder(NamedTuple):
    """The global batches of an epoch: batch m has samples[starts[m]:starts[m+1]], padded to padded[m]."""

    samples: np.ndarray  # int64
    starts: np.ndarray  # int64 (M + 1,)
    padded: np.ndarray  # int64 (M,)

    def __len__(self) -> int:
        return len(self.padded)

    def share(self, batch: int, rank: int, world_size: int) -> np.ndarray:
        """The samples of `rank` in a global batch, int64; never empty, ranks differ by one at most."""
        start, size = int(self.starts[batch]), int(self.starts[batch + 1] - self.starts[batch])
        low, high = size * rank // world_size, size * (rank + 1) // world_size
        return self.samples[start + low : start + high]


def epoch_order(
    lengths: np.ndarray,
    bounds: Sequence[int],
    rows: Sequence[int],
    world_size: int,
    rng: np.random.Generator | None,
) -> EpochOrder:
    """Deal all samples into global batches of world_size * rows[b] samples of one bucket b.

    What does not fill a global batch moves up into the next longer bucket; what is left at the end makes a
    last, smaller one. No rank may be empty: with fewer samples left than ranks, the batch before gives some
    of its own, and if it cannot (ranks have one row each) some are repeated.
    `rng` shuffles samples and batches; None keeps them in order.
    """
    total = len(lengths)
    order = np.arange(total) if rng is None else rng.permutation(total)
    bucket = np.searchsorted(np.asarray(bounds), lengths[order])
    pieces, sizes, padded = [], [], []
    left = np.empty(0, dtype=np.int64)
    for index, bound in enumerate(bounds):
        pool = np.concatenate([left, order[bucket == index]])
        size = world_size * rows[index]
        full = len(pool) // size
        pieces.append(pool[: full * size])
        sizes += [size] * full
        padded += [bound] * full
        left = pool[full * size :]
    if len(left):
        lacking = max(world_size - len(left), 0)
        if lacking and sizes and sizes[-1] - lacking >= world_size:
            sizes[-1] -= lacking  # its last samples stand just before those left over
        elif lacking:
            left = np.resize(left, world_size)
            lacking = 0
        pieces.append(left)
        sizes.append(len(left) + lacking)
        padded.append(bounds[-1])
    samples = np.concatenate(pieces)
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    result = EpochOrder(samples, starts, np.array(padded, dtype=np.int64))
    return result if rng is None else _shuffled(result, rng)


def _shuffled(order: EpochOrder, rng: np.random.Generator) -> EpochOrder:
    batches = rng.permutation(len(order))
    sizes = np.diff(order.starts)[batches]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    # The place of each sample: its batch's old start plus its place in the batch.
    within = np.arange(starts[-1]) - np.repeat(starts[:-1], sizes)
    samples = order.samples[np.repeat(order.starts[batches], sizes) + within]
    return EpochOrder(samples, starts, order.padded[batches])
