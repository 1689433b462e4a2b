"""The optimizer's update and the global norm by MXNet's own operators, on any device.

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

from typing import NamedTuple, Sequence

import mxnet as mx
import numpy as np

from training.optimizer.update_rule import Rule, Tensor

PIECE = 1 << 18  # elements in one dot product: long enough to be fast, short enough for float32 sums


class _Work(NamedTuple):
    """Views for one tensor: u in the shared buffer, and what its norms are taken of."""

    update: mx.nd.NDArray
    master_pieces: list[mx.nd.NDArray]
    update_pieces: list[mx.nd.NDArray]


class MXNetUpdate:
    """See training/optimizer/update_rule.py. The tensors are on one device."""

    def __init__(self, rule: Rule, tensors: Sequence[Tensor]):
        context = tensors[0].weight.context
        scratch = mx.nd.zeros((max(tensor.weight.size for tensor in tensors),), context)
        self._zero = mx.nd.zeros((1,), context)
        self._rule = rule
        self._tensors = list(tensors)
        self._work = [
            _Work(
                scratch[: tensor.weight.size].reshape(tensor.weight.shape),
                _pieces(tensor.master),
                _pieces(scratch[: tensor.weight.size]),
            )
            for tensor in tensors
        ]

    def update(self, gradients: Sequence[mx.nd.NDArray], t: int, lr: float, rescale: float) -> None:
        for tensor, work, gradient in zip(self._tensors, self._work, gradients):
            self._update_one(tensor, work, gradient, t, lr, rescale)

    def _update_one(
        self, tensor: Tensor, work: _Work, gradient: mx.nd.NDArray, t: int, lr: float, rescale: float
    ) -> None:
        multi_precision = tensor.master is not tensor.weight
        if multi_precision:
            gradient = mx.nd.cast(gradient, dtype="float32", out=work.update)
        mx.nd.lamb_update_phase1(
            tensor.master,
            gradient,
            tensor.mean,
            tensor.var,
            t=t,
            beta1=self._rule.beta1,
            beta2=self._rule.beta2,
            epsilon=self._rule.epsilon,
            bias_correction=self._rule.bias_correction,
            wd=self._rule.weight_decay if tensor.decayed else 0.0,
            rescale_grad=rescale,
            out=work.update,
        )
        # Phase 2 takes ratio 1 where a norm is zero.
        norms, bounds = (self._zero, self._zero), {}
        if tensor.adapted:
            norms = (_norm(work.master_pieces), _norm(work.update_pieces))
            bounds = self._rule.bounds()
        mx.nd.lamb_update_phase2(tensor.master, work.update, *norms, lr=lr, out=tensor.master, **bounds)
        if multi_precision:
            mx.nd.cast(tensor.master, dtype="float16", out=tensor.weight)


def norm(gradients: Sequence[mx.nd.NDArray]) -> mx.nd.NDArray:
    """See training/optimizer/update_rule.py. Sums are float32 whatever the gradients' dtype."""
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
