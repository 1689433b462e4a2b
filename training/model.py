"""The network of a run, or one stage of it, with the parameters that the run begins with; and the device, the
dtype and the operators of a rank: what is asked for, on what its host has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import mxnet as mx

from base.errors import InputError
from bert.configuration import REMOVE
from bert.model import build_model, initialize, network_parameters, trained
from bert.operators import LIBRARY, check_fused, choose_operators
from bert.part import allocate, build_part
from bert.weights.published import load_published
from comm.base import Communicator
from tasks.base import DividedTask, Task
from training.agreement import digest_of_file
from training.config import ModelConfig, OptimizationConfig
from training.optimizer.optimizer import Optimizer
from training.optimizer.shards import ShardedOptimizer
from training.optimizer.update import MomentType, Rule
from training.pipeline.options import check_dtype
from training.pipeline.ranks import Ranks
from training.pipeline.state import begin_stages
from training.run_inputs import Part
from training.start.restoring import restore_parameters
from training.start.start import Start


class Computing(NamedTuple):
    """The place and the means of a rank's computing."""

    device: mx.Context
    dtype: str
    operators: str

    def description(self) -> dict[str, str]:
        """The same for `training.agreement.agree`, with the digest of the operators' library: from other
        rounding in their updates, ranks' parameters would drift apart."""
        library = f", library {digest_of_file(LIBRARY)}" if self.operators == "fused" else ""
        return {
            "--dtype, as chosen,": f"{self.dtype} on {self.device.device_type}",
            "--operators, as chosen,": self.operators + library,
        }


def choose_computing(config: ModelConfig, communicator: Communicator) -> Computing:
    """The GPU of this rank's place on its host, where there are GPUs; float16 there, else float32, without
    --dtype.

    Raises:
        InputError: what is asked for cannot be had here.
    """
    device = mx.gpu(communicator.local_rank) if mx.context.num_gpus() else mx.cpu()
    on_gpu = device.device_type == "gpu"
    if config.dtype == "float16" and not on_gpu:
        raise InputError("--dtype float16: MXNet multiplies float16 matrices on GPUs only; use float32 here")
    dtype = config.dtype or ("float16" if on_gpu else "float32")
    operators = choose_operators(config.operators, dtype, device)
    for option in config.of_fused_operators:
        check_fused(option, operators)
    return Computing(device, dtype, operators)


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
    config, vocab_size, world = part.config.model, part.inputs.vocab_size, ranks.world
    device, dtype, operators = choose_computing(config, world)
    shape, dropout, stored = config.bert, config.rates, "float16" if dtype == "float16" else "float32"
    if ranks.pipelined:
        assert isinstance(task, DividedTask), "pretraining"
        check_dtype(dtype)
        bert = build_part(ranks.part, vocab_size, dropout, task.heads)
        allocate(bert, ranks.part, device, stored)
        network = task.stage(bert, ranks.part, dtype, dropout, operators)
    else:
        bert = build_model(shape, vocab_size, dropout, task.heads)
        initialize(bert, device, stored, seed, config.initial_stdev)
        if start.published and world.rank == 0:  # the others get rank 0's
            load_published(bert, shape.name, start.published, device)
        network = task.network(bert, shape, dtype, dropout, operators)
        if config.padding == REMOVE:
            network.remove_padding()
    if config.recompute:
        network.recompute()
    if ranks.pipelined:
        begin_stages(start, network, ranks, seed, config.initial_stdev)
    else:
        restore_parameters(start, network_parameters(network), world, device)
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
