"""Micro-batches of this rank for the loop: made ahead from the run's files, or one of random tokens."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from typing import Any, Callable, Iterator, NamedTuple, Protocol

import numpy as np

from data.pretraining.prefetch import Prefetcher
from data.store.tokens import loss_without_context
from tasks.base import Collector, Floors

BATCHES_AHEAD = 8  # a few steps' worth: enough to hide the making of batches, little memory


def floors_of(training: np.ndarray | None, held_out: np.ndarray | None) -> Floors:
    """Losses without context on two texts, from their `token_counts`."""
    return Floors(
        None if training is None else loss_without_context(training),
        None if held_out is None else loss_without_context(held_out),
        None if training is None or held_out is None else loss_without_context(held_out, training),
    )


class Batches(Protocol):
    """Batches without end, from any position on; `micro_batches` of this rank in a step."""

    @property
    def micro_batches(self) -> int: ...

    def tasks(self, position: int) -> Iterator[tuple[int, Callable[[], Any]]]:
        """Tasks from a position on: the position after each batch, and its maker."""


class Repeated(NamedTuple):
    """One batch again and again: for speed and memory, without any data."""

    batch: Any
    micro_batches: int

    def tasks(self, position: int) -> Iterator[tuple[int, Callable[[], Any]]]:
        """As `Batches`."""
        return ((after, lambda: self.batch) for after in itertools.count(position + 1))


class Feed:
    """This rank's micro-batches, for ever, made ahead in background threads.

    Attributes:
        token_counts: of the training text (data.store.tokens); on rank 0, where it is known.
        content: fingerprint of all that is read, the same on every rank; empty where that is known before.
        micro_batches: of this rank in a step.
        position: after the step whose batches were taken last, for a checkpoint.
        waited: seconds that __next__ has taken so far: the loop stood still for want of data.
    """

    def __init__(
        self, batches: Batches, num_workers: int = 0, counts: np.ndarray | None = None, content: str = ""
    ):
        self._batches = batches
        self._num_workers = num_workers
        self.token_counts = counts
        self.content = content
        self.micro_batches = batches.micro_batches
        self.position = 0
        self.waited = 0.0
        self._ahead: Prefetcher[Any] | None = None

    def seek(self, position: int) -> None:
        """Goes on from a `position`; called once, before the first batch."""
        self.position = position
        self._ahead = Prefetcher(self._batches.tasks(position), BATCHES_AHEAD, self._num_workers)

    def __next__(self) -> Any:
        assert self._ahead is not None, "seek comes first"
        begun = time.monotonic()
        self.position, batch = next(self._ahead)
        self.waited += time.monotonic() - begun
        return batch

    def close(self) -> None:
        """Ends the background work."""
        if self._ahead is not None:
            self._ahead.close()


@dataclass(frozen=True, eq=False)
class EvaluationFeed:
    """Each call starts one pass over this rank's part of what is evaluated on. Every pass has the same
    batches, whatever the seed of the run.

    Attributes:
        begin: begins a pass.
        collector: makes a new collector for a pass; None where the figures say everything.
        controls: begins a pass over the batches' controls, one for each (data.pretraining.batches); None
            where the task has none.
        token_counts, content: as a `Feed` has them.
    """

    begin: Callable[[], Iterator[Any]]
    collector: Callable[[], Collector] | None = None
    controls: Callable[[], Iterator[Any]] | None = None
    token_counts: np.ndarray | None = None
    content: str = ""

    def __call__(self) -> Iterator[Any]:
        """A pass over the batches, each followed by its control if there are controls."""
        if self.controls is None:
            return self.begin()
        return itertools.chain.from_iterable(zip(self.begin(), self.controls()))
