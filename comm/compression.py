"""Compressed averages: the settings of each backend and the communicators that compress.

    communicator = with_compression(BytePSCommunicator(**byteps_settings(config)), config)

docs/compression.md says what each compression does and promises. Standard library only at import.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any, MutableMapping, Sequence

from base.errors import InputError
from base.launchers import is_number
from comm.base import AVERAGE_DTYPES, Communicator, DelegatingCommunicator, check_arrays
from comm.byteps.environment import complete_environment, read_place
from comm.options import GREATEST_SHARE, CommunicationConfig

if TYPE_CHECKING:
    from mxnet.nd import NDArray

# Bytes that the arrays of one call have together, at least, before they are compressed. Smaller calls carry
# sums of losses and counts, which must arrive as they are. BytePS draws the same line by itself.
LEAST_BYTES = 1 << 16
# Dithering counts its bits in float32, exact up to 2**24: a piece has at most so many.
PIECE_BYTES = 1 << 21
_ELEMENTS = PIECE_BYTES // 4
# Any number but 0, which means a different one for each process: then the server would draw other positions
# than the workers. Dithering gets none: with one, the server's rounding would depend on the workers', and be
# biased.
_RANDOMK_SEED = 2654435769
_ITEM_BYTES = {"float16": 2, "float32": 4, "float64": 8}


def horovod_settings(
    config: CommunicationConfig, environ: MutableMapping[str, str] = os.environ
) -> dict[str, Any]:
    """Arguments for HorovodCommunicator, and in `environ` what a reproducible run needs. Raises InputError
    for what only BytePS has, and for variables that contradict the configuration."""
    if config.reproducible:
        fused = environ.setdefault("HOROVOD_FUSION_THRESHOLD", "0")
        if fused != "0":
            raise InputError(f"--reproducible: HOROVOD_FUSION_THRESHOLD={fused} fuses arrays; unset it")
    if config.bucket_bytes is not None:
        raise InputError("--bucket_mb is for BytePS; with Horovod set HOROVOD_FUSION_THRESHOLD (in bytes)")
    if config.compression not in ("none", "fp16"):
        raise InputError(
            f"--compression {config.compression} is BytePS's; with Horovod use fp16 or none, "
            "or run_pretraining_byteps.py"
        )
    return {"divisible": True} if config.divisible else {}


def byteps_settings(
    config: CommunicationConfig, environ: MutableMapping[str, str] = os.environ
) -> dict[str, Any]:
    """Arguments for BytePSCommunicator. `environ` is completed as BytePSCommunicator does it, and has what a
    reproducible run needs.

    Raises:
        InputError: a compressor cannot work with this number of ranks or these variables of BytePS.
    """
    if config.reproducible:
        environ["BYTEPS_REPRODUCIBLE"] = "1"  # read by native/ps_lite/zmq_van.h
    if config.compression in ("none", "fp16"):
        return {} if config.bucket_bytes is None else {"bucket_bytes": config.bucket_bytes}
    complete_environment(environ)
    place = read_place(environ)
    if not place.distributed:
        raise InputError(
            f"--compression {config.compression} is for what travels between workers and servers, and this "
            "run has one worker and no server; use none or fp16"
        )
    _check_variables(environ)
    settings = {"compressor_type": config.compression}
    k = config.compression_k or 0.0  # onebit has none
    if config.compression == "onebit":
        settings["compressor_onebit_scaling"] = "true"
    elif config.compression == "dithering":
        settings["compressor_k"] = str(int(k))
    elif config.compression == "randomk":
        settings.update(compressor_k=str(k), seed=str(_RANDOMK_SEED))
    elif config.error_feedback:
        if k * place.size > GREATEST_SHARE:
            raise InputError(
                f"--compression_k {k:g}: topk with --error_feedback and {place.size} ranks takes at most "
                f"{GREATEST_SHARE / place.size:.4g}; use that, or leave --error_feedback out"
            )
        # A bit more than the ranks select together: BytePS computes with it in float32 and rounds down.
        settings["compressor_k"] = str(k * place.size * (1 + 1e-5))
    else:
        settings["compressor_k"] = str(k)
    return {"compressor": settings, "bucket_bytes": PIECE_BYTES}


def with_compression(communicator: Communicator, config: CommunicationConfig) -> Communicator:
    """The communicator whose averages are compressed as the configuration says."""
    if config.compression == "none":
        return communicator
    if config.compression == "fp16":
        return HalfCommunicator(communicator)
    topk_share = config.compression_k if config.compression == "topk" else None
    feedback = ErrorFeedback(topk_share) if config.error_feedback else None
    return PiecesCommunicator(communicator, feedback)


class HalfCommunicator(DelegatingCommunicator):
    """Averages float32 and float64 arrays as float16, over any backend: half the bytes. The arrays of a call
    that have less than `least_bytes` together travel as they are.

    float16 has 11 significant bits, so a gradient loses 1 part in 2048 at most, as long as it is in range:

    - Beyond 65504 it becomes inf. The mean is then inf on every rank, and the step is skipped.
    - The inner communicator divides float16 by the number of ranks before it sums. What is then below 6.1e-5
      loses bits, and what is below 3e-8 vanishes: with N ranks, gradients below N times as much.

    A loss scale moves gradients into the range. Runs in float16 have one, but their gradients are float16
    already, and travel as they are. In float32 runs the scale is 1, and such small gradients do vanish.
    """

    def __init__(self, inner: Communicator, least_bytes: int = LEAST_BYTES) -> None:
        super().__init__(inner)
        self._mx: Any = importlib.import_module("mxnet")
        self._least_bytes = least_bytes
        # The same buffers for the same sequence of arrays: communicators know arrays by their identity.
        self._buffers: dict[tuple[Any, ...], list[NDArray | None]] = {}
        self._groups: list[HalfCommunicator] = []

    def groups(self, groups: Sequence[Sequence[int]]) -> Communicator:
        self._groups.append(HalfCommunicator(self._inner.groups(groups), self._least_bytes))
        return self._groups[-1]

    def average(self, arrays: Sequence[NDArray]) -> None:
        check_arrays(arrays, AVERAGE_DTYPES)
        if self.size == 1 or _is_small(arrays, self._least_bytes):
            self._inner.average(arrays)
            return
        key = tuple((array.dtype.__name__, array.shape, str(array.context)) for array in arrays)
        if key not in self._buffers:
            self._buffers[key] = [
                None
                if array.dtype.__name__ == "float16"
                else self._mx.nd.empty(array.shape, ctx=array.context, dtype="float16")
                for array in arrays
            ]
        halves = [
            array if buffer is None else self._mx.nd.cast(array, dtype="float16", out=buffer)
            for array, buffer in zip(arrays, self._buffers[key])
        ]
        self._inner.average(halves)
        for array, half in zip(arrays, halves):
            if half is not array:
                self._mx.nd.cast(half, dtype=array.dtype, out=array)

    def forget(self) -> None:
        self._buffers.clear()
        for group in self._groups:
            group._buffers.clear()
        self._inner.forget()


class PiecesCommunicator(DelegatingCommunicator):
    """Averages through the compressors of `inner`, a BytePSCommunicator with buckets of PIECE_BYTES.

    A compressor of BytePS works on pieces of a tensor, and takes each for itself: its largest values, its
    mean, its maximum. BytePS cuts tensors at a fixed number of bytes, and aborts where the rest is so short
    that a compressor finds too few values in it. Arrays are therefore laid one after the other and copied
    into float32 pieces, which BytePS does not cut again.

    The compressors assume finite values: topk never selects a NaN, dithering loses NaN and inf. A piece with
    such a value is sent as zeros. A number for the whole call, 0 or NaN, is averaged without compression and
    added to all results, so that the contract's "inf and NaN arrive at every rank" becomes "every rank gets
    NaN everywhere".

    The arrays of a call that have less than `LEAST_BYTES` together travel as they are; so does, without
    compression but as float32, a last piece that is shorter. Sums are formed in float32 for all dtypes.
    With feedback, `average` raises InputError for float16.
    """

    def __init__(self, inner: Communicator, feedback: ErrorFeedback | None = None) -> None:
        super().__init__(inner)
        self._mx: Any = importlib.import_module("mxnet")
        self._feedback = feedback
        # The same buffers for the same sequence of arrays: communicators know arrays by their identity.
        self._layouts: dict[Any, tuple[list[NDArray], list[tuple[int, int, int, int, int]]]] = {}
        self._zeros: dict[str, NDArray] = {}

    def average(self, arrays: Sequence[NDArray]) -> None:
        check_arrays(arrays, AVERAGE_DTYPES)
        if self.size == 1 or _is_small(arrays, LEAST_BYTES):
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

    def forget(self) -> None:
        self._layouts.clear()
        self._zeros.clear()
        if self._feedback:
            self._feedback.forget()
        self._inner.forget()

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


def cut(sizes: Sequence[int], elements: int) -> tuple[list[int], list[tuple[int, int, int, int, int]]]:
    """Lays arrays one after the other and cuts them into pieces of `elements`, the last one shorter.

    Returns the pieces' sizes, and which part of which array lies where: (array, start, piece, offset, length)
    for elements of an array, from `start`, that lie in a piece, from `offset`.
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
            overlaps.append((array, start, piece, offset, length))
            start += length
            position += length
    return pieces, overlaps


def keep(mx: Any, array: NDArray, flag: NDArray) -> None:
    """Leaves the one-dimensional array as it is where flag, of shape (1,), is 1, and sets it to zeros, NaN
    included, where it is 0. Without waiting for either."""
    view = array.reshape((1, 1, -1))
    mx.nd.SequenceMask(view, sequence_length=flag, use_sequence_length=True, value=0, out=view)


class ErrorFeedback:
    """Keeps what a compressor leaves out of a piece, and adds it to the piece of the next call: nothing of a
    gradient is lost, parts of it come later.

    With p = gradient + kept, a rank sends q and keeps p - q (Karimireddy et al., arXiv:1901.09847, algorithm
    2). The sum of all averages then differs from the sum of all mean gradients by what is kept at the end,
    and by no more, provided that what arrives is the mean of the ranks' q. That needs care, because BytePS's
    servers compress the sum of the ranks' pieces once more before they send it back, and what is lost there
    no worker knows:

    - topk: a rank selects k values itself and sends zeros elsewhere. BytePS is set to let k * size values
      pass, which are all that its workers or its server can ever see, so neither of them loses any.
    - randomk: all workers and the server draw the same positions from the same seed, so the server's
      selection is the workers' over again. A rank keeps its values wherever the average is 0. (Where selected
      values happen to cancel, they are kept as well, and continue to cancel.)

    BytePS's own error feedback is not used: it needs a file `lr.s` in the working directory of each worker
    and each server. With onebit and dithering no worker can know what the server's second pass loses, so
    there is none.

    What is kept is not part of a checkpoint: a resumed run, and another stage, begin with nothing kept.

    topk_share: of the values of a piece that topk sends; None: randomk.
    """

    def __init__(self, topk_share: float | None) -> None:
        self._mx: Any = importlib.import_module("mxnet")
        self._topk_share = topk_share
        # Two arrays for each piece: what is to be added to it, and what takes its place after a step that is
        # not skipped.
        self._residuals: dict[Any, list[tuple[NDArray, NDArray]]] = {}

    def forget(self) -> None:
        """Keeps nothing any more."""
        self._residuals.clear()

    def before(self, key: Any, pieces: Sequence[NDArray]) -> None:
        """Adds what was kept, and changes each piece to what is to be sent. `key` names the sequence of
        pieces."""
        if key not in self._residuals:
            zeros = self._mx.nd.zeros_like
            self._residuals[key] = [(zeros(piece), zeros(piece)) for piece in pieces]
        for piece, (kept, candidate) in zip(pieces, self._residuals[key]):
            self._mx.nd.elemwise_add(piece, kept, out=piece)
            if self._topk_share is None:
                piece.copyto(candidate)
                continue
            # An operator that sorts, but only as far as k.
            selected = max(1, int(self._topk_share * piece.size))
            mask = self._mx.nd.topk(piece.abs(), k=selected, ret_typ="mask")
            self._mx.nd.elemwise_mul(piece, 1 - mask, out=candidate)
            self._mx.nd.elemwise_mul(piece, mask, out=piece)

    def after(self, key: Any, pieces: Sequence[NDArray], agreed: NDArray) -> None:
        """`pieces` hold the averages. agreed: (1,), 1 where all values of all ranks were finite, else 0: the
        step will be skipped, and what was kept stays as it was before it."""
        for piece, (kept, candidate) in zip(pieces, self._residuals[key]):
            if self._topk_share is None:
                self._mx.nd.elemwise_mul(candidate, piece == 0, out=candidate)
            keep(self._mx, kept, 1 - agreed)
            keep(self._mx, candidate, agreed)
            self._mx.nd.elemwise_add(kept, candidate, out=kept)


def _is_small(arrays: Sequence[NDArray], least_bytes: int) -> bool:
    """Returns whether the arrays together have less than `least_bytes`."""
    return sum(array.size * _ITEM_BYTES[array.dtype.__name__] for array in arrays) < least_bytes


def _check_variables(environ: MutableMapping[str, str]) -> None:
    partition = environ.get("BYTEPS_PARTITION_BYTES")
    if partition is not None and not (is_number(partition) and int(partition) >= PIECE_BYTES):
        raise InputError(
            f"BYTEPS_PARTITION_BYTES={partition}: compressors need at least {PIECE_BYTES}; unset it"
        )
    for name, only in (
        ("BYTEPS_MIN_COMPRESS_BYTES", str(LEAST_BYTES)),  # below it travel sums that must arrive as they are
        ("BYTEPS_SERVER_ENGINE_BLOCKING", "0"),  # such a server adds up compressed bytes
    ):
        if environ.get(name, only) != only:
            raise InputError(f"{name}={environ[name]}: compressors need {only}; unset it, for servers too")
    if environ.get("BYTEPS_THREADPOOL_SIZE") == "0":
        raise InputError("BYTEPS_THREADPOOL_SIZE=0: compressors need 1 at least; unset it")
