"""Arrays as whole numbers, so that a sum can carry any bit pattern.

The sum of one rank's bits and the others' zeros is that rank's bits: NaN with its payload and -0.0 included,
which floating-point sums do not keep.
"""

from __future__ import annotations

import ctypes
from typing import Any, Sequence

import mxnet as mx
import numpy as np


class Bits:
    """The bits of arrays of one dtype, as one array of int32 (uint8 where their bytes are no multiple of 4).

    shared: `sum` is the memory of the only array, which is on a CPU. Otherwise it is a copy, and the arrays
    have the result after `write_back`.
    """

    def __init__(self, arrays: Sequence[mx.nd.NDArray], shared: bool) -> None:
        self._arrays = list(arrays)
        self._shared = shared
        if self._shared:
            self._bits = memory_of(arrays[0])
        else:
            self._bits = np.concatenate([array.asnumpy().reshape(-1).view(np.uint8) for array in arrays])
        if self._bits.nbytes % 4 == 0:
            self._bits = self._bits.view(np.int32)
        # The same memory, as a view: MXNet marks what it is given read-only.
        self.sum = mx.nd.from_numpy(self._bits.view())

    def clear(self) -> None:
        """Sets all bits to zero."""
        self._bits[...] = 0

    def write_back(self) -> None:
        """Gives the arrays the bits that `sum` has now. It must have been waited for."""
        if self._shared:
            return
        start = 0
        for array in self._arrays:
            size = array.size * np.dtype(array.dtype).itemsize
            part = self._bits.view(np.uint8)[start : start + size]
            array[:] = mx.nd.array(part.view(array.dtype).reshape(array.shape), array.context, array.dtype)
            start += size


def bits_of(groups: Sequence[Sequence[mx.nd.NDArray]]) -> list[Bits]:
    """The bits of each group of arrays, without copies where possible.

    Memory that occurs twice, as that of tied parameters does, is shared once and copied for the others: two
    sums must not work on it at the same time.
    """
    taken: list[tuple[int, int]] = []
    result = []
    for group in groups:
        shared = len(group) == 1 and group[0].context.device_type == "cpu"
        if shared:
            memory = memory_of(group[0])
            begin, end = memory.ctypes.data, memory.ctypes.data + memory.nbytes
            shared = all(end <= other_begin or other_end <= begin for other_begin, other_end in taken)
            taken.append((begin, end))
        result.append(Bits(group, shared))
    return result


def memory_of(array: mx.nd.NDArray, waits: bool = True) -> Any:
    """Returns the bytes of a CPU array, not copied. `waits`: until no queued operator reads or writes it."""
    if waits:
        mx.base.check_call(mx.base._LIB.MXNDArrayWaitToWrite(array.handle))
    address = ctypes.c_void_p()
    mx.base.check_call(mx.base._LIB.MXNDArrayGetData(array.handle, ctypes.byref(address)))
    size = array.size * np.dtype(array.dtype).itemsize
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address.value))
