"""What `--compression`, `--compression_k` and `--error_feedback` mean for each backend.

    communicator = with_compression(BytePSCommunicator(**byteps_settings(options)), options)

`options` are those of training/communication_options.py. docs/compression.md says what each compression
does and promises. Standard library only at import.
"""

from __future__ import annotations

import argparse
import os
from typing import Any, MutableMapping

from base.errors import InputError
from comm.base import Communicator
from comm.byteps.environment import complete_environment, read_place
from comm.compression.feedback import RandomkFeedback, TopkFeedback
from comm.compression.half import HalfCommunicator
from comm.compression.pieces import PIECE_BYTES, ErrorFeedback, PiecesCommunicator
from comm.delegating import LEAST_BYTES

# Of the values of a piece: a value is sent with its position, so that half of them are as long as all.
_GREATEST_SHARE = 0.4
# Any number but 0, which means a different one for each process: then the server would draw other positions
# than the workers. Dithering gets none: with one, the server's rounding would depend on the workers', and be
# biased.
_RANDOMK_SEED = 2654435769


def horovod_settings(options: argparse.Namespace) -> dict[str, Any]:
    """Arguments for HorovodCommunicator: none. Raises InputError for what only BytePS has."""
    if options.bucket_mb is not None:
        raise InputError("--bucket_mb is for BytePS; with Horovod set HOROVOD_FUSION_THRESHOLD (in bytes)")
    if options.compression not in ("none", "fp16"):
        raise InputError(
            f"--compression {options.compression} is BytePS's; with Horovod use fp16 or none, "
            "or run_pretraining_byteps.py"
        )
    return {}


def byteps_settings(
    options: argparse.Namespace, environ: MutableMapping[str, str] = os.environ
) -> dict[str, Any]:
    """Arguments for BytePSCommunicator. `environ` is completed as BytePSCommunicator does it.

    Raises:
        InputError: a compressor cannot work with this number of ranks or these variables of BytePS.
    """
    if options.compression in ("none", "fp16"):
        return {} if options.bucket_mb is None else {"bucket_bytes": int(options.bucket_mb * 2**20)}
    complete_environment(environ)
    place = read_place(environ)
    if place.size > 1 and not place.distributed:
        raise InputError(
            f"--compression {options.compression} is for what travels between workers and servers, and this "
            "run has one worker and no server; use none or fp16"
        )
    _check_variables(environ)
    settings = {"compressor_type": options.compression}
    k = options.compression_k
    if options.compression == "onebit":
        settings["compressor_onebit_scaling"] = "true"
    elif options.compression == "dithering":
        settings["compressor_k"] = str(int(k))
    elif options.compression == "randomk":
        settings.update(compressor_k=str(k), seed=str(_RANDOMK_SEED))
    elif options.error_feedback:
        if k * place.size > _GREATEST_SHARE:
            raise InputError(
                f"--compression_k {k:g}: topk with --error_feedback and {place.size} ranks takes at most "
                f"{_GREATEST_SHARE / place.size:.4g}; use that, or leave --error_feedback out"
            )
        # A bit more than the ranks select together: BytePS computes with it in float32 and rounds down.
        settings["compressor_k"] = str(k * place.size * (1 + 1e-5))
    else:
        settings["compressor_k"] = str(k)
    return {"compressor": settings, "bucket_bytes": PIECE_BYTES}


def with_compression(communicator: Communicator, options: argparse.Namespace) -> Communicator:
    """The communicator whose averages are compressed as the options say."""
    if options.compression == "none":
        return communicator
    if options.compression == "fp16":
        return HalfCommunicator(communicator)
    feedback: ErrorFeedback | None = None
    if options.error_feedback and options.compression == "topk":
        share = options.compression_k
        feedback = TopkFeedback(lambda size: max(1, int(share * size)))
    elif options.error_feedback:
        feedback = RandomkFeedback()
    return PiecesCommunicator(communicator, feedback)


def _check_variables(environ: MutableMapping[str, str]) -> None:
    partition = environ.get("BYTEPS_PARTITION_BYTES")
    if partition is not None and not (partition.isdigit() and int(partition) >= PIECE_BYTES):
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
