"""Activations and their gradients between neighbouring stages.

Every receive is posted one message ahead: what the neighbour sends while this stage computes arrives
meanwhile. No send is waited for before what must be received first: the waits follow the order of the passes,
which is free of circles, so the stages cannot block each other.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Callable, Sequence

import mxnet as mx

from comm.base import Communicator, Pending

Room = Callable[[int], mx.nd.NDArray]
AHEAD = 2  # messages for which a receive is posted: the one waited for, and the next


class Rooms:
    """Arrays that messages are received into, used again when they have been given back; `with_gradient`:
    each has room for its gradient, which a backward pass leaves there."""

    def __init__(self, device: mx.Context, with_gradient: bool) -> None:
        self._device = device
        self._with_gradient = with_gradient
        self._free: dict[tuple[Any, ...], list[mx.nd.NDArray]] = {}

    def take(self, shape: tuple[int, ...], dtype: str) -> mx.nd.NDArray:
        """An array of this shape and dtype, of any content."""
        free = self._free.setdefault((shape, dtype), [])
        if free:
            return free.pop(0)  # the one that has waited longest: nobody computes with it any more
        array = mx.nd.zeros(shape, ctx=self._device, dtype=dtype)
        if self._with_gradient:
            array.attach_grad()
        return array

    def give_back(self, array: mx.nd.NDArray) -> None:
        """Takes back an array that nobody uses any more."""
        self._free.setdefault((array.shape, array.dtype.__name__), []).append(array)


class Incoming:
    """The messages of a step from one neighbour, in the order of the micro-batches.

    Args:
        source: the neighbour's rank.
        tag: of a micro-batch's message. room: an array for it.
        count: micro-batches of the step.
    """

    def __init__(
        self, communicator: Communicator, source: int, tag: Callable[[int], int], room: Room, count: int
    ) -> None:
        self._communicator = communicator
        self._source, self._tag, self._room = source, tag, room
        self._count = count
        self._posted: deque[tuple[mx.nd.NDArray, Pending]] = deque()
        self._next = 0
        while self._next < min(AHEAD, count):
            self._post()

    def take(self) -> mx.nd.NDArray:
        """Waits for the next message and returns it."""
        array, pending = self._posted.popleft()
        pending.wait()
        if self._next < self._count:
            self._post()
        return array

    def _post(self) -> None:
        array = self._room(self._next)
        pending = self._communicator.receive(array, self._source, self._tag(self._next))
        self._posted.append((array, pending))
        self._next += 1


class Outgoing:
    """Messages to a neighbour that are on their way, and what is to be done when they have left."""

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self._sent: deque[tuple[Pending, Callable[[], None]]] = deque()

    def send(
        self, array: mx.nd.NDArray, to: int, tag: int, then: Callable[[], None] = lambda: None
    ) -> Pending:
        """Sends when the array has been written; `then` is called at some time after it has left."""
        self._settle()
        pending = self._communicator.send(array, to, tag)
        self._sent.append((pending, then))
        return pending

    def limit(self, most: int) -> None:
        """Waits until no more than `most` messages are on their way."""
        while len(self._sent) > most:
            self._pop()

    def _settle(self) -> None:
        while self._sent and self._sent[0][0].done():
            self._pop()

    def _pop(self) -> None:
        pending, then = self._sent.popleft()
        pending.wait()
        then()


def shapes_of(batches: Sequence[Any]) -> list[tuple[int, int]]:
    """Rows and length of each micro-batch."""
    return [tuple(batch.input_ids.shape) for batch in batches]
