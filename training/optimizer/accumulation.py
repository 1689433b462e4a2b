"""Sums of the gradients of a step's micro-batches."""

from __future__ import annotations

from typing import Protocol, Sequence

import mxnet as mx


class Accumulation(Protocol):
    """`arrays`: the step's gradients, in the order of the parameters, after the last `after_backward`."""

    arrays: list[mx.nd.NDArray]

    def begin(self) -> None:
        """To be called before the first micro-batch of a step."""

    def after_backward(self) -> None:
        """To be called after the backward pass of each micro-batch."""


def make_accumulation(
    parameters: Sequence[mx.gluon.Parameter], device: mx.Context, micro_batches: int, adds_in_backward: bool
) -> Accumulation:
    """The cheapest that is right. `adds_in_backward`: whether the network heeds grad_req "add"."""
    if micro_batches == 1:
        return SingleBatch(parameters, device)
    return AddedByBackward(parameters, device) if adds_in_backward else AddedAfterwards(parameters, device)


class SingleBatch:
    """One micro-batch a step: its gradients are the step's."""

    def __init__(self, parameters: Sequence[mx.gluon.Parameter], device: mx.Context):
        self.arrays = _gradients(parameters, device, "write")

    def begin(self) -> None:
        pass

    def after_backward(self) -> None:
        pass


class AddedByBackward:
    """The backward pass adds to the gradients' arrays; it costs MXNet's operators no memory and no time."""

    def __init__(self, parameters: Sequence[mx.gluon.Parameter], device: mx.Context):
        self._parameters = list(parameters)
        self.arrays = _gradients(parameters, device, "add")

    def begin(self) -> None:
        for parameter in self._parameters:
            parameter.zero_grad()

    def after_backward(self) -> None:
        pass


class AddedAfterwards:
    """The sums are arrays of their own: MXNet does not tell extension operators to add."""

    def __init__(self, parameters: Sequence[mx.gluon.Parameter], device: mx.Context):
        self._gradients = _gradients(parameters, device, "write")
        self.arrays = [mx.nd.zeros_like(gradient) for gradient in self._gradients]
        self._empty = True

    def begin(self) -> None:
        self._empty = True

    def after_backward(self) -> None:
        for total, gradient in zip(self.arrays, self._gradients):
            if self._empty:
                gradient.copyto(total)
            else:
                total += gradient
        self._empty = False


def _gradients(
    parameters: Sequence[mx.gluon.Parameter], device: mx.Context, grad_req: str
) -> list[mx.nd.NDArray]:
    for parameter in parameters:
        parameter.grad_req = grad_req
    return [parameter.grad(device) for parameter in parameters]
