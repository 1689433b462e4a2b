"""States of an optimizer: the type of mean and variance, and what a checkpoint has of all."""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple

import mxnet as mx
import numpy as np

from base.errors import InputError
from bert.weights.tensors import BFLOAT16, native

FLOAT32, BFLOAT = "float32", "bfloat16"
MEAN, VAR, MASTER = ".mean", ".var", ".master"
STATES = (MEAN, VAR, MASTER)  # ends of the names of a state's arrays
T = "t"  # name of the count of updates in a state


class MomentType(NamedTuple):
    """The type in which mean and variance are kept, the moments.

    `dtype` is FLOAT32, or BFLOAT stored by stochastic rounding; `seed` is that of these roundings.

    bfloat16 halves the moments' memory and the bytes of them that an update moves. Its numbers are 2^-8 to
    2^-7 of themselves apart, at least four times as far as a second moment with beta2 0.999 decays in a step:
    rounding to nearest would leave it where it is. Rounding at random to one of the two neighbours, the more
    often the nearer it is, keeps the mean right (Gupta et al., arXiv:1502.02551, section 3).
    native/operators/lamb.cc does it, with random bits that depend on the seed, the update's number and the
    element alone: they are the same on every rank, for any number of threads, and after a resumption.

    MXNet has no bfloat16 for operators of others, nor have communication libraries for broadcasts: live
    moments are uint8, with an axis of 2 behind the parameter's. In checkpoints they have their type, BFLOAT16
    of bert.weights.tensors.
    """

    dtype: str = FLOAT32
    seed: int = 0

    def zeros(self, shape: tuple[int, ...], context: mx.Context) -> mx.nd.NDArray:
        """A live moment of a parameter of this shape."""
        if self.dtype == BFLOAT:
            return mx.nd.zeros((*shape, 2), context, dtype="uint8")
        return mx.nd.zeros(shape, context)


class Bfloat16Moment:
    """A live moment in bfloat16 as a checkpoint takes it: an array of this `shape` and `dtype`.

    `raw`: its bytes, the uint8 array.
    """

    def __init__(self, raw: mx.nd.NDArray):
        self.raw = raw
        self.shape = raw.shape[:-1]
        self.dtype = BFLOAT16

    def asnumpy(self) -> np.ndarray:
        """A copy."""
        return self.raw.asnumpy().view(BFLOAT16).reshape(self.shape)


def converted(value: np.ndarray, dtype: str) -> np.ndarray | None:
    """A checkpoint's moment, float32 or BFLOAT16, as the content of a live one of `dtype`; None where it is
    of another type. To bfloat16 it is rounded to nearest, ties to even, once."""
    if value.dtype not in (np.float32, BFLOAT16):
        return None
    if dtype == FLOAT32:
        return native(value)
    if value.dtype == np.float32:
        bits = np.ascontiguousarray(value).view(np.uint32)
        upper = (bits + (0x7FFF + (bits >> 16 & 1))) >> 16
        value = np.where(np.isnan(value), bits >> 16 | 0x40, upper).astype(np.uint16)
    return np.ascontiguousarray(value).view(np.uint8).reshape(*value.shape, 2)


def check_moments(dtype: str, operators: str, on_gpu: bool) -> None:
    """Checks --optimizer_state against the operators that a run computes with.

    Raises:
        InputError: bfloat16 without the fused operators.
    """
    if dtype != FLOAT32 and operators != "fused":
        reason = "there are none for GPUs" if on_gpu else "make setup builds them; without --operators mxnet"
        raise InputError(f"--optimizer_state {dtype} needs the fused CPU operators: {reason}")


def check_state(state: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Looks at a `state`. Returns its count of updates.

    Args:
        shapes: by name, those of the parameters.

    Raises:
        InputError: names, shapes or dtypes are others.
    """
    expected, there = {*shapes, T}, set(state)
    for relation, names in (("lack", expected - there), ("also hold", there - expected)):
        if names:
            shown = ", ".join(sorted(names)[:3]) + (", ..." if len(names) > 3 else "")
            raise InputError(
                f"the optimizer states {relation} {len(names)} arrays ({shown}); "
                "use the --model, --dtype and --optimizer of the run that saved them"
            )
    t = state[T]
    if t.shape != () or t.dtype != np.int64 or t < 0:
        raise InputError(f"the optimizer states' {T} must be one int64 of at least 0")
    for name, shape in shapes.items():
        value = state[name]
        if value.shape != tuple(shape) or content_of(name, value[:0], FLOAT32) is None:
            found = value.dtype.names[0] if value.dtype.names else value.dtype
            raise InputError(
                f"the optimizer states' {name} is {found} {value.shape}, "
                f"this run needs {FLOAT32} {tuple(shape)}; use the --model of the run that saved it"
            )
    return int(t)


def to_take(
    state: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]], keeps: bool, t: int
) -> tuple[list[str], int]:
    """The names of the arrays to be taken over from a `state`, and its count of updates: all of `shapes`, or
    where it does not `keep` all the float32 masters that it has (that of a float32 run has none), and `t`.
    Raises InputError as `check_state`."""
    if keeps:
        return list(shapes), check_state(state, shapes)
    masters = {name: shape for name, shape in shapes.items() if name.endswith(MASTER) and name in state}
    own = {T: np.array(t, np.int64), **{name: state[name] for name in masters}}
    return list(masters), check_state(own, masters)


def content_of(name: str, value: np.ndarray, dtype: str) -> Any:
    """The content of a live state with moments of `dtype`, of its value in a checkpoint; None where that is
    of another type."""
    if name.endswith(MASTER):
        return value if value.dtype == np.float32 else None
    return converted(value, dtype)


def parameter_of(state: str) -> str:
    """The name of the parameter that a state array belongs to; a parameter's name stays as it is."""
    return next((state[: -len(end)] for end in STATES if state.endswith(end)), state)
