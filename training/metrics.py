"""Sums over the steps of a log interval or an evaluation, the figures that they give over all ranks, and how
much of an evaluation's loss is due to the sequences' context."""

from __future__ import annotations

import math
import time
from typing import Any, Iterable, Iterator, NamedTuple, Sequence

import mxnet as mx
import numpy as np

from base.errors import NotFiniteError
from comm.base import Communicator
from tasks.base import Collector, Task
from training.exchange import summed
from training.spread import MOMENTS, SPREAD, mean_and_error, moments_of, standard_error

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
        self, batches: Sequence[Any], sums: mx.nd.NDArray, finite: bool = True, flops: float = 0.0
    ) -> None:
        """Adds a step's batches, and their `flops`; where the step was not finite, its tokens count but its
        sums do not."""
        sequences = sum(len(batch.input_ids) for batch in batches)
        tokens = sum(int(batch.valid_lengths.sum()) for batch in batches)
        padded = sum(batch.input_ids.size for batch in batches)
        self._counts += (sequences, tokens, padded, 0.0, flops)
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
        """Adds the seconds that a step waited for its batches."""
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
        self.begin()

    def begin(self) -> None:
        """Begins the first lap; what has passed since the stopwatch was made does not count."""
        self._counted = self._lap_begun = self.at_start  # of `total`: until `_since`, and at the last lap
        self._since: float | None = time.monotonic()  # None in a pause

    def __enter__(self) -> Stopwatch:
        self._counted, self._since = self.total, None
        return self

    def __exit__(self, *exception: object) -> None:
        self._since = time.monotonic()

    @property
    def total(self) -> float:
        """Seconds of training, with those of earlier runs."""
        return self._counted + (0.0 if self._since is None else time.monotonic() - self._since)

    def lap(self) -> float:
        """Seconds of training since the last lap."""
        begun, self._lap_begun = self._lap_begun, self.total
        return max(self._lap_begun - begun, 1e-9)

    def at_least(self, seconds: float) -> None:
        """Sets `total` forward, where it is less; that is no part of a lap."""
        more = max(0.0, seconds - self.total)
        self._counted += more
        self._lap_begun += more


PARTS = 32  # of an evaluation, for comparing it with another


class Paired:
    """Judged losses of an evaluation, batch by batch, to be compared with others of the same predictions:
    those of their controls, and those of another evaluation. Both have the same easy and hard places, so that
    the error of their difference is less than that of either.
    """

    def __init__(self, task: Task, communicator: Communicator):
        self._task, self._communicator = task, communicator
        self._judged = task.sums.index(task.judged[0])
        self._counted = task.denominators.index(task.judged[1])
        self._sums: list[mx.nd.NDArray] = []  # of a batch, then of its control
        self._counts: list[float] = []

    def add(self, batch: Any, sums: mx.nd.NDArray) -> None:
        """Adds a batch, then its control."""
        self._sums.append(sums.copy())  # the network may use the memory of its outputs again
        self._counts.append(self._task.count([batch])[self._counted])

    def over_ranks(self) -> dict[str, Any]:
        """Figures over all ranks; every rank calls it. Waits for the device. Empty where nothing was added.

        context_gain: how much higher the mean loss is without the predictions' own context, in nats;
        context_gain_se: its standard error; parts: the sums of losses ("loss") and of their denominators
        ("count") over every PARTS-th batch; without a pipeline the same batches for any number of ranks.
        """
        communicator = self._communicator
        losses = np.array([each.asnumpy()[self._judged] for each in self._sums], dtype="float64")
        own, controls, counts = losses[::2], losses[1::2], np.array(self._counts[::2], dtype="float64")
        part = (communicator.rank + communicator.size * np.arange(len(own))) % PARTS
        parts = [np.bincount(part, each, PARTS) for each in (own, counts)]
        found = summed(np.concatenate([moments_of(controls - own, counts), *parts]), communicator)
        moments, loss, count = np.split(found, [len(found) - 2 * PARTS, len(found) - PARTS])
        gain, error = mean_and_error(moments)
        if gain is None:
            return {}
        listed = [[finite_or_none(round(x, 4)) for x in each.tolist()] for each in (loss, count)]
        named = dict(zip(("loss", "count"), listed))
        return {"context_gain": gain, "context_gain_se": error, "parts": named}


def forward(
    task: Task, network: Any, batches: Iterable[Any], device: mx.Context
) -> Iterator[tuple[Any, Sequence[mx.nd.NDArray]]]:
    """Each batch with the network's outputs for it, without dropout."""
    network.pack_weights()
    unscaled = [mx.nd.ones((1,), ctx=device)] * len(task.denominators)
    for batch in batches:
        yield batch, network(*task.inputs(batch, device), *unscaled)  # outside record: no dropout


def evaluate(
    task: Task,
    passes: Iterable[tuple[Any, Sequence[mx.nd.NDArray]]],
    communicator: Communicator,
    device: mx.Context,
    collector: Collector | None = None,
    controlled: bool = False,
) -> dict[str, Any]:
    """Means over the whole set, whatever part of it this rank has (also none). Every rank calls it.

    Args:
        passes: batches with their outputs, as of `forward`.
        controlled: whether each second one is the control of the one before (as EvaluationFeed says).

    Returns:
        the task's figures, the standard error of its judged loss (from the spread over batches), those of
        `Paired`, the scores of `collector` (on rank 0), sequences, and s (seconds), all behind "eval_".

    Raises:
        NotFiniteError: on every rank, outputs are not finite. TrainingError: as `Collector.scores`.
    """
    begun = time.monotonic()
    totals, paired = Totals(task, device), Paired(task, communicator)
    failure: NotFiniteError | None = None
    for number, (batch, (_, sums, *outputs)) in enumerate(passes):
        if controlled:
            paired.add(batch, sums)
            if number % 2:
                continue
        totals.add([batch], sums)
        if collector is not None and failure is None:
            try:
                collector.add(batch, [output.asnumpy() for output in outputs])
            except NotFiniteError as error:  # which others may not have
                failure = error
    gathered = totals.over_ranks(communicator)
    named: dict[str, Any] = {**figures(task, gathered), **(paired.over_ranks() if controlled else {})}
    if collector is not None:
        if not all(communicator.all_agree([failure is None])):
            raise failure or NotFiniteError("outputs of the model are no finite numbers on another rank")
        whole = summed_exactly(collector.arrays(), communicator)
        if communicator.rank == 0:
            named.update(collector.scores(whole))
        communicator.barrier()  # scores take rank 0 its time
    sequences = int(round(gathered.counts["sequences"]))
    prefixed = {f"eval_{name}": value for name, value in named.items()}
    return {**prefixed, "eval_sequences": sequences, "eval_s": time.monotonic() - begun}


def summed_exactly(arrays: Sequence[np.ndarray], communicator: Communicator) -> list[np.ndarray]:
    """The sums of float32 or int32 arrays over all ranks, of the same dtypes. Every rank calls it.

    Each rank sends its own in turn: broadcasts are exact, where averages may travel compressed.
    """
    if communicator.size == 1:
        return list(arrays)
    totals = [np.zeros_like(array) for array in arrays]
    for root in range(communicator.size):
        for array, total in zip(arrays, totals):
            if array.size:
                sent = mx.nd.array(array, ctx=mx.cpu(), dtype=array.dtype)
                communicator.broadcast([sent], root)
                total += sent.asnumpy()
    return totals
