"""Averages through BytePS's compressors, with what they need around them.

A compressor of BytePS works on pieces of a tensor, and takes each for itself: its largest values, its mean,
its maximum. BytePS cuts tensors at a fixed number of bytes, and aborts where the rest is so short that a
compressor finds too few values in it. Arrays are therefore laid one after the other and copied into float32
pieces, which BytePS does not cut again.

The compressors assume finite values: topk never selects a NaN, dithering loses NaN and inf. A piece with
such a value is sent as zeros. A number for the whole call, 0 or NaN, is averaged without compression and
added to all results, so that the contract's "inf and NaN arrive at every rank" becomes "every rank gets NaN
everywhere".
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Sequence

from base.errors import InputError
from comm.base import AVERAGE_DTYPES, Communicator, check_arrays
from comm.delegating import LEAST_BYTES, DelegatingCommunicator, is_small

if TYPE_CHECKING:
    from mxnet.nd import NDArray

# Dithering counts its bits in float32, exact up to 2**24: a piece has at most so many.
PIECE_BYTES = 1 << 21
_ELEMENTS = PIECE_BYTES // 4


class ErrorFeedback(Protocol):
    """What a compressor leaves out of a piece is kept, and added to the piece of the next call."""

    def before(self, key: Any, pieces: Sequence[NDArray]) -> None:
        """Adds what was kept, and changes each piece to what is to be sent. `key` names the sequence of
        pieces."""

    def after(self, key: Any, pieces: Sequence[NDArray], agreed: NDArray) -> None:
        """`pieces` hold the averages. agreed: (1,), 1 where all values of all ranks were finite, else 0: the
        step will be skipped, and what was kept stays as it was before it."""


class _Overlap(NamedTuple):
    """Elements of the array at `array`, from `start`, that lie in the piece at `piece`, from `offset`."""

    array: int
    start: int
    piece: int
    offset: int
    length: int


class PiecesCommunicator(DelegatingCommunicator):
    """`inner`, a BytePSCommunicator with a compressor and buckets of PIECE_BYTES, for arrays of any size.

    The arrays of a call that have less than `LEAST_BYTES` together travel as they are; so does, without
    compression but as float32, a last piece that is shorter. Sums are formed in float32 for all dtypes.
    With feedback, `average` raises InputError for float16.
    """

    def __init__(self, inner: Communicator, feedback: ErrorFeedback | None = None) -> None:
        super().__init__(inner)
        self._mx: Any = importlib.import_module("mxnet")
        self._feedback = feedback
        # The same buffers for the same sequence of arrays: communicators know arrays by their identity.
        self._layouts: dict[Any, tuple[list[NDArray], list[_Overlap]]] = {}
        self._zeros: dict[str, NDArray] = {}

    def average(self, arrays: Sequence[NDArray]) -> None:
        check_arrays(arrays, AVERAGE_DTYPES)
        if self.size == 1 or is_small(arrays, LEAST_BYTES):
            self._inner.average(arrays)
            return
        if self._feedback and any(array.dtype.__name__ == "float16" for array in arrays):
            raise InputError(
                "--error_feedback: gradients in float16 come with a loss scale that changes, and what was "
                "kept would not change with it; use --dtype float32, or leave --error_feedback out"
            )
        key = (tuple(array.size for array in arrays), str(arrays[0].context))
        if key not in self._layouts:
            sizes, overlaps = cut([array.size for array in arrays], _ELEMENTS)
            context = arrays[0].context
            self._layouts[key] = ([self._mx.nd.empty((size,), ctx=context) for size in sizes], overlaps)
        pieces, overlaps = self._layouts[key]
        flat = [array.reshape((-1,)) for array in arrays]
        for array, start, piece, offset, length in overlaps:
            flat[array][start : start + length].copyto(pieces[piece][offset : offset + length])
        poison = self._poison(pieces)
        if self._feedback:
            self._feedback.before(key, pieces)
        self._inner.average(pieces)
        self._inner.average([poison])
        if self._feedback:
            self._feedback.after(key, pieces, poison == 0)
        for piece in pieces:
            self._mx.nd.broadcast_add(piece, poison, out=piece)
        for array, start, piece, offset, length in overlaps:
            pieces[piece][offset : offset + length].copyto(flat[array][start : start + length])

    def _poison(self, pieces: Sequence[NDArray]) -> NDArray:
        """0 where all values are finite, NaN otherwise; pieces with other values become zeros."""
        context = pieces[0].context
        if str(context) not in self._zeros:
            self._zeros[str(context)] = self._mx.nd.zeros((_ELEMENTS,), ctx=context)
        zeros = self._zeros[str(context)]
        total = self._mx.nd.zeros((1,), ctx=context)
        for piece in pieces:
            product = self._mx.nd.dot(piece, zeros[: piece.size])  # 0 * inf and 0 * NaN are NaN
            keep(self._mx, piece, product == 0)
            total += product
        return total


def cut(sizes: Sequence[int], elements: int) -> tuple[list[int], list[_Overlap]]:
    """Lays arrays one after the other and cuts them into pieces of `elements`, the last one shorter.

    Returns the pieces' sizes, and which part of which array lies where.
    """
    total = sum(sizes)
    pieces = [min(elements, total - start) for start in range(0, total, elements)]
    overlaps = []
    position = 0
    for array, size in enumerate(sizes):
        start = 0
        while start < size:
            piece, offset = divmod(position, elements)
            length = min(size - start, elements - offset)
            overlaps.append(_Overlap(array, start, piece, offset, length))
            start += length
            position += length
    return pieces, overlaps


def keep(mx: Any, array: NDArray, flag: NDArray) -> None:
    """Leaves the one-dimensional array as it is where flag, of shape (1,), is 1, and sets it to zeros, NaN
    included, where it is 0. Without waiting for either."""
    view = array.reshape((1, 1, -1))
    mx.nd.SequenceMask(view, sequence_length=flag, use_sequence_length=True, value=0, out=view)
