"""Micro-batches of one rank in a training order, step after step, made when they are due."""

from __future__ import annotations

from functools import partial
from typing import Callable, Generic, Iterator, TypeVar

import numpy as np

from data.finetuning.batching import TrainingOrder

Batch = TypeVar("Batch")


class OrderedBatches(Generic[Batch]):
    """Micro-batches without end, from the present position on.

    `collate(examples, padded_length)` makes a batch of examples, int64 (B,); threads may call it. The
    position is a number of whole steps: it means the same for any number of ranks and of micro-batches, and
    stays where it is within a step.
    """

    def __init__(self, order: TrainingOrder, collate: Callable[[np.ndarray, int], Batch]) -> None:
        self._order, self._collate = order, collate
        self._position = 0

    @property
    def micro_batches(self) -> int:
        """Batches of this rank in a step."""
        return self._order.accumulate

    @property
    def position(self) -> int:
        """Steps whose micro-batches have all been consumed."""
        return self._position

    def seek(self, position: int) -> None:
        """Continues with the first micro-batch of step `position`, from 0 on."""
        if position < 0:
            raise ValueError(f"position {position} is negative")
        self._position = position

    def __iter__(self) -> Iterator[Batch]:
        for position, make in self.tasks():
            batch = make()
            self._position = position
            yield batch

    def tasks(self) -> Iterator[tuple[int, Callable[[], Batch]]]:
        """Tasks from the present position on, without end: the position after a micro-batch, and its
        maker."""
        step = self._position
        while True:
            rows = self._order.micro_batches(step)
            for number, each in enumerate(rows, start=1):
                yield step + (number == len(rows)), partial(self._collate, each.examples, each.padded)
            step += 1
