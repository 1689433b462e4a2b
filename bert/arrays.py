"""Arrays of numbers that Python has made, for a network's inputs."""

from __future__ import annotations

import ctypes

import mxnet as mx
import numpy as np


def on_device(values: np.ndarray, device: mx.Context) -> mx.nd.NDArray:
    """An array of these values, of their shape (at least one axis) and dtype. On a CPU nothing is waited for.

    `mx.nd.array` copies behind all that is queued before: behind the optimizer's update, while the next step
    could be queued. An array that nothing else knows yet can be written at once.
    """
    values = np.ascontiguousarray(values)
    array = mx.nd.empty(values.shape, mx.cpu(), values.dtype)
    memory = ctypes.c_void_p()
    mx.base.check_call(mx.base._LIB.MXNDArrayGetData(array.handle, ctypes.byref(memory)))
    ctypes.memmove(memory, values.ctypes.data, values.nbytes)
    return array.as_in_context(device)
