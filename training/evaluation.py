"""Evaluation: losses and accuracies of both tasks over a set of sequences, divided over the ranks."""

from __future__ import annotations

import time
from typing import Any, Iterable

import mxnet as mx

from bert.fused import FusedPretrainingLoss
from comm.base import Communicator
from data.pretraining.batches import Batch
from tasks.pretraining.loss import PretrainingLoss
from training.metrics import Totals, losses_and_accuracies
from training.step import device_inputs


def evaluate(
    network: PretrainingLoss | FusedPretrainingLoss,
    batches: Iterable[Batch],
    communicator: Communicator,
    device: mx.Context,
) -> dict[str, Any]:
    """Means over the whole set, whatever share of it this rank has (also none). Every rank calls it.

    Returns:
        eval_mlm_loss, eval_nsp_loss (nats), eval_mlm_acc, eval_nsp_acc, eval_mlm_loss_se (nats, from the
        spread over batches), eval_sequences, eval_s (seconds).
    """
    begun = time.monotonic()
    totals = Totals(device)
    network.pack_weights()
    unscaled = mx.nd.ones((1,), ctx=device)
    for batch in batches:
        _, sums = network(*device_inputs(batch, device), unscaled, unscaled)  # outside record: no dropout
        totals.add([batch], sums)
    gathered = totals.over_ranks(communicator)
    found = {f"eval_{name}": value for name, value in losses_and_accuracies(gathered).items()}
    return {**found, "eval_sequences": int(round(gathered["sequences"])), "eval_s": time.monotonic() - begun}
