"""Sums of the gradients of a step's micro-batches."""

from __future__ import annotations

from typing import Sequence

import mxnet as mx
import numpy as np

from comm.buckets import make_buckets


class Accumulation:
    """The sums, in the cheapest way that is right.

    One micro-batch a step: its gradients are the step's. Of several the backward pass adds to the gradients'
    arrays where the network heeds grad_req "add" (`adds_in_backward`), which costs MXNet's operators no
    memory and no time. Else the sums are arrays of their own: MXNet does not tell extension operators to add.

    `arrays`: the step's gradients, in the order of the parameters, after the last `after_backward`.
    `exchanged`: the same as they are averaged over ranks. Neighbours up to `together` bytes are views of one
    array, so that nothing is copied for that; MXNet takes a write to one of them for a write to all.
    """

    def __init__(
        self,
        parameters: Sequence[mx.gluon.Parameter],
        device: mx.Context,
        micro_batches: int,
        adds_in_backward: bool,
        together: int = 0,
    ):
        several = micro_batches > 1
        self._added_to = list(parameters) if several and adds_in_backward else []
        for parameter in parameters:
            parameter.grad_req = "add" if self._added_to else "write"
        gradients = [parameter.grad(device) for parameter in parameters]
        self._gradients = gradients[:0]
        if several and not adds_in_backward:
            self._gradients = gradients
            gradients = [mx.nd.zeros_like(each) for each in gradients]
        self.arrays, self.exchanged = _side_by_side(gradients, together)
        if not self._gradients:
            for parameter, before, array in zip(parameters, gradients, self.arrays):
                if array is not before:
                    parameter._grad = [array]  # as Parameter._init_grad does
                    mx.autograd.mark_variables([parameter.data(device)], [array], parameter.grad_req)
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


def _side_by_side(
    arrays: Sequence[mx.nd.NDArray], limit: int
) -> tuple[list[mx.nd.NDArray], list[mx.nd.NDArray]]:
    """Arrays of the same shapes, zeros, of which neighbours up to `limit` bytes are views of one; and these
    ones, those that have none among them."""
    views, whole = list(arrays), []
    sizes = [(each.dtype.__name__, each.size * np.dtype(each.dtype).itemsize) for each in arrays]
    for bucket in reversed(make_buckets(sizes, limit)):
        if len(bucket.indices) == 1:
            whole.append(arrays[bucket.indices[0]])
            continue
        own = [arrays[index] for index in bucket.indices]
        flat = mx.nd.zeros((sum(each.size for each in own),), ctx=own[0].context, dtype=bucket.dtype)
        whole.append(flat)
        start = 0
        for index, each in zip(bucket.indices, own):
            views[index] = flat[start : start + each.size].reshape(each.shape)
            start += each.size
    return views, whole
