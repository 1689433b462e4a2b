"""A communicator around another one: what it does not change it hands on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Sequence

from comm.base import Communicator

if TYPE_CHECKING:
    from mxnet.nd import NDArray

# Bytes that the arrays of one call have together, at least, before they are compressed. Smaller calls carry
# sums of losses and counts, which must arrive as they are. BytePS draws the same line by itself.
LEAST_BYTES = 1 << 16


class DelegatingCommunicator:
    """`comm.base.Communicator` that leaves everything to `inner`; the base of those that change `average`."""

    def __init__(self, inner: Communicator) -> None:
        self._inner = inner
        self.rank, self.size = inner.rank, inner.size
        self.local_rank, self.local_size = inner.local_rank, inner.local_size

    def broadcast(self, arrays: Sequence[NDArray], root: int = 0) -> None:
        self._inner.broadcast(arrays, root)

    def average(self, arrays: Sequence[NDArray]) -> None:
        self._inner.average(arrays)

    def all_agree(self, flags: Sequence[bool]) -> list[bool]:
        return self._inner.all_agree(flags)

    def barrier(self) -> None:
        self._inner.barrier()

    def close(self) -> None:
        self._inner.close()


def is_small(arrays: Sequence[NDArray], least_bytes: int) -> bool:
    """Whether the arrays together have less than `least_bytes`."""
    return sum(array.size * _ITEM_BYTES[array.dtype.__name__] for array in arrays) < least_bytes


_ITEM_BYTES = {"float16": 2, "float32": 4, "float64": 8}
