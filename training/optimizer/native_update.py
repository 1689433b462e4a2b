"""The optimizer's update and the global norm by the operators in native/operators, for float32 on the CPU.

One operator updates all tensors in one sweep over the memory; the adapted ones need a second look at weight,
mean and var. The moments may be bfloat16 (training/optimizer/moments.py). It is queued like every operator:
MXNet knows that it writes weights, means and vars, so that it begins after the backward pass, and the next
forward pass after it.
"""

from __future__ import annotations

from typing import Any, Sequence

import mxnet as mx
import numpy as np

from training.optimizer.moments import MomentType
from training.optimizer.update_rule import Rule, Tensor


def applies_to(arrays: Sequence[mx.nd.NDArray]) -> bool:
    """Whether these arrays can be worked on here."""
    return all(array.dtype == np.float32 and array.context.device_type == "cpu" for array in arrays)


class NativeUpdate:
    """See update_rule.py. `bert.operators.load_operators` has returned True before."""

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
            "decayed": _digits([tensor.decayed for tensor in tensors]),
            "adapted": _digits([tensor.adapted for tensor in tensors]),
            "state": moments.dtype,
            "seed": moments.seed,
            **rule.bounds(),
        }
        self._packed: list[mx.nd.NDArray] = []
        self._packing: dict[str, Any] = {}

    @property
    def packs(self) -> bool:
        """Whether updates write packed copies."""
        return bool(self._packed)

    def pack(self, groups: Sequence[Sequence[int]], copies: Sequence[mx.nd.NDArray], dtype: str) -> None:
        """See `Optimizer.pack`; `groups` has the weights' numbers."""
        self._packed = list(copies)
        names = ",".join("+".join(map(str, group)) for group in groups)
        self._packing = {"packed": names, "packed_dtype": dtype} if copies else {}

    def update(self, gradients: Sequence[mx.nd.NDArray], t: int, lr: float, rescale: float) -> None:
        mx.nd.bert_lamb(
            *self._weights, *gradients, *self._states, *self._packed,
            t=t, lr=lr, rescale=rescale, **self._attributes, **self._packing,
        )  # fmt: skip


def norm(gradients: Sequence[mx.nd.NDArray]) -> mx.nd.NDArray:
    """See update_rule.py. Sums are float64: only a norm beyond float32 becomes infinite."""
    return mx.nd.bert_global_norm(*gradients, num_tensors=len(gradients))


def _digits(flags: Sequence[bool]) -> str:
    return "".join(str(int(flag)) for flag in flags)
