"""The optimizer's update and the global norm, by the operators in native/operators for float32 on the CPU,
and by MXNet's own operators on any device. Both compute the same.

The native update is one operator for all tensors in one sweep over the memory; the adapted ones need a second
look at weight, mean and var. It is queued like every operator: MXNet knows that it writes weights, means and
vars, so that it begins after the backward pass, and the next forward pass after it.

MXNet has LAMB as lamb_update_phase1 (up to u) and lamb_update_phase2 (the new weight). Three things are not
left to it:

- The norms. On CPU, MXNet's `norm` and `multi_sum_sq` add in one float32 running sum: over the 23 million
  elements of the word embedding the result is 2.5% too small for random values and up to 15% for equal ones,
  and so is the ratio that `multi_lamb_update` applies. `dot` over pieces of 2^18 elements is right to 1e-6
  for the former, 2e-5 for the latter, and twenty times as fast.
- The memory of u. One buffer of the largest tensor's size serves all tensors in turn. Fresh memory for each u
  costs time on CPU (page faults), and as much of it as the model is large when many updates are queued.
- Float16. MXNet 1.9.1's mp_lamb_update_phase1 multiplies the gradient by `rescale` in float16, where what the
  loss scale has saved is lost again, and mp_lamb_update_phase2 leaves the float32 master as it was, so that
  no update is remembered. Here the gradient is cast to float32, and the updated master to float16.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Sequence

import mxnet as mx
import numpy as np

from base.errors import InputError
from bert.weights.tensors import BFLOAT16, native

FLOAT32, BFLOAT = "float32", "bfloat16"


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


PIECE = 1 << 18  # elements in one dot product: long enough to be fast, short enough for float32 sums


class Rule(NamedTuple):
    """The numbers in the formulas of optimizer.py. Epsilon is outside the root; the bounds are limits of
    ||w|| in LAMB's ratio (the paper's phi), None for none."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-6
    bias_correction: bool = False
    weight_decay: float = 0.01
    lower_bound: float | None = None
    upper_bound: float | None = None

    def bounds(self) -> dict[str, float]:
        """The bounds that were given, as arguments for an operator."""
        both = {"lower_bound": self.lower_bound, "upper_bound": self.upper_bound}
        return {name: bound for name, bound in both.items() if bound is not None}


class Tensor(NamedTuple):
    """One parameter with its states, of one shape, float32 but for a float16 weight; `mean` and `var` may be
    bfloat16, as bytes (MomentType).

    `master` is `weight` itself where that is float32. `decayed` and `adapted` say whether weight decay and
    the ratio ||w|| / ||u|| apply to it.
    """

    weight: mx.nd.NDArray
    master: mx.nd.NDArray
    mean: mx.nd.NDArray
    var: mx.nd.NDArray
    decayed: bool
    adapted: bool


class NativeUpdate:
    """Updates tensors by the native operator; `bert.operators.load_operators` has returned True before.

    `packed`: copies of the weights that updates write too.
    """

    def __init__(self, rule: Rule, tensors: Sequence[Tensor], moments: MomentType):
        self._weights = [tensor.weight for tensor in tensors]
        self._states = [*(tensor.mean for tensor in tensors), *(tensor.var for tensor in tensors)]
        self._attributes = {
            "num_tensors": len(tensors),
            "beta1": rule.beta1,
            "beta2": rule.beta2,
            "epsilon": rule.epsilon,
            "weight_decay": rule.weight_decay,
            "bias_correction": int(rule.bias_correction),
            "decayed": "".join("01"[tensor.decayed] for tensor in tensors),
            "adapted": "".join("01"[tensor.adapted] for tensor in tensors),
            "state": moments.dtype,
            "seed": moments.seed,
            **rule.bounds(),
        }
        self.packed: list[mx.nd.NDArray] = []
        self._packing: dict[str, Any] = {}

    def pack(self, groups: Sequence[Sequence[int]], copies: Sequence[mx.nd.NDArray], dtype: str) -> None:
        """See `Optimizer.pack`; `groups` has the weights' numbers."""
        self.packed = list(copies)
        names = ",".join("+".join(map(str, group)) for group in groups)
        self._packing = {"packed": names, "packed_dtype": dtype} if copies else {}

    def update(self, gradients: Sequence[mx.nd.NDArray], t: int, lr: float, rescale: float) -> None:
        """Queues update number `t`, from 1."""
        mx.nd.bert_lamb(
            *self._weights, *gradients, *self._states, *self.packed,
            t=t, lr=lr, rescale=rescale, **self._attributes, **self._packing,
        )  # fmt: skip


class MXNetUpdate:
    """The same by MXNet's operators. The tensors are on one device."""

    def __init__(self, rule: Rule, tensors: Sequence[Tensor]):
        context = tensors[0].weight.context
        scratch = mx.nd.zeros((max(tensor.weight.size for tensor in tensors),), context)
        self._zero = mx.nd.zeros((1,), context)
        self._rule = rule
        self._work = []  # of each tensor: itself, u in the shared buffer, and what its norms are taken of
        for tensor in tensors:
            u = scratch[: tensor.weight.size]
            self._work.append((tensor, u.reshape(tensor.weight.shape), _pieces(tensor.master), _pieces(u)))

    def update(self, gradients: Sequence[mx.nd.NDArray], t: int, lr: float, rescale: float) -> None:
        """Queues update number `t`, from 1."""
        rule = self._rule
        for (tensor, update, master_pieces, update_pieces), gradient in zip(self._work, gradients):
            multi_precision = tensor.master is not tensor.weight
            if multi_precision:
                gradient = mx.nd.cast(gradient, dtype="float32", out=update)
            mx.nd.lamb_update_phase1(
                tensor.master,
                gradient,
                tensor.mean,
                tensor.var,
                t=t,
                beta1=rule.beta1,
                beta2=rule.beta2,
                epsilon=rule.epsilon,
                bias_correction=rule.bias_correction,
                wd=rule.weight_decay if tensor.decayed else 0.0,
                rescale_grad=rescale,
                out=update,
            )
            # Phase 2 takes ratio 1 where a norm is zero.
            norms, bounds = (self._zero, self._zero), {}
            if tensor.adapted:
                norms, bounds = (_norm(master_pieces), _norm(update_pieces)), rule.bounds()
            mx.nd.lamb_update_phase2(tensor.master, update, *norms, lr=lr, out=tensor.master, **bounds)
            if multi_precision:
                mx.nd.cast(tensor.master, dtype="float16", out=tensor.weight)


def is_native(array: mx.nd.NDArray) -> bool:
    """Whether the native operators can work on this array."""
    return array.dtype == np.float32 and array.context.device_type == "cpu"


def native_norm(gradients: Sequence[mx.nd.NDArray]) -> mx.nd.NDArray:
    """The L2 norm over all elements, (1,) float32, not waited for. Sums are float64: only a norm beyond
    float32 becomes infinite."""
    return mx.nd.bert_global_norm(*gradients, num_tensors=len(gradients))


def mxnet_norm(gradients: Sequence[mx.nd.NDArray]) -> mx.nd.NDArray:
    """The same with float32 sums, whatever the gradients' dtype."""
    pieces: list[mx.nd.NDArray] = []
    for gradient in gradients:
        pieces += _pieces(gradient if gradient.dtype == np.float32 else gradient.astype(np.float32))
    return _norm(pieces)


def _pieces(array: mx.nd.NDArray) -> list[mx.nd.NDArray]:
    """Views of the array's elements in one dimension, at most PIECE in each."""
    flat = array.reshape((-1,))
    if flat.size <= PIECE:
        return [flat]
    return [flat[start : start + PIECE] for start in range(0, flat.size, PIECE)]


def _norm(pieces: Sequence[mx.nd.NDArray]) -> mx.nd.NDArray:
    squares = [mx.nd.dot(piece, piece) for piece in pieces]
    return mx.nd.sqrt(squares[0] if len(squares) == 1 else mx.nd.add_n(*squares))
