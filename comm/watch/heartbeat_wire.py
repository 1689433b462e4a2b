"""The connections of `comm.watch.heartbeat`: JSON objects, one a line, over TCP. Standard library only."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
import time
from typing import Any, Callable, NamedTuple, Sequence

_LONGEST_LINE = 1 << 16
_CONNECT_SECONDS = 3.0  # for one address; the others are tried after that
_ANSWER_SECONDS = 10.0


class Sign(NamedTuple):
    """What a rank tells of itself: the exchange it is in ("" for none), and for how many seconds it has been
    waiting in it (0 when it is not waiting)."""

    doing: str
    waiting: float


class Peer:
    """One connection and what is known of the rank behind it."""

    def __init__(self, connection: socket.socket):
        connection.setblocking(False)
        self.socket = connection
        self.is_open = True
        self.closed = False  # its rank has closed the run
        self.heard = time.monotonic()
        self.sign = Sign("", 0.0)
        self.rank, self.host, self.pid = 0, "", ""
        self._received = b""

    def send(self, **message: Any) -> None:
        # A full buffer means that the other end does not read; it will be missed for that. A closed one is
        # noticed by reading.
        with contextlib.suppress(OSError):
            self.socket.send(json.dumps(message).encode() + b"\n")

    def read(self) -> list[dict[str, Any]]:
        """The messages that have come; closes the connection at its end and when it is not ours."""
        try:
            data = self.socket.recv(_LONGEST_LINE)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self.close()
            return []
        self.heard = time.monotonic()
        *lines, self._received = (self._received + data).split(b"\n")
        try:
            messages = [json.loads(line) for line in lines]
        except ValueError:
            messages = [None]
        if len(self._received) > _LONGEST_LINE or not all(isinstance(each, dict) for each in messages):
            self.close()
            return []
        return messages

    def close(self) -> None:
        self.is_open = False
        self.socket.close()


class StoppableThread:
    """A daemon thread that another thread can stop: `wakeup` is then readable, and remains so."""

    def __init__(self, run: Callable[[], None]):
        self.stopping = False
        self.wakeup, self._waker = socket.socketpair()
        self._thread = threading.Thread(target=run, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to stop, and wait until it has."""
        self.stopping = True
        self._waker.send(b"x")
        self._thread.join()
        self.wakeup.close()
        self._waker.close()


def connect(addresses: Sequence[str], port: int, hello: dict[str, Any], timeout: float) -> Peer:
    """Connect to the first address where the hub answers to `hello`.

    Raises ConnectionError when none does within `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    reason = "no address"
    while True:
        for address in addresses:
            try:
                connection = socket.create_connection((address, port), _CONNECT_SECONDS)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError as error:
                reason = f"{address}: {error.strerror or error}"
                continue
            hub = Peer(connection)
            hub.send(**hello)
            answer = hub.read() if readable([connection], _ANSWER_SECONDS) else []
            if answer:
                hub.host, hub.pid = str(answer[0].get("host")), str(answer[0].get("pid"))
                return hub
            hub.close()
            reason = f"{address}: it is not rank 0 that answers there"
        if time.monotonic() > deadline:
            raise ConnectionError(reason)
        time.sleep(0.2)


def readable(sources: Sequence[Any], seconds: float) -> list[Any]:
    """Those sources (with `fileno`) that have something to read, after at most `seconds`."""
    poll = select.poll()  # select() itself cannot take descriptors above 1023
    by_number = {source.fileno(): source for source in sources}
    for number in by_number:
        poll.register(number, select.POLLIN)
    return [by_number[number] for number, _ in poll.poll(max(0.0, seconds) * 1000)]
