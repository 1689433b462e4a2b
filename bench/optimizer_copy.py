"""The bytes of LAMB with the global norm, read and written by loops that compute nothing.

Per tensor as the update goes through memory: the gradient for the norm; weight and gradient, and both moments
to be written; both moments again, and the weight to be written. NumPy takes the bits of whole numbers
together where it reads, and adds none where it writes, an array at a time, in its place; each thread has a
contiguous part of every tensor. Tensors of less than LEAST elements, in all a thousandth of BERT-base, are
left out: their calls would take longer than their bytes.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Sequence

import numpy as np

from comm.bits import memory_of

LEAST = 1 << 16


class SameBytes:
    """The loops over `tensors`: weight, gradient, mean and var, NDArrays on the CPU.

    Numbers of 2 bytes are moved as pairs, but for a single last one; all stay as they are.
    """

    def __init__(self, tensors: Sequence[Sequence[Any]], threads: int):
        large = [tensor for tensor in tensors if tensor[0].size >= LEAST]
        self._share = sum(tensor[0].size for tensor in large) / sum(tensor[0].size for tensor in tensors)
        self._parts = [
            [tuple(np.array_split(_numbers(array), threads)[number] for array in tensor) for tensor in large]
            for number in range(threads)
        ]

    def seconds(self) -> float:
        """Seconds of one round, as if no tensor were left out."""
        with ThreadPoolExecutor(len(self._parts)) as pool:
            list(pool.map(time.sleep, [0.01] * len(self._parts)))  # all threads are there
            begun = time.perf_counter()
            list(pool.map(_move, self._parts))
            return (time.perf_counter() - begun) / self._share


def _numbers(array: Any) -> np.ndarray:
    memory = memory_of(array)
    return memory[: memory.size // 4 * 4].view(np.int32)


def _move(tensors: Sequence[tuple[np.ndarray, ...]]) -> None:
    for _, gradient, _, _ in tensors:
        np.bitwise_or.reduce(gradient)
    for weight, gradient, mean, var in tensors:
        for read in (weight, gradient):
            np.bitwise_or.reduce(read)
        for written in (mean, var):
            np.bitwise_or(written, 0, out=written)
        for read in (mean, var):
            np.bitwise_or.reduce(read)
        np.bitwise_or(weight, 0, out=weight)
