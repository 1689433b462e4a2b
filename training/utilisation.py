"""Model FLOPs utilisation (MFU): the operations that a task needs over those that the devices could do.

Defined by Chowdhery et al. (PaLM, arXiv:2204.02311, section 4.1). Operations are counted as bert.flops does,
on batches as they are, padding included; what an implementation computes again or leaves out changes nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import mxnet as mx

from comm.base import Communicator
from training.profiling.peak import ROWS, matrix_peak

MEASURED = 0.2  # seconds


class Peak(NamedTuple):
    """Operations a second that all processes of a run can do at most. `sentence`: its origin, for people."""

    flops: float
    sentence: str


def find_peak(
    given: float | None, dtype: str, operators: str, device: mx.Context, communicator: Communicator
) -> Peak:
    """The peak as --peak_tflops states it for a process, or as all processes measure it at the same time,
    since those of a host share its cores and its memory; every rank calls it."""
    size = communicator.size
    processes = f"{size} process{'es' if size > 1 else ''}"
    if given is not None:
        flops = given * 1e12 * size
        return Peak(flops, f"{flops / 1e12:.3g} TFLOP/s, {size} x --peak_tflops {given:g}")
    communicator.barrier()  # so that all begin together
    mine = matrix_peak(dtype, [operators], device, MEASURED)
    exchanged = mx.nd.array([mine], ctx=mx.cpu(), dtype="float64")
    communicator.average([exchanged])
    flops = float(exchanged.asscalar()) * size
    communicator.barrier()  # for comm.watch.watchdog: what follows is no longer part of the exchange
    products = f"{ROWS} x {ROWS} {dtype} matrices"
    return Peak(flops, f"{flops / 1e12:.3g} TFLOP/s, products of {products} on {processes}")
