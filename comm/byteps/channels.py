"""Sums over the ranks through BytePS's servers, without the servers' race.

A server keeps one buffer for each name. A worker's next push is copied into it before the pull of a slower
worker has been answered with the sum of the time before; the slower worker then receives the faster one's
bare gradient and nobody is told (docs/byteps.md shows how to recognise it). So no push may overtake a pull.

A channel is a place for sums of a fixed number of bytes; it has two names, used in turn:

    rank 0 pushes name A for sum n, B for n + 1, and A again for n + 2. It does the last only when it has
    received sum n + 1, which needs every rank's push n + 1; and a rank pushes n + 1 only when it has received
    sum n. So all pulls of sum n have been answered before anything is pushed over it.

The same end is reached, with a single name and half the memory and start-up time, where the program itself
meets in between: `new_era` is called when every rank is known to have received all its sums, and the use of a
channel thereafter begins with name A again. A training step that agrees after it has averaged never needs
the second name, and it is declared only when needed.

New names are made known while none of our sums is on its way. The server's handler inserts them into tables
that its engine threads read without a lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Mapping, NamedTuple, Sequence

from comm.byteps.library import BytePSLibrary

if TYPE_CHECKING:
    from mxnet.nd import NDArray


class Sum(NamedTuple):
    """What is to be summed: `array` in place, on the channel `key`. Highest priority first."""

    key: str
    array: NDArray
    priority: int = 0


class _Channel:
    """The history of one channel."""

    def __init__(self) -> None:
        self.turn = 1  # of the latest use; 0: name A, 1: name B
        self.era = -1
        self.array: NDArray | None = None


class Channels:
    """All channels of a process. Every rank makes the same calls in the same order."""

    def __init__(self, library: BytePSLibrary) -> None:
        self._library = library
        self._channels: dict[str, _Channel] = {}
        self._declared: set[str] = set()
        self._era = 0
        self._pending: dict[str, NDArray] = {}

    def add(self, sums: Sequence[Sum], compressor: Mapping[str, str], meeting: bool = False) -> None:
        """Queues the sums.

        A key always comes with the same number of bytes. compressor: BytePS's settings for names that are
        new. meeting: the sum is itself how the ranks meet; it cannot rely on having met.
        """
        names = [self._next_name(item, meeting) for item in sums]
        new = [name for name in names if name not in self._declared]
        release = self._announce(new, sums, compressor) if new else None
        for name, item in zip(names, sums):
            self._library.push_pull(item.array, name, item.priority)
            self._pending[item.key] = item.array
        if release is not None:
            release()

    def wait(self) -> None:
        """Returns when this rank has received all its sums."""
        for array in self._pending.values():
            array.wait_to_read()
        self._pending.clear()

    def new_era(self) -> None:
        """To be called when every rank has returned from `wait` and each knows it of all others."""
        self._era += 1

    def _next_name(self, item: Sum, meeting: bool) -> str:
        channel = self._channels.setdefault(item.key, _Channel())
        if channel.array is not item.array:
            if channel.array is not None:
                # MXNet's engine keeps the order of one array's uses, not of two's.
                channel.array.wait_to_read()
            # BytePS asks at once where the array lies. Where the engine is just giving it memory, both do so,
            # and what is computed goes to one place while BytePS reads another.
            item.array.wait_to_read()
            channel.array = item.array
        fresh = channel.era < self._era and not meeting
        channel.turn = 0 if fresh else 1 - channel.turn
        channel.era = self._era
        return f"{item.key}.{'AB'[channel.turn]}"

    def _announce(
        self, names: Sequence[str], sums: Sequence[Sum], compressor: Mapping[str, str]
    ) -> Callable[[], None]:
        """Declares names. Their first push_pull makes them known to the servers; until the returned function
        is called nothing else travels."""
        self.wait()
        for name in names:
            self._library.declare(name, compressor)
        self._declared.update(names)
        return self._library.hold([item.array for item in sums])
