"""Moments at which arrays are passed to BytePS. Its sums are tested with real servers in test_race.py."""

from __future__ import annotations

import time

import mxnet as mx
import pytest

from comm.byteps.communicator import Channels, Sum

SIZE = 1000


class WatchfulLibrary:
    """In BytePS's place: takes note of how long each array still was in the making when it came."""

    def __init__(self):
        self.waited = []

    def declare(self, name, compressor):
        pass

    def hold(self, arrays):
        return lambda: None

    def push_pull(self, array, name, priority):
        begun = time.perf_counter()
        array.wait_to_read()
        self.waited.append(time.perf_counter() - begun)


def slow_number(matrix):
    """One number, some tenths of a second later; until then its array has no memory."""
    for _ in range(3):
        matrix = mx.nd.dot(matrix, matrix) / SIZE
    return matrix.sum()


@pytest.mark.alone
def test_an_array_is_new_to_a_channel_only_when_it_is_computed():
    """BytePS asks for its memory at once, and MXNet's engine may be giving it some at the same time."""
    matrix = mx.nd.ones((SIZE, SIZE))
    library = WatchfulLibrary()
    channels = Channels(library)
    for _ in range(3):
        begun = time.perf_counter()
        channels.add([Sum("key", slow_number(matrix))], {})
        taken = time.perf_counter() - begun
        assert library.waited[-1] < 0.1 * taken
    kept = slow_number(matrix)
    channels.add([Sum("key", kept)], {})
    slow_number(matrix).copyto(kept)  # in place, as gradients are: its memory is known
    channels.add([Sum("key", kept)], {})
    assert library.waited[-1] > 3 * max(library.waited[:-1]), "the exchange is queued, and need not wait"
