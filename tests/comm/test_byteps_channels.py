"""Moments at which arrays are passed to BytePS. Its sums are tested with real servers in test_race.py."""

from __future__ import annotations

import threading

import mxnet as mx

from comm.byteps.communicator import Channels, Sum


class Gated(mx.operator.CustomOp):
    """Copies its input once the gate is open, or after a minute."""

    gate, computed = threading.Event(), threading.Event()

    def forward(self, is_train, req, in_data, out_data, aux):
        self.gate.wait(60)
        self.assign(out_data[0], req[0], in_data[0])
        self.computed.set()


@mx.operator.register("gated")
class GatedProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        return Gated()


class WatchfulLibrary:
    """In BytePS's place: takes note of whether each array was computed when it came."""

    def __init__(self):
        self.computed = []

    def declare(self, name, compressor):
        pass

    def hold(self, arrays):
        return lambda: None

    def push_pull(self, array, name, priority):
        self.computed.append(Gated.computed.is_set())


def gated():
    """An array that is computed when the gate opens; until then it has no memory."""
    Gated.gate.clear()
    Gated.computed.clear()
    return mx.nd.Custom(mx.nd.ones((1,)), op_type="gated")


def test_an_array_is_new_to_a_channel_only_when_it_is_computed():
    """BytePS asks for its memory at once, and MXNet's engine may be giving it some at the same time."""
    library = WatchfulLibrary()
    channels = Channels(library)
    for _ in range(3):
        kept = gated()
        threading.Timer(0.2, Gated.gate.set).start()
        channels.add([Sum("key", kept)], {})
        assert library.computed[-1]
    gated().copyto(kept)  # in place, as gradients are: its memory is known
    channels.add([Sum("key", kept)], {})
    assert not library.computed[-1], "the exchange is queued, and need not wait"
    Gated.gate.set()
    mx.nd.waitall()
