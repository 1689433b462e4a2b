"""Table of the options for the exchange of gradients between the ranks (base.options).

docs/compression.md says what each compression costs. Standard library only.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Mapping

from base.command_line import positive, within
from base.errors import InputError
from base.launchers import BYTEPS, HVD, LOCAL, launched_backend
from base.options import LAUNCH, flag, in_seconds, option, taken

COMPRESSIONS = ("none", "fp16", "onebit", "topk", "randomk", "dithering")
WITH_FEEDBACK = ("topk", "randomk")
_DEFAULT_K = {"topk": 0.01, "randomk": 0.01, "dithering": 127}

# Of a piece: below it the smallest piece that is compressed would have no value to send. A value is sent with
# its position, so that half of them are as long as all.
_LEAST_SHARE, GREATEST_SHARE = 1e-4, 0.4
_GREATEST_LEVELS = 32767  # a value then takes 26 bits at most, and always fits the space it had


@dataclass(frozen=True)
class CommunicationConfig:
    """Exchange of gradients between the ranks.

    timeout: seconds to wait for another rank. compression_k: share of the values to send (topk, randomk),
    number of levels (dithering), None for the others. divisible: whether groups of ranks and messages between
    two are wanted, as pipelines do.
    """

    timeout: float = in_seconds(
        "end the run, naming who is missing, when a process gives no sign of life or an exchange makes no "
        "progress for so long; must be longer than a step takes",
        600.0,
        name="comm_timeout",
        scope=LAUNCH,
    )
    bucket_mb: float | None = option(
        "BytePS: gradients smaller than this travel together, in buckets of this size; Horovod has "
        "HOROVOD_FUSION_THRESHOLD instead (default: 1)",
        within(1e-3, 65536),
        "MB",
    )
    compression: str = option(
        "of the gradients on their way: fp16 halves their bytes; the others are BytePS's, for slow networks "
        "between few workers; see docs/compression.md",
        choices=COMPRESSIONS,
        default="none",
    )
    compression_k: float | None = option(
        "topk, randomk: share of the values to send, at most 0.4 (default: 0.01); dithering: number of "
        "levels (default: 127)",
        positive,
        "K",
    )
    error_feedback: bool = flag(
        "topk, randomk: keep what was not sent and add it to the next gradient; recommended with both"
    )
    reproducible: bool = flag(
        "the same bits in every run also with three and more BytePS workers, whose servers then add in the "
        "order of the workers and keep what comes early; Horovod fuses nothing"
    )
    divisible: bool = False

    @property
    def bucket_bytes(self) -> int | None:
        """The size of BytePS's buckets; None for its default."""
        return None if self.bucket_mb is None else int(self.bucket_mb * 2**20)


def choose_backend(given: str | None, environ: Mapping[str, str]) -> str:
    """The backend given, else the launched one.

    Raises:
        InputError: a launcher started this process for another backend: each process would train alone.
    """
    launched = launched_backend(environ)
    if given is None:
        return launched
    if launched not in (LOCAL, given) or (given == BYTEPS and launched == LOCAL):
        how = {LOCAL: "without a launcher", HVD: "for Horovod", BYTEPS: "for BytePS"}[launched]
        raise InputError(f"--backend {given}: this process was started {how}; leave the option out")
    return given


def communication_config(options: argparse.Namespace) -> CommunicationConfig:
    """The configuration of a command line.

    Raises:
        InputError: a value out of its range, or an option that the chosen compression does not have.
    """
    kind, k = options.compression, options.compression_k
    if k is not None and kind not in _DEFAULT_K:
        raise InputError(f"--compression_k is for --compression topk, randomk and dithering, not for {kind}")
    if kind == "dithering" and k is not None and k not in range(1, _GREATEST_LEVELS + 1):
        raise InputError(
            f"--compression_k {k:g}: dithering takes a whole number of levels, 1 to {_GREATEST_LEVELS}"
        )
    if kind in WITH_FEEDBACK and k is not None and not _LEAST_SHARE <= k <= GREATEST_SHARE:
        raise InputError(
            f"--compression_k {k:g}: {kind} takes the share of the values to send, "
            f"{_LEAST_SHARE} to {GREATEST_SHARE}"
        )
    if options.bucket_mb is not None and kind not in ("none", "fp16"):
        raise InputError(f"--bucket_mb: --compression {kind} has pieces of its own size; leave it out")
    if options.error_feedback and kind not in WITH_FEEDBACK:
        reason = (
            "" if kind in ("none", "fp16") else ": its servers compress again, and that loss stays unknown"
        )
        raise InputError(
            f"--error_feedback is for --compression topk and randomk, not for {kind}{reason}; leave it out"
        )
    if options.reproducible and kind == "dithering":
        raise InputError("--reproducible: dithering draws anew in every run; leave one of the two out")
    return taken(
        CommunicationConfig,
        options,
        compression_k=_DEFAULT_K.get(kind) if k is None else k,
        divisible=getattr(options, "pipeline_stages", 1) > 1,  # fine-tuning has no such option
    )
