"""Sums of the gradients of a step's micro-batches."""

from __future__ import annotations

from typing import Sequence

import mxnet as mx


class Accumulation:
    """The sums, in the cheapest way that is right.

    One micro-batch a step: its gradients are the step's. Of several the backward pass adds to the gradients'
    arrays where the network heeds grad_req "add" (`adds_in_backward`), which costs MXNet's operators no
    memory and no time. Else the sums are arrays of their own: MXNet does not tell extension operators to add.

    `arrays`: the step's gradients, in the order of the parameters, after the last `after_backward`.
    """

    def __init__(
        self,
        parameters: Sequence[mx.gluon.Parameter],
        device: mx.Context,
        micro_batches: int,
        adds_in_backward: bool,
    ):
        several = micro_batches > 1
        self._added_to = list(parameters) if several and adds_in_backward else []
        for parameter in parameters:
            parameter.grad_req = "add" if self._added_to else "write"
        gradients = [parameter.grad(device) for parameter in parameters]
        self.arrays, self._gradients = gradients, gradients[:0]
        if several and not adds_in_backward:
            self.arrays, self._gradients = [mx.nd.zeros_like(each) for each in gradients], gradients
        self._empty = True

    def begin(self) -> None:
        """To be called before the first micro-batch of a step."""
        self._empty = True
        for parameter in self._added_to:
            parameter.zero_grad()

    def after_backward(self) -> None:
        """To be called after the backward pass of each micro-batch."""
        for total, gradient in zip(self.arrays, self._gradients):
            if self._empty:
                gradient.copyto(total)
            else:
                total += gradient
        self._empty = False
