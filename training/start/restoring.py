"""Parameters and optimizer states that a run begins with, from rank 0 to all: a checkpoint's, those of
--init_from, or those that rank 0 has initialized."""

from __future__ import annotations

import contextlib
from typing import Any, Iterator, Mapping

import mxnet as mx
import numpy as np

from base.errors import InputError
from bert.weights.bare_params import check_index
from bert.weights.names import DECODER, EMBEDDING
from bert.weights.params_file import read_index
from comm.base import Communicator
from training.checkpoint import Checkpoint
from training.exchange import broadcast_json
from training.optimizer.optimizer import Optimizer
from training.optimizer.shards import ShardedOptimizer
from training.start.initial import OF_TOKENS, Initial
from training.start.start import Start
from training.start_options import OPTIMIZER


def restore_parameters(
    start: Start,
    named: Mapping[str, mx.gluon.Parameter],
    communicator: Communicator,
    device: mx.Context,
) -> None:
    """Gives every rank rank 0's parameters: the checkpoint's, or those it has initialized. To be called
    before the optimizer takes its copies. `named`: as `network_parameters` has them.

    Raises:
        InputError: on rank 0, for parameters of another model, or of a bare .params file that the model's
            dtype cannot hold.
    """

    def take(name: str, array: np.ndarray) -> None:
        named[name].set_data(mx.nd.array(array, ctx=device, dtype=array.dtype))

    if start.initial is not None:
        for name in start.initial.tensors:
            drawn = named[name].data(device)
            take(name, initial_array(start.initial, name, drawn))
    elif start.checkpoint is not None:
        for name, array in checkpoint_arrays(start.checkpoint, named):
            take(name, array)
    communicator.broadcast(list(live_arrays(named).values()))


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


def restore_states(start: Start, optimizer: Optimizer, communicator: Communicator) -> None:
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
        if states is not None:
            optimizer.restore(states, keeps)
    (optimizer.t,) = broadcast_json([optimizer.t], communicator)
    communicator.broadcast(list(optimizer.state_arrays().values()))


def live_arrays(named: Mapping[str, mx.gluon.Parameter]) -> dict[str, mx.nd.NDArray]:
    """The arrays of parameters, by the same names."""
    return {name: parameter.data() for name, parameter in named.items()}


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
