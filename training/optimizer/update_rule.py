"""The settings of an optimizer that mxnet_update.py and native_update.py share; both compute the same.

Each offers a class made from a `Rule` and a list of `Tensor`, with one method
`update(gradients, t, lr, rescale)`, which queues update number `t` (from 1), and a function
`norm(gradients)`, the L2 norm over all elements as an NDArray (1,), float32, not waited for.
"""

from __future__ import annotations

from typing import NamedTuple

import mxnet as mx


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
    bfloat16, as bytes (training/optimizer/moments.py).

    `master` is `weight` itself where that is float32. `decayed` and `adapted` say whether weight decay and
    the ratio ||w|| / ||u|| apply to it.
    """

    weight: mx.nd.NDArray
    master: mx.nd.NDArray
    mean: mx.nd.NDArray
    var: mx.nd.NDArray
    decayed: bool
    adapted: bool
