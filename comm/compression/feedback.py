"""Error feedback around BytePS's topk and randomk: nothing of a gradient is lost, parts of it come later.

With p = gradient + kept, a rank sends q and keeps p - q (Karimireddy et al., arXiv:1901.09847, algorithm 2).
The sum of all averages then differs from the sum of all mean gradients by what is kept at the end, and by no
more, provided that what arrives is the mean of the ranks' q. That needs care, because BytePS's servers
compress the sum of the ranks' pieces once more before they send it back, and what is lost there no worker
knows:

- topk: a rank selects k values itself and sends zeros elsewhere. BytePS is told to let k * size values pass,
  which are all that its workers or its server can ever see, so neither of them loses any.
- randomk: all workers and the server draw the same positions from the same seed, so the server's selection is
  the workers' over again. A rank keeps its values wherever the average is 0. (Where selected values happen to
  cancel, they are kept as well, and continue to cancel.)

BytePS's own error feedback is not used: it needs a file `lr.s` in the working directory of each worker and
each server. With onebit and dithering no worker can know what the server's second pass loses, so there is
none.

What is kept is not part of a checkpoint: a resumed run begins with nothing kept.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Callable, Sequence

from comm.compression.pieces import keep

if TYPE_CHECKING:
    from mxnet.nd import NDArray


class _Residuals:
    """For each piece `kept`, which is to be added to it, and `candidate`, which takes its place after a step
    that is not skipped."""

    def __init__(self) -> None:
        self._mx: Any = importlib.import_module("mxnet")
        self._residuals: dict[Any, tuple[list[NDArray], list[NDArray]]] = {}

    def of(self, key: Any, pieces: Sequence[NDArray]) -> tuple[list[NDArray], list[NDArray]]:
        if key not in self._residuals:
            kept = [self._mx.nd.zeros_like(piece) for piece in pieces]
            self._residuals[key] = (kept, [self._mx.nd.zeros_like(piece) for piece in pieces])
        return self._residuals[key]

    def settle(self, key: Any, pieces: Sequence[NDArray], agreed: NDArray) -> None:
        for kept, candidate in zip(*self.of(key, pieces)):
            keep(self._mx, kept, 1 - agreed)
            keep(self._mx, candidate, agreed)
            self._mx.nd.elemwise_add(kept, candidate, out=kept)


class TopkFeedback:
    """`comm.compression.pieces.ErrorFeedback` for topk.

    selected: how many values a rank sends of a piece, from the piece's number of elements.
    """

    def __init__(self, selected: Callable[[int], int]) -> None:
        self._mx: Any = importlib.import_module("mxnet")
        self._selected = selected
        self._residuals = _Residuals()

    def before(self, key: Any, pieces: Sequence[NDArray]) -> None:
        for piece, kept, candidate in zip(pieces, *self._residuals.of(key, pieces)):
            self._mx.nd.elemwise_add(piece, kept, out=piece)
            # An operator that sorts, but only as far as k.
            mask = self._mx.nd.topk(piece.abs(), k=self._selected(piece.size), ret_typ="mask")
            self._mx.nd.elemwise_mul(piece, 1 - mask, out=candidate)
            self._mx.nd.elemwise_mul(piece, mask, out=piece)

    def after(self, key: Any, pieces: Sequence[NDArray], agreed: NDArray) -> None:
        self._residuals.settle(key, pieces, agreed)


class RandomkFeedback:
    """`comm.compression.pieces.ErrorFeedback` for randomk with one seed on all ranks."""

    def __init__(self) -> None:
        self._mx: Any = importlib.import_module("mxnet")
        self._residuals = _Residuals()

    def before(self, key: Any, pieces: Sequence[NDArray]) -> None:
        for piece, kept, candidate in zip(pieces, *self._residuals.of(key, pieces)):
            self._mx.nd.elemwise_add(piece, kept, out=piece)
            piece.copyto(candidate)

    def after(self, key: Any, pieces: Sequence[NDArray], agreed: NDArray) -> None:
        for piece, candidate in zip(pieces, self._residuals.of(key, pieces)[1]):
            self._mx.nd.elemwise_mul(candidate, piece == 0, out=candidate)
        self._residuals.settle(key, pieces, agreed)
