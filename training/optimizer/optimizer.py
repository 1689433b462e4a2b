"""LAMB, and the two Adam variants it is compared with.

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
The arithmetic is done by the native update of training/optimizer/update.py where that is possible and wanted,
else by MXNet's; results agree within the rounding of float32.
"""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import mxnet as mx
import numpy as np

from base.errors import InputError
from training.optimizer.update import (
    BFLOAT,
    FLOAT32,
    Bfloat16Moment,
    MomentType,
    MXNetUpdate,
    NativeUpdate,
    Rule,
    Tensor,
    converted,
    is_native,
    mxnet_norm,
    native_norm,
)

_MASTER = ".master"
STATES = (".mean", ".var", _MASTER)  # ends of the names of a state's arrays
T = "t"  # name of the count of updates in a state


def is_excluded(name: str) -> bool:
    """Whether neither weight decay nor layer adaptation applies: biases, LayerNorm's gains and offsets."""
    return name.endswith(("bias", "beta", "gamma"))


class Optimizer:
    """Updates a fixed list of weights in place.

    Args:
        kind: "lamb", "bertadam" (Adam with decoupled decay) or "adamw" (the same with bias correction).
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
        self.native = native and all(map(is_native, weights))
        self.moments = moments or MomentType()
        self.t = 0  # updates made; skipped steps do not count
        self._names = list(names)
        self._tensors = [
            Tensor(
                weight=weight,
                master=weight if weight.dtype == np.float32 else weight.astype(np.float32),
                mean=self.moments.zeros(weight.shape, weight.context),
                var=self.moments.zeros(weight.shape, weight.context),
                decayed=not is_excluded(name),
                adapted=kind == "lamb" and not is_excluded(name),
            )
            for name, weight in zip(names, weights)
        ]
        if kind == "adamw":
            rule = rule._replace(bias_correction=True)
        self._update: NativeUpdate | MXNetUpdate
        if self.native:
            self._update = NativeUpdate(rule, self._tensors, self.moments)
        else:
            self._update = MXNetUpdate(rule, self._tensors)

    def pack(self, copies: Mapping[tuple[str, ...], mx.nd.NDArray], dtype: str) -> bool:
        """Has each `step` from now on write these copies anew, as bert_pack does, while the weights are in
        the cache. Copies of weights that are not updated here are left alone.

        Args:
            copies: by the names of the weights below each other in one.
            dtype: "float32", "bfloat16" or "bfloat16x3", as for bert_pack.

        Returns:
            whether it does so: False without the fused operators, or where a copy has some
            weights of this optimizer and others.

        Raises:
            ValueError: it writes other copies already, which would no longer be kept.
        """
        numbers = {name: number for number, name in enumerate(self._names)}
        groups = {names: [numbers[name] for name in names if name in numbers] for names in copies}
        if not isinstance(self._update, NativeUpdate):
            return False
        if self._update.packed:
            raise ValueError("the copies of another network are packed by this optimizer's updates")
        if any(0 < len(group) < len(names) for names, group in groups.items()):
            return False
        updated = [names for names, group in groups.items() if group]
        self._update.pack([groups[names] for names in updated], [copies[names] for names in updated], dtype)
        return True

    def step(self, gradients: Sequence[mx.nd.NDArray], lr: float, rescale: float = 1.0) -> None:
        """Queue one update of all weights; nothing waits for the device.

        `gradients`: in the order of the weights, of the weights' shapes and dtypes, unchanged by the call.
        `rescale` multiplies them on the way (`clip_factor` gives it), which saves a pass over the memory.
        """
        self.t += 1
        self._update.update(gradients, self.t, lr, rescale)

    @property
    def has_masters(self) -> bool:
        """Whether weights are float16, and their float32 masters are kept here."""
        return any(tensor.master is not tensor.weight for tensor in self._tensors)

    def state_arrays(self) -> dict[str, mx.nd.NDArray]:
        """The live arrays by name: `<param>.mean`, `<param>.var` and, for float16, `<param>.master`. Moments
        in bfloat16 are uint8, with an axis of 2 more."""
        arrays = {}
        for name, tensor in zip(self._names, self._tensors):
            arrays[f"{name}.mean"] = tensor.mean
            arrays[f"{name}.var"] = tensor.var
            if tensor.master is not tensor.weight:
                arrays[name + _MASTER] = tensor.master
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
        arrays = {name: each for name, each in self.state_arrays().items() if keeps or is_master(name, state)}
        if not keeps:
            state = {T: np.array(self.t), **{name: state[name] for name in arrays}}
        t = check_state(state, {name: weights[parameter_of(name)] for name in arrays})
        for name, array in arrays.items():
            array[:] = content_of(name, state[name], self.moments.dtype)
        self.t = t
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
    return (native_norm if native and is_native(gradients[0]) else mxnet_norm)(gradients)


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
                "use the --model and --dtype of the run that saved them"
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


def is_master(name: str, state: Mapping[str, np.ndarray]) -> bool:
    """Whether this is the name of a float16 weight's float32 master that a `state` has."""
    return name.endswith(_MASTER) and name in state


def content_of(name: str, value: np.ndarray, dtype: str) -> Any:
    """The content of a live state with moments of `dtype`, of its value in a checkpoint; None where that is
    of another type."""
    if name.endswith(_MASTER):
        return value if value.dtype == np.float32 else None
    return converted(value, dtype)


def parameter_of(state: str) -> str:
    """The name of the parameter that a state array belongs to; a parameter's name stays as it is."""
    return next((state[: -len(end)] for end in STATES if state.endswith(end)), state)
