"""The network of a run, or one stage of it; and the device, the dtype and the operators of a rank: what is
asked for, on what its host has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import mxnet as mx

from base.errors import InputError
from bert.configuration import REMOVE
from bert.model import build_model, initialize, trained
from bert.operators import LIBRARY, check_fused, choose_operators
from bert.part import allocate, build_part
from comm.base import Communicator
from tasks.base import DividedTask, Task
from training.agreement import digest_of_file
from training.config import ModelConfig, OptimizationConfig
from training.optimizer.optimizer import Optimizer, Rule
from training.optimizer.shards import ShardedOptimizer
from training.optimizer.states import MomentType
from training.pipeline.options import check_dtype
from training.pipeline.ranks import Ranks
from training.run_inputs import Part


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


def open_model(part: Part, task: Task, ranks: Ranks, seed: int) -> Model:
    """The network with random parameters, or this rank's stage of it, whose parameters have memory and no
    numbers yet.

    Raises:
        InputError: what is asked for cannot be had here; float16 in stages.
    """
    config, vocab_size = part.config.model, part.inputs.vocab_size
    device, dtype, operators = choose_computing(config, ranks.world)
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
        network = task.network(bert, shape, dtype, dropout, operators)
        if config.padding == REMOVE:
            network.remove_padding()
    if config.recompute:
        network.recompute()
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
