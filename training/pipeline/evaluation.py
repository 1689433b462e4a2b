"""Evaluation over the stages of a pipeline: forward passes alone."""

from __future__ import annotations

import time
from typing import Any, Iterable

import mxnet as mx

from tasks.base import StageNetwork, Task
from training.evaluation import Paired
from training.metrics import Totals, figures
from training.pipeline.ranks import Ranks, activation_tag
from training.pipeline.stream import Outgoing, Rooms

_ON_THEIR_WAY = 2  # messages that a stage may be ahead of the next


def evaluate_stages(
    task: Task, network: StageNetwork, batches: Iterable[tuple[Any, Any]], ranks: Ranks, device: mx.Context
) -> dict[str, Any]:
    """As `training.evaluation.evaluate` without a collector; every rank calls it with the batches of its
    replica. The figures are the same on all ranks."""
    begun = time.monotonic()
    totals, place = Totals(task, device), ranks.place
    paired = Paired(task, place.data_rank, place.data_size)
    network.pack_weights()
    unscaled = [mx.nd.ones((1,), ctx=device)] * len(task.denominators) if place.last else []
    rooms, outgoing = Rooms(device, with_gradient=False), Outgoing(ranks.world)
    passes = ((each, each is batch) for batch, control in batches for each in (batch, control))
    for number, (batch, own) in enumerate(each for each in passes if each[0] is not None):
        arrays = task.inputs(batch, device)[network.takes]
        if not place.first:
            inputs = rooms.take(*network.activations(*batch.input_ids.shape))
            ranks.world.receive(inputs, ranks.previous, activation_tag(number)).wait()
            arrays = [inputs, *arrays]
        outputs = network(*arrays, *unscaled)  # outside record: no dropout
        if place.last:
            if own:
                totals.add([batch], outputs[1])
                paired.add(batch, outputs[1])
            else:
                paired.add_control(outputs[1])
        else:
            # A copy: the network may use the memory of its outputs again for the next batch.
            outgoing.send(outputs.copy(), ranks.next, activation_tag(number))
            outgoing.limit(_ON_THEIR_WAY)
        if not place.first:
            rooms.give_back(inputs)
    outgoing.limit(0)
    gathered = totals.over_ranks(ranks.world)
    named = {**figures(task, gathered), **paired.over_ranks(ranks.world)}
    prefixed = {f"eval_{name}": value for name, value in named.items()}
    sequences = int(round(gathered.counts["sequences"]))
    return {**prefixed, "eval_sequences": sequences, "eval_s": time.monotonic() - begun}
