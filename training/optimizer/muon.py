"""Muon: momentum whose singular values are made alike, for the matrices of the layers.

One step, for each matrix:

    m = MOMENTUM * m + rescale * gradient
    u = rescale * gradient + MOMENTUM * m                                         (Nesterov)
    w = w - lr * (weight_decay * w + FACTOR * sqrt(max(rows, columns)) * orthogonal(u))

where orthogonal(u) has the singular vectors of u, and about 1 in the place of each singular value (Jordan
et al. 2024, https://kellerjordan.github.io/posts/muon). FACTOR gives the update about the root mean square
that AdamW's has, so that one learning rate and weight decay serve both (Liu et al., arXiv:2502.16982: 0.2).
"""

from __future__ import annotations

import math
from typing import NamedTuple, Sequence

import mxnet as mx

MOMENTUM = 0.95
FACTOR = 0.3
COST = 8  # of an update, in those of AdamW for as many weights
_ITERATIONS, _COEFFICIENTS = 5, (3.4445, -4.7750, 2.0315)  # as in native/operators/muon.cc


class Numbers(NamedTuple):
    """The numbers of a step in the formulas above."""

    lr: float
    rescale: float
    weight_decay: float


def takes(name: str, shape: Sequence[int]) -> bool:
    """Whether Muon updates the parameter of this name and shape: a matrix inside of a layer. Embeddings,
    heads and what is no matrix are AdamW's."""
    return ".transformer_cells." in name and len(shape) == 2


def update(
    weight: mx.nd.NDArray, mean: mx.nd.NDArray, u: mx.nd.NDArray, gradient: mx.nd.NDArray, numbers: Numbers
) -> None:
    """Queues the update of a float32 matrix by MXNet's own operators. `u`: memory, not the gradient's."""
    # What this makes of weights that are zeros, at a rate of -1, is u.
    zeros, lr = mx.nd.zeros_like(weight), numbers.lr
    mx.nd.nag_mom_update(zeros, gradient, mean, lr=-1, momentum=MOMENTUM, rescale_grad=numbers.rescale, out=u)
    size = FACTOR * math.sqrt(max(weight.shape))
    mx.nd.sgd_update(weight, orthogonal(u), lr=lr, wd=numbers.weight_decay, rescale_grad=size, out=weight)


def orthogonal(x: mx.nd.NDArray) -> mx.nd.NDArray:
    """The matrix x, float32, with its singular values brought to 0.7 to 1.2, but for the smallest ones.

    Each iteration takes a singular value s to a s + b s^3 + c s^5 (Newton-Schulz, with Jordan's numbers).
    """
    flat = x.reshape((-1,))
    x = x / mx.nd.sqrt(mx.nd.dot(flat, flat) + 1e-30)
    tall = x.shape[0] > x.shape[1]
    a, b, c = _COEFFICIENTS
    for _ in range(_ITERATIONS):
        gram = mx.nd.dot(x, x, transpose_a=tall, transpose_b=not tall)
        polynomial = b * gram + c * mx.nd.dot(gram, gram)
        x = a * x + (mx.nd.dot(x, polynomial) if tall else mx.nd.dot(polynomial, x))
    return x
