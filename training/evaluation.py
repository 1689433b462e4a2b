"""Evaluation: a task's figures over a set of sequences, divided over the ranks."""

from __future__ import annotations

import time
from typing import Any, Iterable

import mxnet as mx

from comm.base import Communicator
from tasks.base import Task
from training.metrics import Totals, figures


def evaluate(
    task: Task, network: Any, batches: Iterable[Any], communicator: Communicator, device: mx.Context
) -> dict[str, Any]:
    """Means over the whole set, whatever share of it this rank has (also none). Every rank calls it.

    Returns:
        the task's figures, the standard error of its judged loss (from the spread over batches), sequences,
        and s (seconds), all behind "eval_".
    """
    begun = time.monotonic()
    totals = Totals(task, device)
    network.pack_weights()
    unscaled = [mx.nd.ones((1,), ctx=device)] * len(task.denominators)
    for batch in batches:
        _, sums = network(*task.inputs(batch, device), *unscaled)  # outside record: no dropout
        totals.add([batch], sums)
    gathered = totals.over_ranks(communicator)
    named = {f"eval_{name}": value for name, value in figures(task, gathered).items()}
    sequences = int(round(gathered.counts["sequences"]))
    return {**named, "eval_sequences": sequences, "eval_s": time.monotonic() - begun}
