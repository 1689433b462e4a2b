"""Values that are no arrays, given by one rank to all, and sums of numbers over the ranks."""

from __future__ import annotations

import json
from typing import Any, Callable, Sequence

import mxnet as mx
import numpy as np

from base.errors import InputError
from comm.base import Communicator


def broadcast_json(value: Any, communicator: Communicator, root: int = 0) -> Any:
    """The `value` of rank `root`, on every rank, through JSON. Every rank calls it."""
    encoded = np.frombuffer(json.dumps(value).encode(), dtype=np.uint8)
    length = mx.nd.array([len(encoded)], ctx=mx.cpu(), dtype="int64")
    communicator.broadcast([length], root)
    text = mx.nd.zeros((int(length.asscalar()),), ctx=mx.cpu(), dtype="uint8")
    if communicator.rank == root:
        text[:] = mx.nd.array(encoded, ctx=mx.cpu(), dtype="uint8")
    communicator.broadcast([text], root)
    return json.loads(text.asnumpy().tobytes().decode())


def summed(numbers: Sequence[float] | np.ndarray, communicator: Communicator) -> np.ndarray:
    """The sums of each rank's numbers over all ranks, float64. Every rank calls it; it waits."""
    exchanged = mx.nd.array(numbers, ctx=mx.cpu(), dtype="float64")
    communicator.average([exchanged])
    found = exchanged.asnumpy() * communicator.size
    communicator.barrier()  # for comm.watch.watchdog: what follows is no longer part of the exchange
    return found


def gathered(number: int, communicator: Communicator) -> list[int]:
    """Each rank's whole number, less than 2^40 and not below 0, on every rank. Every rank calls it."""
    own = np.zeros(communicator.size)
    own[communicator.rank] = number
    return [int(each) for each in np.rint(summed(own, communicator))]


def from_rank_0(make: Callable[[], Any], communicator: Communicator) -> Any:
    """The value that rank 0 makes, on every rank, through JSON. Every rank calls it.

    Raises:
        InputError: on every rank, where `make` raises it.
    """
    value = error = cause = None
    if communicator.rank == 0:
        try:
            value = make()
        except InputError as found:
            error, cause = str(found), found
    value, error = broadcast_json([value, error], communicator)
    if error is not None:
        raise InputError(error) from cause
    return value
