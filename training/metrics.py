"""Sums over the steps of a log interval or an evaluation, and the figures they give over all ranks."""

from __future__ import annotations

import math
import time
from typing import Any, NamedTuple, Sequence

import mxnet as mx
import numpy as np

from comm.base import Communicator
from tasks.base import Task
from training.exchange import summed
from training.spread import MOMENTS, SPREAD, standard_error

COUNTS = ("sequences", "tokens", "padded_tokens", "waited_s", "flops")


class Gathered(NamedTuple):
    """Totals over all ranks by name. `losses`: the task's sums and denominators, of finite steps alone;
    `counts`: of all steps; `spread`: for the standard error of the task's judged loss."""

    losses: dict[str, float]
    counts: dict[str, float]
    spread: dict[str, float]


class Totals:
    """Losses and hits stay on the device until `over_ranks`; counts come from the batches on the host.

    What is added at once, a step of one rank or a batch of an evaluation, is one sample for the standard
    error; what that needs is summed in float64, since samples differ by little.
    """

    def __init__(self, task: Task, device: mx.Context):
        self._task = task
        self._device = device
        self._judged = task.sums.index(task.judged[0])
        self._counted = task.denominators.index(task.judged[1])
        self.reset()

    def reset(self) -> None:
        """Begins anew."""
        shape = (len(self._task.sums),)
        self._sums = mx.nd.zeros(shape, ctx=self._device)
        self._moments = [mx.nd.zeros(shape, ctx=self._device, dtype="float64") for _ in MOMENTS]
        self._counts = np.zeros(len(COUNTS))
        self._denominators = np.zeros(len(self._task.denominators))
        self._spread = np.zeros(len(SPREAD))

    def add(
        self,
        batches: Sequence[Any],
        sums: mx.nd.NDArray,
        finite: bool = True,
        waited: float = 0.0,
        flops: float = 0.0,
    ) -> None:
        """Adds a step's batches, for which it waited `waited` seconds, and their `flops`; where the step
        was not finite, its tokens count but its sums do not."""
        sequences = sum(len(batch.input_ids) for batch in batches)
        tokens = sum(int(batch.valid_lengths.sum()) for batch in batches)
        padded = sum(batch.input_ids.size for batch in batches)
        self._counts += (sequences, tokens, padded, waited, flops)
        if finite:
            denominators = self._task.count(batches)
            count = denominators[self._counted]
            self._sums += sums
            wide = mx.nd.cast(sums, dtype="float64")
            for moment, of_sample in zip(self._moments, (wide, wide * wide, wide * count)):
                moment += of_sample
            self._denominators += denominators
            self._spread += (1, count * count)

    def add_wait(self, seconds: float) -> None:
        """Adds the seconds that a step waited for its batches, on a rank whose batches count elsewhere."""
        self._counts[COUNTS.index("waited_s")] += seconds

    def over_ranks(self, communicator: Communicator) -> Gathered:
        """Totals over all ranks; every rank calls it. Waits for the device."""
        parts = [
            self._sums.asnumpy().astype("float64"),
            self._denominators,
            self._counts,
            self._spread,
            np.array([moment.asnumpy()[self._judged] for moment in self._moments]),
        ]
        totals = iter(summed(np.concatenate(parts), communicator).tolist())
        return Gathered(
            {name: next(totals) for name in (*self._task.sums, *self._task.denominators)},
            {name: next(totals) for name in COUNTS},
            {name: next(totals) for name in (*SPREAD, *MOMENTS)},
        )


def figures(task: Task, gathered: Gathered) -> dict[str, float | None]:
    """The task's figures, and the standard error of its judged loss behind "_se"."""
    error = standard_error(gathered.losses[task.judged[1]], gathered.spread)
    return {**task.figures(gathered.losses), f"{task.judged[0]}_se": error}


def finite_or_none(value: float) -> float | None:
    """JSON has no NaN: a figure that does not exist is null."""
    return value if math.isfinite(value) else None


class Stopwatch:
    """Time spent training: what passes inside a `with` block (checkpoints, evaluation) does not count.

    Args:
        at_start: seconds that earlier runs have spent, for `total`.
    """

    def __init__(self, at_start: float = 0.0) -> None:
        self.at_start = at_start
        self._laps = at_start
        self._pause_begun: float | None = None
        self.begin()

    def begin(self) -> None:
        """Begins the first lap; what has passed since the stopwatch was made does not count."""
        self._begun = time.monotonic()
        self._paused = 0.0

    def __enter__(self) -> Stopwatch:
        self._pause_begun = time.monotonic()
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._pause_begun is not None, "leaves what it has entered"
        self._paused += time.monotonic() - self._pause_begun
        self._pause_begun = None

    @property
    def total(self) -> float:
        """Seconds of training, with those of earlier runs."""
        return self._laps + self._since_lap()

    def lap(self) -> float:
        """Seconds of training since the last lap."""
        seconds = max(self._since_lap(), 1e-9)
        self._laps += seconds
        self.begin()
        return seconds

    def at_least(self, seconds: float) -> None:
        """Sets `total` forward, where it is less."""
        self._laps += max(0.0, seconds - self.total)

    def _since_lap(self) -> float:
        now = time.monotonic() if self._pause_begun is None else self._pause_begun
        return now - self._begun - self._paused
