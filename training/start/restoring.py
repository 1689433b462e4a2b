"""Parameters and optimizer states that a run begins with, from rank 0 to all ranks, or to the stages of a
pipeline: published ones, a checkpoint's, those of --init_from, or random ones."""

from __future__ import annotations

import contextlib
from typing import Any, Iterable, Iterator, Mapping

import mxnet as mx
import numpy as np

from base.errors import InputError
from bert.model import each_once, live_arrays, network_parameters
from bert.part import initial_arrays
from bert.weights.bare_params import check_index
from bert.weights.names import DECODER, EMBEDDING
from bert.weights.params_file import read_index
from bert.weights.published import load_published
from training.checkpoint import Checkpoint
from training.config import ModelConfig
from training.exchange import broadcast_json
from training.optimizer.optimizer import Optimizer
from training.optimizer.shards import ShardedOptimizer
from training.optimizer.states import FLOAT32, check_state, content_of
from training.pipeline.ranks import Ranks
from training.pipeline.state import give_out
from training.start.initial import OF_TOKENS, Initial
from training.start.options import OPTIMIZER
from training.start.start import Start


def restore_parameters(start: Start, network: Any, ranks: Ranks, config: ModelConfig, seed: int) -> None:
    """Gives every rank the parameters that the run begins with, as rank 0 has them. Every rank calls it, and
    before the optimizer takes its copies.

    `network`: whole, with random parameters; or a stage, without any: rank 0 draws those of a whole model one
    at a time, as a single process does.

    Raises:
        InputError: on rank 0, for published parameters that cannot be had, parameters of another model, or
            numbers that are not finite in the model's dtype.
    """
    named = network_parameters(network)
    (device,) = next(iter(named.values())).list_ctx()

    def take(name: str, array: np.ndarray) -> None:
        named[name].set_data(mx.nd.array(array, ctx=device, dtype=array.dtype))

    if ranks.pipelined:
        model = network.bert._collect_params_with_prefix()
        wanted = {name: (each.shape, each.dtype) for name, each in each_once(model).items()}
        source: Iterator[tuple[str, np.ndarray]] = iter(())
        if ranks.world.rank == 0:
            source = _parameters(
                start, model, initial_arrays(network.bert, device, seed, config.initial_stdev)
            )
        give_out(wanted, source, take, ranks)
    else:
        if start.published and ranks.world.rank == 0:
            load_published(network.bert, config.bert.name, start.published, device)
        replaced = start.initial.tensors if start.initial is not None else ()
        for name, array in _parameters(start, named, ((name, named[name].data()) for name in replaced)):
            take(name, array)
    ranks.group.broadcast(list(live_arrays(named).values()))


def _parameters(
    start: Start, named: Mapping[str, mx.gluon.Parameter], drawn: Iterable[tuple[str, mx.nd.NDArray]]
) -> Iterator[tuple[str, np.ndarray]]:
    """The checkpoint's parameters, or those of --init_from in place of the random numbers `drawn`; each in
    the dtype of `named`."""
    if start.checkpoint is not None and start.initial is None:
        yield from checkpoint_arrays(start.checkpoint, named)
        return
    for name, numbers in drawn:
        numbers = numbers.astype(named[name].dtype, copy=False)
        if start.initial is not None and name in start.initial.tensors:
            yield name, initial_array(start.initial, name, numbers)
        else:
            yield name, numbers.asnumpy()


def checkpoint_arrays(
    checkpoint: Checkpoint, named: Mapping[str, mx.gluon.Parameter]
) -> Iterator[tuple[str, np.ndarray]]:
    """The parameters in a checkpoint, one at a time, in the dtypes of `named`; a tied decoder's weight as the
    word embedding. Raises InputError as `restore_parameters`."""
    path = checkpoint.params_path
    tensors, tied = read_index(path), named.get(DECODER) is named.get(EMBEDDING)
    check_index(path, tensors, {name: parameter.shape for name, parameter in named.items()}, tied)
    for name, tensor in tensors.items():
        if tied and name == DECODER:
            if EMBEDDING in tensors:
                continue
            name = EMBEDDING
        array = as_dtype(tensor.read(), named[name].dtype)
        if checkpoint.manifest is None:
            _check_finite(path, array)
        yield name, array


def initial_array(initial: Initial, name: str, drawn: mx.nd.NDArray) -> np.ndarray:
    """A parameter of --init_from in the place of `drawn`, in its dtype; where it has more rows the first
    ones, where it has fewer the others are those drawn, as are those of new tokens. Raises InputError: it is
    not finite in that dtype."""
    array, rows = as_dtype(initial.tensors[name].read(), drawn.dtype), drawn.shape[0]
    anew = list(initial.anew) if name in OF_TOKENS else []
    if anew:
        array[anew] = drawn.asnumpy()[anew]
    if array.shape[0] < rows:
        array = np.concatenate([array, drawn.asnumpy()[array.shape[0] :]])
    array = np.ascontiguousarray(array[:rows])
    _check_finite(f"--init_from {initial.source}", array)
    return array


def restore_states(start: Start, network: Any, optimizer: Optimizer, ranks: Ranks) -> None:
    """Gives every rank the optimizer's states of the checkpoint. Where they begin anew, only the float32
    masters of float16 parameters are taken over, which are the parameters themselves at full precision.

    Raises:
        InputError: on rank 0, for states of another model or dtype.
    """
    if not start.facts:
        return
    keeps = start.keeps(OPTIMIZER)
    states: Mapping[str, np.ndarray] | None = None
    with contextlib.ExitStack() as stack:
        if start.checkpoint is not None and (keeps or optimizer.has_masters):
            states = stack.enter_context(start.checkpoint.open_states())
        if isinstance(optimizer, ShardedOptimizer):
            return optimizer.take(states, keeps)
        if ranks.pipelined and keeps:
            _give_out_states(states, network, optimizer, ranks)
        elif states is not None:
            optimizer.restore(states, keeps)
    if not ranks.pipelined:
        (optimizer.t,) = broadcast_json([optimizer.t], ranks.world)
    ranks.group.broadcast(list(optimizer.state_arrays().values()))


def _give_out_states(
    states: Mapping[str, np.ndarray] | None, network: Any, optimizer: Optimizer, ranks: Ranks
) -> None:
    """Gives the stages, whose parameters are float32, the parts that they hold of a checkpoint's `states`,
    which rank 0 alone has."""
    own = optimizer.state_arrays()
    whole = each_once(network.bert._collect_params_with_prefix())
    shapes = {
        name + end: each.shape
        for name, each in whole.items()
        for end in optimizer.moments_of(name, each.shape)
    }
    source: Iterator[tuple[str, np.ndarray]] = iter(())
    t = 0
    if states is not None:
        t = check_state(states, shapes)
        source = ((name, content_of(name, states[name], FLOAT32)) for name in shapes)
    optimizer.t = broadcast_json(t, ranks.world)

    def take(name: str, array: np.ndarray) -> None:
        own[name][:] = array

    give_out({name: (shape, np.float32) for name, shape in shapes.items()}, source, take, ranks)


def as_dtype(array: np.ndarray, dtype: Any) -> np.ndarray:
    """The array in a parameter's dtype; what does not fit into float16 becomes infinite, and is looked for
    later."""
    with np.errstate(over="ignore"):
        return array.astype(np.dtype(dtype), copy=False)


def _check_finite(source: str, array: np.ndarray) -> None:
    """Raises InputError for a parameter that is not finite in the model's dtype."""
    if not np.isfinite(array).all():
        raise InputError(
            f"{source}: it has numbers that are not finite in {array.dtype.name}; name a file that was saved "
            "before training diverged, or train with --dtype float32"
        )
