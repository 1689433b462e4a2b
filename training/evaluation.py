"""Evaluation: a task's figures over a set of sequences, divided over the ranks."""

from __future__ import annotations

import time
from typing import Any, Iterable, Iterator, Sequence

import mxnet as mx
import numpy as np

from comm.base import Communicator
from tasks.base import Collector, Task
from training.metrics import Totals, figures


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
) -> dict[str, Any]:
    """Means over the whole set, whatever part of it this rank has (also none). Every rank calls it.

    Args:
        passes: batches with their outputs, as of `forward`.

    Returns:
        the task's figures, the standard error of its judged loss (from the spread over batches), the scores
        of `collector` (on rank 0), sequences, and s (seconds), all behind "eval_".

    Raises:
        TrainingError: as `Collector.scores`.
    """
    begun = time.monotonic()
    totals = Totals(task, device)
    for batch, (_, sums, *outputs) in passes:
        totals.add([batch], sums)
        if collector is not None:
            collector.add(batch, [output.asnumpy() for output in outputs])
    gathered = totals.over_ranks(communicator)
    named: dict[str, Any] = dict(figures(task, gathered))
    if collector is not None:
        whole = summed(collector.arrays(), communicator)
        if communicator.rank == 0:
            named.update(collector.scores(whole))
        communicator.barrier()  # scores take rank 0 its time
    sequences = int(round(gathered.counts["sequences"]))
    prefixed = {f"eval_{name}": value for name, value in named.items()}
    return {**prefixed, "eval_sequences": sequences, "eval_s": time.monotonic() - begun}


def summed(arrays: Sequence[np.ndarray], communicator: Communicator) -> list[np.ndarray]:
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
