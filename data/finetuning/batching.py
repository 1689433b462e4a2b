"""Orders of examples by length, for one rank: arithmetic over lengths, without data.

Batches of similar lengths need little padding, and padded lengths are few: a network that is compiled by the
shapes of its inputs (MXNet's hybridized ones) is compiled for few of them, and each keeps its memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Callable, Generic, Iterator, NamedTuple, TypeVar

import numpy as np

from data.pretraining.buckets import bucket_bounds, epoch_order
from data.pretraining.randomness import epoch_key, permuted

_ORDER_PURPOSE, _STEPS_PURPOSE = 11, 12
_FEWEST_GROUPS = 4  # of steps that share examples, in an epoch


@dataclass(frozen=True)
class Grouping:
    """Settings of a TrainingOrder that seldom change.

    Attributes:
        accumulate: micro-batches of a rank in a step.
        max_length: no padded length is above it; a multiple of 8, or the model's number of positions.
        num_buckets: most padded lengths that occur; they are multiples of 8 or `max_length`.
        steps: so many steps share their examples by length, but a quarter of an epoch at most; 1 leaves
            every step as it was drawn.
    """

    accumulate: int = 1
    max_length: int = 512
    num_buckets: int = 10
    steps: int = 32


class Rows(NamedTuple):
    """Examples of one micro-batch of a rank and the length that they are padded to."""

    examples: np.ndarray  # int64 (B,)
    padded: int


class TrainingOrder:
    """Examples of each training step, those of one rank, from any step on.

    Epochs are shuffled anew with `seed` and follow each other without a gap: step s takes the next
    `batch_size` examples after those of step s - 1. So every step has a full batch, also the one in which
    an epoch ends, and every example comes exactly once an epoch. Only a run's last step can take some
    examples of an epoch that it does not finish (see `num_steps`).

    A step's set of examples is the same for any number of ranks and micro-batches, so that a run can go on
    with another number. Within an epoch, `grouping.steps` steps at a time share their examples by padded
    length, at random among those of one padded length, and come in a random order (as transformers'
    group_by_length and GluonNLP's FixedBucketSampler do in their ways).
    A step's examples are sorted and cut into micro-batches, longest first; each of these is dealt to the
    ranks there and back, so that all have the same numbers of rows and about of tokens, and the same padded
    length. Where ranks cannot have equally many rows, numbers differ by one: a gradient that is averaged over
    ranks is that of the step's batch if each divides its sums by `batch_size` / `world_size`.

    It holds the lengths; a step is computed when it is asked for, and may be by several threads.
    """

    def __init__(
        self,
        lengths: np.ndarray,
        batch_size: int,
        seed: int,
        rank: int,
        world_size: int,
        grouping: Grouping = Grouping(),
    ) -> None:
        """`lengths`: tokens of each example, whole numbers (N,), N >= 1. `batch_size`: examples of a step,
        over all ranks and micro-batches.

        Raises:
            ValueError: no examples, one longer than `max_length`, or fewer in a step than one for each
                micro-batch of each rank.
        """
        lengths = _checked(lengths, grouping.max_length)
        if batch_size < world_size * grouping.accumulate:
            raise ValueError(
                f"a step of {batch_size} examples cannot be divided over {world_size} ranks with"
                f" {grouping.accumulate} micro-batches each"
            )
        self.lengths = lengths
        self.batch_size = batch_size
        self.accumulate = grouping.accumulate
        self.bounds = bucket_bounds(lengths, grouping.num_buckets, grouping.max_length)
        # More than a quarter of an epoch, and the longest examples would meet in every epoch.
        self._group = max(1, min(grouping.steps, len(lengths) // batch_size // _FEWEST_GROUPS))
        self._bucket = np.searchsorted(self.bounds, lengths).astype(np.int8)
        self._seed, self._rank, self._world_size = seed, rank, world_size

    def num_steps(self, epochs: float) -> int:
        """Steps after which every example has come `epochs` times: the last one is filled up from the next
        epoch. (GluonNLP and Google round down, and leave out up to a batch.)"""
        # A product such as 0.1 * 30 is a little above the whole number that is meant.
        return max(1, -int(-(epochs * len(self.lengths) / self.batch_size - 1e-9) // 1))

    def micro_batches(self, step: int) -> list[Rows]:
        """This rank's micro-batches of a step, which count from 0: `accumulate` of them, longest first.

        Those of one place have the same padded length on all ranks.
        """
        if step < 0:
            raise ValueError(f"step {step} is negative")
        examples, parts = self._drawn(step), []
        # Stable: examples of one length stay in the order in which they were drawn.
        by_length = examples[np.argsort(-self.lengths[examples], kind="stable")]
        for part in np.array_split(by_length, self.accumulate):
            padded = self.bounds[int(np.searchsorted(self.bounds, self.lengths[part[0]]))]
            parts.append(Rows(part[dealt(len(part), self._rank, self._world_size)], padded))
        return parts

    def _drawn(self, step: int) -> np.ndarray:
        """The examples of a step: its place among the steps that share theirs by length."""
        count, size = len(self.lengths), self.batch_size
        epoch = step * size // count
        first = -(-epoch * count // size)  # the epoch's first step without one of the epoch before
        last = (epoch + 1) * count // size  # ... and the first that is not its own alone
        if self._group == 1 or not first <= step < last:
            return self._stream(step * size, (step + 1) * size)
        begin = step - (step - first) % self._group
        end = min(begin + self._group, last)
        shared = self._stream(begin * size, end * size)
        shared = shared[np.argsort(self._bucket[shared], kind="stable")]
        key = epoch_key(self._seed, begin, _STEPS_PURPOSE)
        place = int(permuted(np.array([step - begin]), end - begin, key)[0])
        return shared[place * size : (place + 1) * size]

    def _stream(self, start: int, stop: int) -> np.ndarray:
        """The examples at the places from `start` to `stop` - 1 of all epochs one after the other."""
        count = len(self.lengths)
        places = np.arange(start, stop, dtype=np.int64)
        parts = []
        for epoch in range(start // count, (stop - 1) // count + 1):
            own = places[(places >= epoch * count) & (places < (epoch + 1) * count)] - epoch * count
            parts.append(permuted(own, count, epoch_key(self._seed, epoch, _ORDER_PURPOSE)))
        return np.concatenate(parts)


class EvaluationOrder:
    """Examples of one rank for one pass over all of them, each on exactly one rank, batched by length.

    Examples are sorted by length, longest first, and dealt to the ranks there and back: numbers of rows
    differ by one at most, and tokens hardly. With fewer examples than ranks some ranks have no batch.
    """

    def __init__(
        self,
        lengths: np.ndarray,
        batch_size: int,
        rank: int,
        world_size: int,
        grouping: Grouping = Grouping(),
    ) -> None:
        """`lengths`: tokens of each example, whole numbers (N,), N >= 1. `batch_size`: most examples of a
        batch. Of `grouping` the lengths count.

        Raises:
            ValueError: no examples, or one longer than `max_length`.
        """
        lengths = _checked(lengths, grouping.max_length)
        self.bounds = bucket_bounds(lengths, grouping.num_buckets, grouping.max_length)
        by_length = np.argsort(-lengths, kind="stable")
        mine = by_length[dealt(len(lengths), rank, world_size)].astype(np.int64)
        self._batches: list[Rows] = []
        if len(mine):
            order = epoch_order(lengths[mine], self.bounds, [batch_size] * len(self.bounds), None)
            blocks = (order.block(place) for place in reversed(range(len(order))))
            self._batches = [Rows(mine[samples], padded) for samples, padded in blocks]

    def batches(self) -> list[Rows]:
        """This rank's batches, longest first: memory that does not suffice shows at once."""
        return self._batches


def dealt(count: int, rank: int, world_size: int) -> np.ndarray:
    """Places, int64, that a rank has of `count` things dealt 0, 1, ..., W - 1, W - 1, ..., 1, 0, 0, 1, ..."""
    there = np.arange(rank, count, 2 * world_size, dtype=np.int64)
    back = np.arange(2 * world_size - 1 - rank, count, 2 * world_size, dtype=np.int64)
    return np.sort(np.concatenate((there, back)))


def _checked(lengths: np.ndarray, max_length: int) -> np.ndarray:
    lengths = np.asarray(lengths, dtype=np.int64)
    if lengths.ndim != 1 or not len(lengths):
        raise ValueError("there are no examples")
    if lengths.max() > max_length or lengths.min() < 1:
        raise ValueError(f"lengths from {lengths.min()} to {lengths.max()}: 1 to {max_length} are possible")
    return lengths


Batch = TypeVar("Batch")


class OrderedBatches(Generic[Batch]):
    """Micro-batches without end, from any position on.

    `collate(examples, padded_length)` makes a batch of examples, int64 (B,); threads may call it. The
    position is a number of whole steps: it means the same for any number of ranks and of micro-batches, and
    stays where it is within a step.
    """

    def __init__(self, order: TrainingOrder, collate: Callable[[np.ndarray, int], Batch]) -> None:
        self._order, self._collate = order, collate

    @property
    def micro_batches(self) -> int:
        """Batches of this rank in a step."""
        return self._order.accumulate

    def tasks(self, position: int = 0) -> Iterator[tuple[int, Callable[[], Batch]]]:
        """As those of data.pretraining.batches."""
        step = position
        while True:
            rows = self._order.micro_batches(step)
            for number, each in enumerate(rows, start=1):
                yield step + (number == len(rows)), partial(self._collate, each.examples, each.padded)
            step += 1
