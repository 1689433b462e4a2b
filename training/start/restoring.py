"""Parameters and optimizer states that a run begins with, from rank 0 to all: a checkpoint's, those of
--init_from, or those that rank 0 has initialized."""

from __future__ import annotations

from typing import Any, Collection, Mapping, Sequence

import mxnet as mx
import numpy as np

from base.errors import InputError
from bert.weights.bare_params import check_index
from bert.weights.names import DECODER, EMBEDDING
from bert.weights.params_file import read_index
from comm.base import Communicator
from training.exchange import broadcast_json
from training.optimizer.optimizer import Optimizer
from training.start.initial import Initial
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
    if start.initial is not None:
        _take_initial(start.initial, named, device)
    elif start.checkpoint is not None:
        path = start.checkpoint.params_path
        arrays = read_index(path)
        tied = named.get(DECODER) is named.get(EMBEDDING)
        check_index(path, arrays, {name: parameter.shape for name, parameter in named.items()}, tied)
        for name, tensor in arrays.items():
            array = as_dtype(tensor.read(), named[name].dtype)
            named[name].set_data(mx.nd.array(array, ctx=device, dtype=array.dtype))
        if start.checkpoint.manifest is None:
            _check_finite(path, named)
    communicator.broadcast(list(live_arrays(named).values()))


def restore_states(start: Start, optimizer: Optimizer, communicator: Communicator) -> None:
    """Gives every rank the optimizer's states of the checkpoint. Where they begin anew, only the float32
    masters of float16 parameters are taken over, which are the parameters themselves at full precision.

    Raises:
        InputError: on rank 0, for states of another model or dtype.
    """
    if not start.facts:
        return
    keeps = start.keeps(OPTIMIZER)
    if start.checkpoint is not None and (keeps or optimizer.has_masters):
        with start.checkpoint.open_states() as states:
            optimizer.restore(states) if keeps else optimizer.restore_masters(states)
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


def fitted(array: np.ndarray, rows: int, drawn: mx.nd.NDArray | None, anew: Sequence[int] = ()) -> np.ndarray:
    """The first `rows` rows of the array; where it has fewer, the others are those of `drawn`, and so are
    those with the numbers `anew`."""
    if len(anew):
        assert drawn is not None, "rows that the array lacks"
        array[list(anew)] = drawn.asnumpy()[list(anew)]
    if array.shape[0] < rows:
        assert drawn is not None, "rows that the array lacks"
        array = np.concatenate([array, drawn.asnumpy()[array.shape[0] :]])
    return np.ascontiguousarray(array[:rows])


def _take_initial(initial: Initial, named: Mapping[str, mx.gluon.Parameter], device: mx.Context) -> None:
    """Overwrites an initialized model with the parameters of --init_from; where they have more or fewer rows
    than the model's, the first ones."""
    for name, tensor in initial.tensors.items():
        parameter = named[name]
        anew = initial.drawn_rows(name)
        drawn = parameter.data(device) if len(anew) or tensor.shape[0] < parameter.shape[0] else None
        array = fitted(as_dtype(tensor.read(), parameter.dtype), parameter.shape[0], drawn, anew)
        parameter.set_data(mx.nd.array(array, ctx=device, dtype=array.dtype))
    _check_finite(f"--init_from {initial.source}", named)


def _check_finite(source: str, named: Mapping[str, mx.gluon.Parameter]) -> None:
    """Raises InputError for a parameter that is not finite in the model's dtype."""
    if not all_finite(list(live_arrays(named).values())):
        raise not_finite(source, {np.dtype(parameter.dtype).name for parameter in named.values()})


def not_finite(source: str, dtypes: Collection[str]) -> InputError:
    """The error of parameters that are not finite in the model's dtypes."""
    return InputError(
        f"{source}: it has numbers that are not finite in {' or '.join(sorted(dtypes))}; name a file "
        "that was saved before training diverged, or train with --dtype float32"
    )


def all_finite(arrays: list[mx.nd.NDArray]) -> bool:
    """Whether no array holds an infinity or a NaN. Waits for the device."""
    if arrays[0].context.device_type == "cpu":  # where MXNet's operator takes 4 s for BERT-base
        return all(np.isfinite(array.asnumpy()).all() for array in arrays)
    # MXNet's operator takes 200 arrays at most and overruns its buffer with more.
    parts = [arrays[start : start + 100] for start in range(0, len(arrays), 100)]
    return all(mx.nd.multi_all_finite(*part, num_arrays=len(part)).asscalar() == 1 for part in parts)
