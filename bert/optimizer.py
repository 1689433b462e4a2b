"""LAMB, and the two Adam variants it is compared with, on MXNet's own operators.

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

MXNet has these as lamb_update_phase1 (up to u) and lamb_update_phase2 (the last line). Three things are not
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

import math
from typing import Any, Mapping, NamedTuple, Sequence

import mxnet as mx
import numpy as np

from data.errors import InputError

KINDS = ("lamb", "bertadam", "adamw")
PIECE = 1 << 18  # elements in one dot product: long enough to be fast, short enough for float32 sums
T = "t"  # name of the count of updates in a state


def is_excluded(name: str) -> bool:
    """Whether neither weight decay nor layer adaptation applies: biases, LayerNorm's gains and offsets."""
    return name.endswith(("bias", "beta", "gamma"))


class _Tensor(NamedTuple):
    """One parameter with what its update needs. `master` is `weight` itself where that is float32."""

    weight: mx.nd.NDArray
    master: mx.nd.NDArray
    mean: mx.nd.NDArray
    var: mx.nd.NDArray
    update: mx.nd.NDArray
    master_pieces: list[mx.nd.NDArray]
    update_pieces: list[mx.nd.NDArray]
    decay: float
    adapt: bool


class Optimizer:
    """Updates a fixed list of weights in place.

    Args:
        kind: "lamb", "bertadam" (Adam with decoupled decay) or "adamw" (the same with bias correction).
        names: one unique name per weight; `is_excluded` decides by it.
        weights: float32 or float16 NDArrays on one device, already initialized (and broadcast): the float32
            master copies of float16 weights are taken here. The moments are float32 zeros.
        weight_decay, beta1, beta2, epsilon: as in the formulas above (epsilon is outside the root).
        bias_correction: for LAMB only, off by default.
        lower_bound, upper_bound: for LAMB only, limits of ||w|| in the ratio (the paper's phi).

    Raises:
        ValueError: an argument outside its range.
    """

    def __init__(
        self,
        kind: str,
        names: Sequence[str],
        weights: Sequence[mx.nd.NDArray],
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-6,
        weight_decay: float = 0.01,
        bias_correction: bool = False,
        lower_bound: float | None = None,
        upper_bound: float | None = None,
    ):
        if kind not in KINDS:
            raise ValueError(f"unknown optimizer {kind!r}, choose one of {', '.join(KINDS)}")
        if kind != "lamb" and (bias_correction or lower_bound is not None or upper_bound is not None):
            raise ValueError(f"bias_correction and bounds are options of lamb, not of {kind}")
        if not (0 <= beta1 < 1 and 0 <= beta2 < 1 and epsilon > 0 and weight_decay >= 0):
            raise ValueError(
                f"beta1={beta1}, beta2={beta2}, epsilon={epsilon} or weight_decay={weight_decay} is wrong"
            )
        bounds = [bound for bound in (lower_bound, upper_bound) if bound is not None]
        if not all(0 < bound < math.inf for bound in bounds) or bounds != sorted(bounds):
            raise ValueError(f"need 0 < lower_bound <= upper_bound, not {lower_bound}, {upper_bound}")
        if not names or len(names) != len(weights) or len(set(names)) != len(names):
            raise ValueError(f"need one unique name per weight: {len(names)} names, {len(weights)} weights")
        if len({weight.context for weight in weights}) != 1:
            raise ValueError("all weights must be on one device")
        for name, weight in zip(names, weights):
            if weight.dtype not in (np.float32, np.float16):
                raise ValueError(
                    f"{name} is {np.dtype(weight.dtype).name}; float32 and float16 can be trained"
                )

        self.kind = kind
        self.t = 0  # updates made; skipped steps do not count
        self._names = list(names)
        self._phase1 = {
            "beta1": beta1,
            "beta2": beta2,
            "epsilon": epsilon,
            "bias_correction": bias_correction or kind == "adamw",
        }
        self._bounds = {"lower_bound": lower_bound, "upper_bound": upper_bound}
        self._bounds = {name: bound for name, bound in self._bounds.items() if bound is not None}
        context = weights[0].context
        self._zero = mx.nd.zeros((1,), context)
        scratch = mx.nd.zeros((max(weight.size for weight in weights),), context)
        self._tensors = [
            self._tensor(name, weight, scratch, weight_decay) for name, weight in zip(names, weights)
        ]

    def _tensor(
        self, name: str, weight: mx.nd.NDArray, scratch: mx.nd.NDArray, weight_decay: float
    ) -> _Tensor:
        master = weight if weight.dtype == np.float32 else weight.astype(np.float32)
        flat_update = scratch[: weight.size]
        excluded = is_excluded(name)
        return _Tensor(
            weight=weight,
            master=master,
            mean=mx.nd.zeros(weight.shape, weight.context),
            var=mx.nd.zeros(weight.shape, weight.context),
            update=flat_update.reshape(weight.shape),
            master_pieces=_pieces(master),
            update_pieces=_pieces(flat_update),
            decay=0.0 if excluded else weight_decay,
            adapt=self.kind == "lamb" and not excluded,
        )

    def step(self, gradients: Sequence[mx.nd.NDArray], lr: float, rescale: float = 1.0) -> None:
        """Queue one update of all weights; nothing waits for the device.

        `gradients`: in the order of the weights, of the weights' shapes and dtypes, unchanged by the call.
        `rescale` multiplies them on the way (`clip_factor` gives it), which saves a pass over the memory.
        ValueError for gradients that do not fit the weights, before anything is changed.
        """
        if len(gradients) != len(self._tensors):
            raise ValueError(f"{len(gradients)} gradients for {len(self._tensors)} weights")
        for name, tensor, gradient in zip(self._names, self._tensors, gradients):
            if gradient.shape != tensor.weight.shape or gradient.dtype != tensor.weight.dtype:
                raise ValueError(f"the gradient of {name} does not have the weight's shape and dtype")
        self.t += 1
        for tensor, gradient in zip(self._tensors, gradients):
            self._update(tensor, gradient, lr, rescale)

    def _update(self, tensor: _Tensor, gradient: mx.nd.NDArray, lr: float, rescale: float) -> None:
        multi_precision = tensor.master is not tensor.weight
        if multi_precision:
            gradient = mx.nd.cast(gradient, dtype="float32", out=tensor.update)
        mx.nd.lamb_update_phase1(
            tensor.master,
            gradient,
            tensor.mean,
            tensor.var,
            t=self.t,
            wd=tensor.decay,
            rescale_grad=rescale,
            out=tensor.update,
            **self._phase1,
        )
        # Phase 2 takes ratio 1 where a norm is zero.
        norms, bounds = (self._zero, self._zero), {}
        if tensor.adapt:
            norms = (_norm(tensor.master_pieces), _norm(tensor.update_pieces))
            bounds = self._bounds
        mx.nd.lamb_update_phase2(tensor.master, tensor.update, *norms, lr=lr, out=tensor.master, **bounds)
        if multi_precision:
            mx.nd.cast(tensor.master, dtype="float16", out=tensor.weight)

    def state_arrays(self) -> dict[str, mx.nd.NDArray]:
        """The live arrays by name: `<param>.mean`, `<param>.var` and, for float16, `<param>.master`."""
        arrays = {}
        for name, tensor in zip(self._names, self._tensors):
            arrays[f"{name}.mean"] = tensor.mean
            arrays[f"{name}.var"] = tensor.var
            if tensor.master is not tensor.weight:
                arrays[f"{name}.master"] = tensor.master
        return arrays

    def state_views(self) -> dict[str, Any]:
        """What `state` holds, uncopied, for a checkpoint, which copies one array at a time."""
        return {T: np.array(self.t, dtype=np.int64), **self.state_arrays()}

    def state(self) -> dict[str, np.ndarray]:
        """Copies of the `state_arrays` (float32), and `t` (int64, shape ())."""
        arrays = {name: array.asnumpy() for name, array in self.state_arrays().items()}
        return {T: np.array(self.t, dtype=np.int64), **arrays}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from a `state`; float16 weights are set from their masters. `state` may load lazily.

        Raises:
            InputError: names, shapes or dtypes are not those of this optimizer; nothing has been changed
            then.
        """
        arrays = self.state_arrays()
        _check_names(set(arrays) | {T}, set(state))
        t = state[T]
        if t.shape != () or t.dtype != np.int64 or t < 0:
            raise InputError(f"the optimizer states' {T} must be one int64 of at least 0")
        for name, array in arrays.items():
            value = state[name]
            if value.shape != array.shape or value.dtype != np.float32:
                raise InputError(
                    f"the optimizer states' {name} is {value.dtype} {value.shape}, "
                    f"this run needs float32 {array.shape}; use the --model of the run that saved it"
                )
        for name, array in arrays.items():
            array[:] = state[name]
        for tensor in self._tensors:
            if tensor.master is not tensor.weight:
                tensor.weight[:] = tensor.master.astype(np.float16)
        self.t = int(t)


def global_norm(gradients: Sequence[mx.nd.NDArray]) -> float:
    """L2 norm over all elements of all gradients; reading it waits for the device, once.

    Sums are float32 whatever the gradients' dtype. A NaN or an infinity in any gradient gives a non-finite
    norm.
    """
    pieces: list[mx.nd.NDArray] = []
    for gradient in gradients:
        pieces += _pieces(gradient if gradient.dtype == np.float32 else gradient.astype(np.float32))
    return float(_norm(pieces).asscalar())


def clip_factor(norm: float, clip_norm: float, scale: float = 1.0) -> float:
    """The `rescale` for `Optimizer.step`: takes the scale out and clips the global norm.

    Args:
        norm: `global_norm` of the gradients as they are, that is, still multiplied by `scale`.
        clip_norm: the greatest norm the gradient may have without the scale; 0 for no limit.
        scale: what the gradients were multiplied with, such as the loss scale.

    Returns:
        min(1, clip_norm / (norm / scale)) / scale

    Raises:
        ValueError: the norm is not finite (such a step must be skipped), or another argument is out of range.
    """
    if not math.isfinite(norm) or norm < 0 or not 0 < scale < math.inf or not clip_norm >= 0:
        raise ValueError(f"no rescaling for norm {norm}, clip_norm {clip_norm}, scale {scale}")
    return 1.0 / scale if clip_norm == 0 else 1.0 / max(scale, norm / clip_norm)


def _pieces(array: mx.nd.NDArray) -> list[mx.nd.NDArray]:
    """Views of the array's elements in one dimension, at most PIECE in each."""
    flat = array.reshape((-1,))
    if flat.size <= PIECE:
        return [flat]
    return [flat[start : start + PIECE] for start in range(0, flat.size, PIECE)]


def _norm(pieces: Sequence[mx.nd.NDArray]) -> mx.nd.NDArray:
    squares = [mx.nd.dot(piece, piece) for piece in pieces]
    return mx.nd.sqrt(squares[0] if len(squares) == 1 else mx.nd.add_n(*squares))


def _check_names(expected: set, found: set) -> None:
    for relation, names in (("lack", expected - found), ("also hold", found - expected)):
        if names:
            shown = ", ".join(sorted(names)[:3]) + (", ..." if len(names) > 3 else "")
            raise InputError(
                f"the optimizer states {relation} {len(names)} arrays ({shown}); "
                "use the --model and --dtype of the run that saved them"
            )
