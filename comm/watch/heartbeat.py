"""Signs of life between the ranks of one run, over TCP connections of their own.

Rank 0 has a `Hub`; every other rank has a `Link` to it. A link sends a beat every `interval` seconds, the hub
answers each. A hub or link that receives nothing for `timeout` seconds, or sees a connection close without a
goodbye, comes to a verdict; the hub sends its verdict to all links. A verdict goes to `on_verdict(kind,
text)` in the thread of the hub or link, which ends then. What is done about it is decided in
`comm.watch.watchdog`.

On the wire: JSON objects, one a line. Link: {"token", "rank", "host", "pid"} once, then beats {"doing",
"waiting", "closed"}. Hub: {"host", "pid"} once, then {"doing"}, at the end {"verdict"} or {"bye"}. A
connection that does not begin with the token is closed. Standard library only.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import select
import socket
import threading
import time
from typing import Any, Callable, NamedTuple, Sequence

SILENT, ENDED, STUCK, LOST, TOLD = "silent", "ended", "stuck", "lost", "told"
_GOODBYE_SECONDS = 3.0
_CONNECT_SECONDS = 3.0  # for one address; the others are tried after that
_ANSWER_SECONDS = 10.0
_LONGEST_LINE = 1 << 16


OnVerdict = Callable[[str, str], None]


class Sign(NamedTuple):
    """A sign of life: the exchange that its rank is in ("" for none), and for how many seconds the rank has
    been waiting in it (0 when it is not waiting)."""

    doing: str
    waiting: float


class Watch(NamedTuple):
    """Terms on which a rank watches the others.

    timeout: seconds without a sign of life after which a rank counts as missing. interval: seconds between
    two beats. sign: returns this rank's sign of life. on_verdict: called with (kind, text), once.
    """

    timeout: float
    interval: float
    sign: Callable[[], Sign]
    on_verdict: OnVerdict


class HubAddress(NamedTuple):
    """Place where a hub listens, and the token by which a link shows that it belongs to the run."""

    addresses: Sequence[str]
    port: int
    token: str


class Hub:
    """Rank 0's end of a run of `size` ranks, listening on the interface `address` (empty: all)."""

    def __init__(self, size: int, watch: Watch, address: str = ""):
        self._size = size
        self._timeout, self._interval, self._sign, self._on_verdict = watch
        self.token = secrets.token_hex(16)
        self._listener = socket.create_server((address, 0), backlog=max(size, 16))
        self.port: int = self._listener.getsockname()[1]
        self._peers: dict[int, Peer] = {}  # by rank
        self._strangers: list[Peer] = []  # those that have not yet said who they are
        self._reported = ""
        self._thread = StoppableThread(self._run)
        self._thread.start()

    @property
    def missing(self) -> list[int]:
        """Ranks that have never connected."""
        return [rank for rank in range(1, self._size) if rank not in self._peers]

    def report(self, text: str) -> None:
        """Makes `text` the verdict: something that is no rank is missing. Any thread may call it."""
        self._reported = text

    def close(self) -> None:
        """Waits until all links have been closed too, still watching them, then lets them go. After a verdict
        this does not return before `on_verdict` does."""
        self._thread.stop()

    def _run(self) -> None:
        try:
            turn = time.monotonic()
            while not (self._thread.stopping and all(peer.closed for peer in self._peers.values())):
                self._receive(self._interval)
                now = time.monotonic()
                if now - turn > self._timeout / 2:
                    # This process itself was stopped or starved. What came meanwhile may not all be read.
                    for peer in self._peers.values():
                        peer.heard = now
                turn = now
                verdict = self._judge(now)
                if verdict:
                    self._tell(verdict=verdict[1])
                    self._on_verdict(*verdict)
                    return
            self._tell(bye=True)
            # Each link closes its end at that; to close this end first could destroy what is on its way.
            deadline = time.monotonic() + _GOODBYE_SECONDS
            while any(peer.is_open for peer in self._peers.values()) and time.monotonic() < deadline:
                self._receive(deadline - time.monotonic())
        finally:
            for peer in [*self._peers.values(), *self._strangers]:
                peer.close()
            self._listener.close()

    def _tell(self, **message: Any) -> None:
        for peer in self._peers.values():
            peer.send(**message)

    def _receive(self, seconds: float) -> None:
        open_peers = [peer for peer in [*self._peers.values(), *self._strangers] if peer.is_open]
        sources = [self._listener, *(peer.socket for peer in open_peers)]
        if not self._thread.stopping:
            sources.append(self._thread.wakeup)
        ready = set(readable(sources, seconds))
        if self._listener in ready:
            with contextlib.suppress(OSError):
                self._strangers.append(Peer(self._listener.accept()[0]))
        for peer in open_peers:
            if peer.socket in ready:
                for message in peer.read():
                    self._handle(peer, message)
        now = time.monotonic()
        for stranger in list(self._strangers):
            if not stranger.is_open or now - stranger.heard > self._timeout:
                stranger.close()
                self._strangers.remove(stranger)

    def _handle(self, peer: Peer, message: dict[str, Any]) -> None:
        if peer in self._strangers:
            rank, token = message.get("rank"), str(message.get("token"))
            known = hmac.compare_digest(token.encode(), self.token.encode())
            if not known or not isinstance(rank, int) or rank not in self.missing:
                peer.close()
                return
            peer.rank, peer.host, peer.pid = rank, str(message.get("host")), str(message.get("pid"))
            self._strangers.remove(peer)
            self._peers[rank] = peer
            peer.send(host=socket.gethostname(), pid=os.getpid())
        else:
            peer.closed = bool(message.get("closed"))
            peer.sign = Sign(str(message.get("doing", "")), float(message.get("waiting", 0.0)))
            peer.send(doing=self._sign().doing)

    def _judge(self, now: float) -> tuple[str, str] | None:
        peers = list(self._peers.values())
        ended = [peer for peer in peers if not peer.is_open]
        if ended:
            return ENDED, _list(ended, "ended without closing the run")
        if any(now - peer.heard > self._timeout for peer in peers):
            # When a host is lost, its ranks fall silent within one interval.
            silent = [peer for peer in peers if now - peer.heard > self._timeout - 1.5 * self._interval]
            return SILENT, _list(silent, f"given no sign of life for {self._timeout:g} s")
        if self._reported:
            return LOST, self._reported
        if not self.missing:
            signs = [self._sign(), *(peer.sign for peer in peers)]
            if min(sign.waiting for sign in signs) > self._timeout:
                where = "/".join(sorted({sign.doing for sign in signs}))
                return STUCK, f"all {len(signs)} ranks have waited in {where} for {self._timeout:g} s"
        return None


class Link:
    """Another rank's end. Connects to the first of the hub's addresses where the hub answers.

    Raises ConnectionError when it answers nowhere within `connect_seconds`.
    """

    def __init__(self, rank: int, address: HubAddress, watch: Watch, connect_seconds: float):
        self._timeout, self._interval, self._sign, self._on_verdict = watch
        hello = {"token": address.token, "rank": rank, "host": socket.gethostname(), "pid": os.getpid()}
        self._hub = connect(address.addresses, address.port, hello, connect_seconds)
        self._thread = StoppableThread(self._run)
        self._thread.start()

    def close(self) -> None:
        """Announces to the hub that this rank has closed, and waits until it lets the links go. After a
        verdict this does not return before `on_verdict` does."""
        self._thread.stop()

    def _run(self) -> None:
        hub = self._hub
        try:
            due = turn = time.monotonic()
            told_so = False
            while True:
                if turn >= due or self._thread.stopping and not told_so:
                    told_so = self._thread.stopping
                    sign = self._sign()
                    hub.send(doing=sign.doing, waiting=round(sign.waiting, 3), closed=told_so)
                    due = turn + self._interval
                sources = [hub.socket] if told_so else [hub.socket, self._thread.wakeup]
                messages = hub.read() if hub.socket in readable(sources, due - turn) else []
                now = time.monotonic()
                if now - turn > self._timeout / 2:
                    hub.heard = now  # this process itself was stopped or starved
                turn = now
                if any(message.get("bye") for message in messages):
                    return
                verdict = self._judge(messages, now)
                if verdict:
                    self._on_verdict(*verdict)
                    return
        finally:
            hub.close()

    def _judge(self, messages: list[dict[str, Any]], now: float) -> tuple[str, str] | None:
        hub = self._hub
        for message in messages:
            if "verdict" in message:
                return TOLD, str(message["verdict"])
            hub.sign = Sign(str(message.get("doing", "")), 0.0)
        if not hub.is_open:
            return ENDED, _list([hub], "ended without closing the run")
        if now - hub.heard > self._timeout:
            return SILENT, _list([hub], f"given no sign of life for {self._timeout:g} s")
        return None


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
        """Sends one message without waiting; a connection that does not take it loses it."""
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
        """Closes the connection."""
        self.is_open = False
        self.socket.close()


class StoppableThread:
    """A daemon thread that another thread can stop: `wakeup` is then readable, and remains so."""

    def __init__(self, run: Callable[[], None]):
        self.stopping = False
        self.wakeup, self._waker = socket.socketpair()
        self._thread = threading.Thread(target=run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stops the thread and waits until it has ended."""
        self.stopping = True
        self._waker.send(b"x")
        self._thread.join()
        self.wakeup.close()
        self._waker.close()


def connect(addresses: Sequence[str], port: int, hello: dict[str, Any], timeout: float) -> Peer:
    """Connects to the first address where the hub answers to `hello`.

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
    """The sources (with `fileno`) that have something to read, after at most `seconds`."""
    poll = select.poll()  # select() itself cannot take descriptors above 1023
    by_number = {source.fileno(): source for source in sources}
    for number in by_number:
        poll.register(number, select.POLLIN)
    return [by_number[number] for number, _ in poll.poll(max(0.0, seconds) * 1000)]


def _list(peers: Sequence[Peer], what: str) -> str:
    """`rank 3 (node-2, pid 4711) has ended ..., last in all_agree`; of many the first few."""
    named = [
        f"rank {peer.rank} ({peer.host}, pid {peer.pid}, last {_place(peer.sign.doing)})"
        for peer in sorted(peers, key=lambda peer: peer.rank)
    ]
    more = f" and {len(named) - 4} more" if len(named) > 4 else ""
    return f"{', '.join(named[:4])}{more} {'has' if len(named) == 1 else 'have'} {what}"


def _place(doing: str) -> str:
    return f"in {doing}" if doing else "outside of any exchange"
