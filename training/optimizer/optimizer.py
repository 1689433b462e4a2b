"""LAMB, the two Adam variants it is compared with, and Muon (muon.py) beside one of them.

One step of LAMB (You et al., arXiv:1904.00962, Algorithm 2, with the choices of the authors' code), for each
tensor:

    g = rescale * gradient
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g^2
    u = m / (sqrt(v) + epsilon) + weight_decay * w
    w = w - lr * ||w|| / ||u|| * u                     (ratio 1 where a norm is zero)

With bias correction m / (1 - beta1^t) and v / (1 - beta2^t) take the place of m and v in u. Biases and
LayerNorm's gain and offset get neither decay nor the ratio. Adam with decoupled decay is the same with ratio
1 everywhere.

Weights may be float16: their float32 masters, from which they are set after each update, are kept here. The
moments m and v may be bfloat16; u is then computed of what is stored.
The arithmetic is done by this project's operators for float32 on the CPU, where they are wanted, else by
MXNet's own, on any device; results agree within the rounding of float32. The native update is one operator
for all tensors in one sweep over the memory; the adapted ones need a second look at weight, mean and var. It
is queued like every operator: MXNet knows that it writes weights, means and vars, so that it begins after the
backward pass, and the next forward pass after it.

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

from typing import Any, Mapping, NamedTuple, Sequence

import mxnet as mx
import numpy as np

from training.optimizer import muon
from training.optimizer.states import (
    BFLOAT,
    MASTER,
    MEAN,
    VAR,
    Bfloat16Moment,
    MomentType,
    T,
    content_of,
    parameter_of,
    to_take,
)

PIECE = 1 << 18  # elements in one dot product: long enough to be fast, short enough for float32 sums


class Rule(NamedTuple):
    """The numbers in the formulas above. Epsilon is outside the root; the bounds are limits of
    ||w|| in LAMB's ratio (the paper's phi), None for none."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-6
    bias_correction: bool = False
    weight_decay: float = 0.01
    lower_bound: float | None = None
    upper_bound: float | None = None

    def of_moments(self) -> dict[str, Any]:
        """The arguments of operators that u is computed by."""
        numbers = {"beta1": self.beta1, "beta2": self.beta2, "epsilon": self.epsilon}
        return {**numbers, "bias_correction": int(self.bias_correction)}

    def bounds(self) -> dict[str, float]:
        """The bounds that were given, as arguments for an operator."""
        both = {"lower_bound": self.lower_bound, "upper_bound": self.upper_bound}
        return {name: bound for name, bound in both.items() if bound is not None}


class Tensor(NamedTuple):
    """One parameter with its states, of one shape, float32 but for a float16 weight; `mean` and `var` may be
    bfloat16, as bytes (MomentType).

    `master` is `weight` itself where that is float32. `decayed` and `adapted` say whether weight decay and
    the ratio ||w|| / ||u|| apply to it. Muon updates those without `var`.
    """

    weight: mx.nd.NDArray
    master: mx.nd.NDArray
    mean: mx.nd.NDArray
    var: mx.nd.NDArray | None
    decayed: bool
    adapted: bool


def is_excluded(name: str) -> bool:
    """Whether neither weight decay nor layer adaptation applies: biases, LayerNorm's gains and offsets."""
    return name.endswith(("bias", "beta", "gamma"))


class Optimizer:
    """Updates a fixed list of weights in place.

    Args:
        kind: "lamb", "bertadam" (Adam with decoupled decay), "adamw" (the same with bias correction), or
            "muon", which is "adamw" but for the matrices of layers.
        names: one unique name per weight; `is_excluded` decides by it.
        weights: float32 or float16 NDArrays on one device, already initialized (and broadcast): the float32
            master copies of float16 weights are taken here. The moments are zeros.
        rule: the numbers in the formulas above; bias correction (off by default) and bounds are LAMB's alone.
        native: use the fused operators for float32 weights on the CPU; `load_operators` has returned True.
        moments: their type (default: float32); another one needs the fused operators.
    """

    def __init__(
        self,
        kind: str,
        names: Sequence[str],
        weights: Sequence[mx.nd.NDArray],
        rule: Rule | None = None,
        native: bool = False,
        moments: MomentType | None = None,
    ):
        rule = rule or Rule()
        self._kind = kind
        self._rule = rule._replace(bias_correction=True) if kind in ("adamw", "muon") else rule
        self.native = native and all(map(_is_native, weights))
        self.moments = moments or MomentType()
        self.t = 0  # updates made; skipped steps do not count
        self._names = list(names)
        self._tensors = [
            Tensor(
                weight=weight,
                master=weight if weight.dtype == np.float32 else weight.astype(np.float32),
                mean=self.moments.zeros(weight.shape, weight.context),
                var=self.moments.zeros(weight.shape, weight.context)
                if VAR in self.moments_of(name, weight.shape)
                else None,
                decayed=not is_excluded(name),
                adapted=kind == "lamb" and not is_excluded(name),
            )
            for name, weight in zip(names, weights)
        ]
        self._packed: list[mx.nd.NDArray] = []  # copies of the weights that updates write too
        self._matrices = [i for i, tensor in enumerate(self._tensors) if tensor.var is None]  # Muon's
        self._others = [i for i, tensor in enumerate(self._tensors) if tensor.var is not None]
        if self.native:
            others = [self._tensors[i] for i in self._others]
            self._attributes: dict[str, Any] = {
                "num_tensors": len(others),
                "decayed": "".join("01"[tensor.decayed] for tensor in others),
                "adapted": "".join("01"[tensor.adapted] for tensor in others),
                "weight_decay": self._rule.weight_decay,
                "state": self.moments.dtype,
                "seed": self.moments.seed,
                **self._rule.of_moments(),
                **self._rule.bounds(),
            }
            return
        context = weights[0].context
        scratch = mx.nd.zeros((max(weight.size for weight in weights),), context)
        self._zero = mx.nd.zeros((1,), context)
        self._work = []  # of each tensor: itself, u in the shared buffer, and what its norms are taken of
        for tensor in self._tensors:
            u = scratch[: tensor.weight.size]
            self._work.append((tensor, u.reshape(tensor.weight.shape), _pieces(tensor.master), _pieces(u)))

    def pack(self, copies: Mapping[tuple[str, ...], mx.nd.NDArray], dtype: str) -> bool:
        """Has each `step` from now on write these copies anew, as bert_pack does, while the weights are in
        the cache. Copies of weights that are not updated here are left alone.

        Args:
            copies: by the names of the weights below each other in one.
            dtype: "float32", "bfloat16" or "bfloat16x3", as for bert_pack.

        Returns:
            whether it does so: False without the fused operators, for Muon, or where a copy has some
            weights of this optimizer and others.

        Raises:
            ValueError: it writes other copies already, which would no longer be kept.
        """
        numbers = {name: number for number, name in enumerate(self._names)}
        groups = {names: [numbers[name] for name in names if name in numbers] for names in copies}
        if not self.native or self._matrices:
            return False
        if self._packed:
            raise ValueError("the copies of another network are packed by this optimizer's updates")
        if any(0 < len(group) < len(names) for names, group in groups.items()):
            return False
        updated = [names for names, group in groups.items() if group]
        if updated:
            self._packed = [copies[names] for names in updated]
            numbers_of = ("+".join(map(str, groups[names])) for names in updated)
            self._attributes.update(packed=",".join(numbers_of), packed_dtype=dtype)
        return True

    def step(self, gradients: Sequence[mx.nd.NDArray], lr: float, rescale: float = 1.0) -> None:
        """Queue one update of all weights; nothing waits for the device.

        `gradients`: in the order of the weights, of the weights' shapes and dtypes, unchanged by the call.
        `rescale` multiplies them on the way (`clip_factor` gives it), which saves a pass over the memory.
        """
        self.t += 1
        rule = self._rule
        if self.native:
            if self._others:
                arrays = self._arrays(self._others, gradients)
                variances = [self._tensors[i].var for i in self._others]
                mx.nd.bert_lamb(
                    *arrays, *variances, *self._packed, t=self.t, lr=lr, rescale=rescale, **self._attributes
                )
            if self._matrices:
                mx.nd.bert_muon(
                    *self._arrays(self._matrices, gradients), num_matrices=len(self._matrices),
                    lr=lr, rescale=rescale, weight_decay=rule.weight_decay,
                    momentum=muon.MOMENTUM, factor=muon.FACTOR,
                )  # fmt: skip
            return
        of_moments = rule.of_moments()
        for (tensor, update, master_pieces, update_pieces), gradient in zip(self._work, gradients):
            by_muon = tensor.var is None
            multi_precision = tensor.master is not tensor.weight
            if multi_precision:
                gradient = mx.nd.cast(gradient, dtype="float32", out=None if by_muon else update)
            if by_muon:
                numbers = muon.Numbers(lr, rescale, rule.weight_decay)
                muon.update(tensor.master, tensor.mean, update, gradient, numbers)
            else:
                mx.nd.lamb_update_phase1(
                    tensor.master, gradient, tensor.mean, tensor.var, t=self.t, rescale_grad=rescale,
                    wd=rule.weight_decay if tensor.decayed else 0.0, **of_moments, out=update,
                )  # fmt: skip
                # Phase 2 takes ratio 1 where a norm is zero.
                norms, bounds = (self._zero, self._zero), {}
                if tensor.adapted:
                    norms, bounds = (_norm(master_pieces), _norm(update_pieces)), rule.bounds()
                mx.nd.lamb_update_phase2(tensor.master, update, *norms, lr=lr, out=tensor.master, **bounds)
            if multi_precision:
                mx.nd.cast(tensor.master, dtype="float16", out=tensor.weight)

    def _arrays(self, numbers: Sequence[int], gradients: Sequence[mx.nd.NDArray]) -> list[mx.nd.NDArray]:
        """Weights, gradients and means of the tensors of these numbers."""
        tensors = [self._tensors[i] for i in numbers]
        weights, means = [each.weight for each in tensors], [each.mean for each in tensors]
        return [*weights, *(gradients[i] for i in numbers), *means]

    def moments_of(self, name: str, shape: Sequence[int]) -> tuple[str, ...]:
        """The ends of the names of the moments of a parameter, which need not be one of this optimizer's:
        Muon's have no variance."""
        return (MEAN,) if self._kind == "muon" and muon.takes(name, shape) else (MEAN, VAR)

    @property
    def has_masters(self) -> bool:
        """Whether weights are float16, and their float32 masters are kept here."""
        return any(tensor.master is not tensor.weight for tensor in self._tensors)

    def state_arrays(self) -> dict[str, mx.nd.NDArray]:
        """The live arrays by name: `<param>.mean`, `<param>.var` where there is one and, for float16,
        `<param>.master`. Moments in bfloat16 are uint8, with an axis of 2 more."""
        arrays = {}
        for name, tensor in zip(self._names, self._tensors):
            arrays[name + MEAN] = tensor.mean
            if tensor.var is not None:
                arrays[name + VAR] = tensor.var
            if tensor.master is not tensor.weight:
                arrays[name + MASTER] = tensor.master
        return arrays

    def state_views(self) -> dict[str, Any]:
        """The content of `state`, uncopied, for a checkpoint, which copies one array at a time."""
        arrays: dict[str, Any] = self.state_arrays()
        if self.moments.dtype == BFLOAT:
            arrays = {name: Bfloat16Moment(array) for name, array in arrays.items()}
        return {T: np.array(self.t, dtype=np.int64), **arrays}

    def state(self) -> dict[str, np.ndarray]:
        """Copies of all states, in their type (float32, or BFLOAT16 of bert.weights.tensors), and `t` (int64,
        shape ())."""
        views = self.state_views()
        return {name: each if name == T else each.asnumpy() for name, each in views.items()}

    def restore(self, state: Mapping[str, np.ndarray], keeps: bool = True) -> None:
        """Continues from a `state`, which may load lazily; float16 weights are set from their masters.
        Moments of the other type are converted.

        `keeps`: False: only the float32 masters of float16 weights are taken, and where it has none, as that
        of a float32 run, they stay as they are.

        Raises:
            InputError: names, shapes or dtypes are not those of this optimizer; nothing has been changed
            then.
        """
        weights = dict(zip(self._names, (tensor.weight.shape for tensor in self._tensors)))
        arrays = self.state_arrays()
        shapes = {name: weights[parameter_of(name)] for name in arrays}
        names, self.t = to_take(state, shapes, keeps, self.t)
        for name in names:
            arrays[name][:] = content_of(name, state[name], self.moments.dtype)
        if keeps:
            self.set_from_masters()

    def set_from_masters(self) -> None:
        """Sets float16 weights from their masters."""
        for tensor in self._tensors:
            if tensor.master is not tensor.weight:
                tensor.weight[:] = tensor.master.astype(np.float16)


def global_norm(gradients: Sequence[mx.nd.NDArray], native: bool = False) -> float:
    """L2 norm over all elements of all gradients; reading it waits for the device, once.

    Sums are at least float32 whatever the gradients' dtype. A NaN or an infinity in any gradient gives a
    non-finite norm. `native`: as for `Optimizer`.
    """
    return float(queued_norm(gradients, native).asscalar())


def queued_norm(gradients: Sequence[mx.nd.NDArray], native: bool = False) -> mx.nd.NDArray:
    """`global_norm`, shape (1,) on the device; nothing waits for it."""
    if native and _is_native(gradients[0]):  # sums are float64: only a norm beyond float32 becomes infinite
        return mx.nd.bert_global_norm(*gradients, num_tensors=len(gradients))
    in_float32 = (each if each.dtype == np.float32 else each.astype(np.float32) for each in gradients)
    return _norm([piece for each in in_float32 for piece in _pieces(each)])


def clip_factor(norm: float, clip_norm: float, scale: float = 1.0) -> float:
    """The `rescale` for `Optimizer.step`: takes the scale out and clips the global norm.

    Args:
        norm: `global_norm` of the gradients as they are, that is, still multiplied by `scale`; finite.
        clip_norm: the greatest norm the gradient may have without the scale; 0 for no limit.
        scale: what the gradients were multiplied with, such as the loss scale.

    Returns:
        min(1, clip_norm / (norm / scale)) / scale
    """
    return 1.0 / scale if clip_norm == 0 else 1.0 / max(scale, norm / clip_norm)


def _is_native(array: mx.nd.NDArray) -> bool:
    """Whether the native operators can work on this array."""
    return array.dtype == np.float32 and array.context.device_type == "cpu"


def _pieces(array: mx.nd.NDArray) -> list[mx.nd.NDArray]:
    """Views of the array's elements in one dimension, at most PIECE in each."""
    flat = array.reshape((-1,))
    if flat.size <= PIECE:
        return [flat]
    return [flat[start : start + PIECE] for start in range(0, flat.size, PIECE)]


def _norm(pieces: Sequence[mx.nd.NDArray]) -> mx.nd.NDArray:
    squares = [mx.nd.dot(piece, piece) for piece in pieces]
    return mx.nd.sqrt(squares[0] if len(squares) == 1 else mx.nd.add_n(*squares))
