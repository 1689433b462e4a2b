"""Averages that travel as float16: half the bytes, over any backend.

float16 has 11 significant bits, so a gradient loses 1 part in 2048 at most, as long as it is in range:

- Beyond 65504 it becomes inf. The mean is then inf on every rank, and the step is skipped.
- The inner communicator divides float16 by the number of ranks before it sums. What is then below 6.1e-5
  loses bits, and what is below 3e-8 vanishes: with N ranks, gradients below N times as much.

A loss scale moves gradients into the range. Runs in float16 have one, but their gradients are float16
already, and travel as they are. In float32 runs the scale is 1, and such small gradients do vanish.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Sequence

from comm.base import AVERAGE_DTYPES, Communicator, check_arrays
from comm.delegating import LEAST_BYTES, DelegatingCommunicator, is_small

if TYPE_CHECKING:
    from mxnet.nd import NDArray


class HalfCommunicator(DelegatingCommunicator):
    """`inner`, but float32 and float64 arrays are cast to float16, averaged, and cast back.

    The arrays of a call that have less than `least_bytes` together travel as they are.
    """

    def __init__(self, inner: Communicator, least_bytes: int = LEAST_BYTES) -> None:
        super().__init__(inner)
        self._mx: Any = importlib.import_module("mxnet")
        self._least_bytes = least_bytes
        # The same buffers for the same sequence of arrays: communicators know arrays by their identity.
        self._buffers: dict[tuple[Any, ...], list[NDArray | None]] = {}

    def average(self, arrays: Sequence[NDArray]) -> None:
        check_arrays(arrays, AVERAGE_DTYPES)
        if self.size == 1 or is_small(arrays, self._least_bytes):
            self._inner.average(arrays)
            return
        buffers = self._buffers_for(arrays)
        halves = []
        for array, buffer in zip(arrays, buffers):
            if array.dtype.__name__ == "float16":
                halves.append(array)
            else:
                halves.append(self._mx.nd.cast(array, dtype="float16", out=buffer))
        self._inner.average(halves)
        for array, half in zip(arrays, halves):
            if half is not array:
                self._mx.nd.cast(half, dtype=array.dtype, out=array)

    def _buffers_for(self, arrays: Sequence[NDArray]) -> list[NDArray | None]:
        key = tuple((array.dtype.__name__, array.shape, str(array.context)) for array in arrays)
        if key not in self._buffers:
            self._buffers[key] = [
                None
                if array.dtype.__name__ == "float16"
                else self._mx.nd.empty(array.shape, ctx=array.context, dtype="float16")
                for array in arrays
            ]
        return self._buffers[key]
