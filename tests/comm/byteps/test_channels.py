"""Moments at which arrays are passed to BytePS. Its sums are tested with real servers in test_race.py."""

from __future__ import annotations

import threading

import mxnet as mx

from comm.byteps.communicator import Channels, Sum
from comm.numbering import Servers, even_numbers
from tests.training.tiny import Waiting


class WatchfulLibrary:
    """In BytePS's place: takes note of whether each array was computed when it came."""

    def __init__(self):
        self.computed = []
        self.declared = []

    def declare(self, name, compressor):
        self.declared.append(name)

    def hold(self, arrays):
        return lambda: None

    def push_pull(self, array, name, priority):
        self.computed.append(Waiting.computed.is_set())


def waiting():
    """An array that is computed when it is released; until then it has no memory."""
    Waiting.released.clear()
    Waiting.computed.clear()
    return mx.nd.Custom(mx.nd.ones((1,)), op_type="waiting")


def test_an_array_is_new_to_a_channel_only_when_it_is_computed():
    """BytePS asks for its memory at once, and MXNet's engine may be giving it some at the same time."""
    library = WatchfulLibrary()
    channels = Channels(library)
    for _ in range(3):
        kept = waiting()
        threading.Timer(0.2, Waiting.released.set).start()
        channels.add([Sum("key", kept)], {})
        assert library.computed[-1]
    waiting().copyto(kept)  # in place, as gradients are: its memory is known
    channels.add([Sum("key", kept)], {})
    assert not library.computed[-1], "the exchange is queued, and need not wait"
    Waiting.released.set()
    mx.nd.waitall()


def test_names_that_are_declared_together_have_numbers_of_their_own():
    """A broadcast declares all that follows at once: eight by eight their shares would be less even."""
    library, servers = WatchfulLibrary(), Servers(2, 5, 0, 4096)
    channels = Channels(library, servers)
    arrays = [mx.nd.ones((1000 * (1 + index % 7),)) for index in range(20)]
    sizes = [4 * array.size for array in arrays]
    channels.declare({f"{index}.A": size for index, size in enumerate(sizes)}, {})
    numbers = even_numbers(sizes, servers, 0)
    assert [library.declared.index(f"{index}.A") for index in range(20)] == numbers
    assert len(set(library.declared)) == len(library.declared) == max(numbers) + 1
    channels.add([Sum(str(index), array) for index, array in enumerate(arrays)], {})
    assert len(library.declared) == max(numbers) + 1, "they have their numbers"
    channels.add([Sum("more", arrays[0])], {})
    assert "more.A" in library.declared[max(numbers) + 1 :]
