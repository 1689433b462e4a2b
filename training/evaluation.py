"""Evaluation: a task's figures over a set of sequences, divided over the ranks, and how much of the loss is
due to their context."""

from __future__ import annotations

import time
from typing import Any, Iterable, Iterator, Sequence

import mxnet as mx
import numpy as np

from comm.base import Communicator
from tasks.base import Collector, Task
from training.exchange import summed
from training.metrics import Totals, figures, finite_or_none
from training.spread import mean_and_error, moments_of

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
        controlled: whether each second one is the control of the one before (training.feed.EvaluationFeed).

    Returns:
        the task's figures, the standard error of its judged loss (from the spread over batches), those of
        `Paired`, the scores of `collector` (on rank 0), sequences, and s (seconds), all behind "eval_".

    Raises:
        TrainingError: as `Collector.scores`.
    """
    begun = time.monotonic()
    totals, paired = Totals(task, device), Paired(task, communicator)
    for number, (batch, (_, sums, *outputs)) in enumerate(passes):
        if controlled:
            paired.add(batch, sums)
            if number % 2:
                continue
        totals.add([batch], sums)
        if collector is not None:
            collector.add(batch, [output.asnumpy() for output in outputs])
    gathered = totals.over_ranks(communicator)
    named: dict[str, Any] = {**figures(task, gathered), **(paired.over_ranks() if controlled else {})}
    if collector is not None:
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
