"""The network of a run, or one stage of it, on its device, with the parameters that the run begins with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mxnet as mx

from bert.configuration import REMOVE
from bert.model import build_model, initialize, network_parameters, trained
from bert.part import allocate, build_part
from bert.weights.published import load_published
from comm.base import Communicator
from tasks.base import Task
from training.config import OptimizationConfig
from training.device import choose_computing
from training.optimizer.moments import MomentType
from training.optimizer.optimizer import Optimizer
from training.optimizer.shards import ShardedOptimizer
from training.optimizer.update_rule import Rule
from training.pipeline.options import check_dtype
from training.pipeline.ranks import Ranks
from training.pipeline.state import begin_stages
from training.run_inputs import Part
from training.start.restoring import restore_parameters
from training.start.start import Start


@dataclass
class Model:
    """A network on its device. `network`: the task's heads and losses above its `bert`."""

    network: Any
    device: mx.Context
    dtype: str
    operators: str


def open_model(part: Part, start: Start, task: Task, ranks: Ranks, seed: int) -> Model:
    """The network, or this rank's stage of it, with the parameters that the run begins with; every rank calls
    it.

    Raises:
        InputError: a checkpoint, or a file of published weights, that does not fit; float16 in stages.
    """
    if ranks.pipelined:
        return _stage(part, start, task, ranks, seed)
    communicator = ranks.world
    (config, inputs), device, dtype, operators = part, *choose_computing(part.config.model, communicator)
    shape, dropout = config.model.bert, config.model.rates
    bert = build_model(shape, inputs.vocab_size, dropout, task.heads)
    initialize(bert, device, "float16" if dtype == "float16" else "float32", seed, config.model.initial_stdev)
    if start.published and communicator.rank == 0:  # the others get rank 0's
        load_published(bert, shape.name, start.published, device)
    network = task.network(bert, shape, dtype, dropout, operators)
    if config.model.padding == REMOVE:
        network.remove_padding()
    if config.model.recompute:
        network.recompute()
    restore_parameters(start, network_parameters(network), communicator, device)
    return Model(network, device, dtype, operators)


def make_optimizer(
    config: OptimizationConfig, model: Model, communicator: Communicator, seed: int
) -> Optimizer:
    """The optimizer over all parameters that are trained."""
    parameters = {name: each.data(model.device) for name, each in trained(model.network).items()}
    rule = Rule(*(getattr(config, name) for name in Rule._fields))
    native = model.operators == "fused"
    if config.shard_states and communicator.size > 1:
        return ShardedOptimizer(communicator, config.optimizer, parameters, rule, native)
    moments = MomentType(config.optimizer_state, seed)
    names, arrays = list(parameters), list(parameters.values())
    return Optimizer(config.optimizer, names, arrays, rule, native=native, moments=moments)


def _stage(part: Part, start: Start, task: Any, ranks: Ranks, seed: int) -> Model:
    """The stage of a DividedTask."""
    (config, inputs), device, dtype, operators = part, *choose_computing(part.config.model, ranks.world)
    check_dtype(dtype)
    bert = build_part(ranks.part, inputs.vocab_size, config.model.rates, task.heads)
    allocate(bert, ranks.part, device, "float16" if dtype == "float16" else "float32")
    network = task.stage(bert, ranks.part, dtype, config.model.rates, operators)
    if config.model.recompute:
        network.recompute()
    begin_stages(start, network, ranks, seed, config.model.initial_stdev)
    return Model(network, device, dtype, operators)
