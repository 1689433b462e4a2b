"""Signs of life between the ranks of one run, over TCP connections of their own.

Rank 0 has a `Hub`; every other rank has a `Link` to it. A link sends a beat every `interval` seconds, the hub
answers each. A hub or link that receives nothing for `timeout` seconds, or sees a connection close without a
goodbye, comes to a verdict; the hub sends its verdict to all links. A verdict goes to `on_verdict(kind,
text)` in the thread of the hub or link, which ends then. What is done about it is decided in
`comm.watch.watchdog`.

Messages (comm.watch.wire). Link: HELLO once, then BEAT, at the end CLOSED. Hub: HELLO once, then BEAT, at the
end VERDICT or BYE.

Anyone may reach the hub's port. It listens only until every rank has connected. Until then whoever has not
shown that it has the token is a stranger: of these there are few at a time, they leave after seconds, and
nothing that they send is looked at before its HMAC is correct. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Callable, NamedTuple, Sequence

from base.sealed import TOKEN_BYTES
from comm.watch.wire import BEAT, BYE, CLOSED, HELLO, VERDICT, Channel, Message

SILENT, ENDED, STUCK, LOST, TOLD = "silent", "ended", "stuck", "lost", "told"
LOOPBACK = "127.0.0.1"
SPARE = 64  # strangers at a time, besides one for each rank that has yet to come
STRANGER_SECONDS = 3.0
_ACCEPTED_A_TURN = 64
_DEAF_SECONDS = 0.1  # when the process has no descriptor left for a connection
_BACKLOG = 1024
_GOODBYE_SECONDS = 3.0
_CONNECT_SECONDS = 3.0  # for one address; the others are tried after that
_ANSWER_SECONDS = 10.0


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
    on_verdict: Callable[[str, str], None]


@dataclass(frozen=True)
class HubAddress:
    """Places where a hub listens, (address, port), and the token by which both ends know each other."""

    places: Sequence[tuple[str, int]]
    token: bytes = field(repr=False)  # it must not get into a log

    def __str__(self) -> str:
        return ", ".join(f"port {port} of {address}" for address, port in self.places)


class Hub:
    """Rank 0's end of a run of `size` ranks, listening at each of its own `addresses`, IPv4 or IPv6, until
    all ranks have come. Raises OSError where none of them can be listened at."""

    def __init__(self, size: int, watch: Watch, addresses: Sequence[str] = (LOOPBACK,)):
        self._size = size
        self._timeout, self._interval, self._sign, self._on_verdict = watch
        self._listeners = _listen(addresses) if size > 1 else []
        places = tuple(listener.getsockname()[:2] for listener in self._listeners)
        self.address = HubAddress(places, secrets.token_bytes(TOKEN_BYTES))
        self._deaf_until = 0.0
        self._peers: dict[int, Peer] = {}  # by rank
        self._strangers: list[Peer] = []  # those that have not yet shown who they are, the oldest first
        self._reported = ""
        self.absent: int | None = None  # the first of the ranks that a verdict names
        self._thread = StoppableThread(self._run)
        self._thread.start()

    @property
    def missing(self) -> list[int]:
        """Ranks that have never connected."""
        return [rank for rank in range(1, self._size) if rank not in self._peers]

    def report(self, text: str) -> None:
        """Makes `text` the verdict: something that is no rank is missing. Any thread may call it."""
        self._reported = text
        self._thread.wake()

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
                    self._tell(Message(VERDICT, text=verdict[1]))
                    self._on_verdict(*verdict)
                    return
            self._tell(Message(BYE))
            # Each link closes its end at that; to close this end first could destroy what is on its way.
            deadline = time.monotonic() + _GOODBYE_SECONDS
            while any(peer.is_open for peer in self._peers.values()) and time.monotonic() < deadline:
                self._receive(deadline - time.monotonic())
        finally:
            for peer in self._peers.values():
                peer.close()
            self._shut()

    def _tell(self, message: Message) -> None:
        for peer in self._peers.values():
            peer.send(message)

    def _receive(self, seconds: float) -> None:
        peers = [peer for peer in self._peers.values() if peer.is_open]
        now = time.monotonic()
        listeners = self._listeners if now >= self._deaf_until else []
        if self._strangers:
            seconds = min(seconds, self._strangers[0].since + STRANGER_SECONDS - now)
        if len(listeners) < len(self._listeners):
            seconds = min(seconds, self._deaf_until - now)
        sources = [*listeners, *(each.socket for each in (*peers, *self._strangers))]
        if not self._thread.stopping:
            sources.append(self._thread.wakeup)
        ready = set(readable(sources, seconds))
        for peer in peers:
            if peer.socket in ready:
                for message in peer.receive():
                    peer.note(message)
                    peer.send(Message(BEAT, text=self._sign().doing))
        # Those who have sent something first: it may show that they are none, and make room.
        for stranger in [each for each in self._strangers if each.socket in ready]:
            self._examine(stranger)
        for listener in [each for each in listeners if each in ready]:
            self._accept(listener)
        # Strangers that have stayed too long or are too many go, the oldest first.
        limit = time.monotonic() - STRANGER_SECONDS
        excess = len(self._strangers) - len(self.missing) - SPARE
        for index, stranger in enumerate(list(self._strangers)):
            if index < excess or stranger.since <= limit:
                self._examine(stranger)  # it may have sent what shows that it is none
                if stranger in self._strangers:
                    stranger.close()
        self._strangers = [stranger for stranger in self._strangers if stranger.is_open]
        if self._listeners and not self.missing:
            self._shut()

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTED_A_TURN):
            try:
                connection = listener.accept()[0]
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError:
                # No descriptor is left. Strangers give theirs back; one who waits in the queue comes later.
                self._deaf_until = time.monotonic() + _DEAF_SECONDS
                for stranger in self._strangers:
                    stranger.close()
                return
            self._strangers.append(Peer(connection, self.address.token, is_caller=False))

    def _examine(self, stranger: Peer) -> None:
        """Reads what a stranger has sent; makes it a peer or closes the connection."""
        # Whatever the bytes of a stranger bring about must not be the end of the run.
        try:
            messages = stranger.receive() if stranger.is_open else []
            if messages:
                self._introduce(stranger, messages)
        except Exception:
            stranger.close()

    def _introduce(self, stranger: Peer, messages: Sequence[Message]) -> None:
        hello = messages[0]
        # A rank that has come is not missing: a HELLO that is sent again is worth nothing.
        if len(messages) != 1 or hello.kind != HELLO or hello.rank not in self.missing:
            stranger.close()
            return
        with contextlib.suppress(BlockingIOError):  # it has sent nothing more, and is there
            if not stranger.socket.recv(1, socket.MSG_PEEK):
                stranger.close()  # it has waited too long for the answer, and comes again
                return
        stranger.rank, stranger.host, stranger.pid = hello.rank, hello.text, hello.pid
        stranger.heard = time.monotonic()
        self._strangers.remove(stranger)
        self._peers[hello.rank] = stranger
        stranger.send(Message(HELLO, 0, os.getpid(), text=socket.gethostname()))

    def _shut(self) -> None:
        """Ends listening."""
        for listener in self._listeners:
            listener.close()
        for stranger in self._strangers:
            stranger.close()
        self._listeners, self._strangers = [], []

    def _judge(self, now: float) -> tuple[str, str] | None:
        peers = list(self._peers.values())
        ended = [peer for peer in peers if not peer.is_open]
        if ended:
            self.absent = min(peer.rank for peer in ended)
            return ENDED, _list(ended, "ended without closing the run")
        if any(now - peer.heard > self._timeout for peer in peers):
            # When a host is lost, its ranks fall silent within one interval.
            silent = [peer for peer in peers if now - peer.heard > self._timeout - 1.5 * self._interval]
            self.absent = min(peer.rank for peer in silent)
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
    """Another rank's end. Connects to the first of the hub's places where the hub answers.

    Raises ConnectionError when it answers nowhere within `connect_seconds`.
    """

    absent = 0  # the hub is all that it could miss

    def __init__(self, rank: int, address: HubAddress, watch: Watch, connect_seconds: float):
        self._timeout, self._interval, self._sign, self._on_verdict = watch
        hello = Message(HELLO, rank, os.getpid(), text=socket.gethostname())
        self._hub = connect(address, hello, connect_seconds)
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
                    kind = CLOSED if told_so else BEAT
                    hub.send(Message(kind, waiting=sign.waiting, text=sign.doing))
                    due = turn + self._interval
                sources = [hub.socket] if told_so else [hub.socket, self._thread.wakeup]
                messages = hub.receive() if hub.socket in readable(sources, due - turn) else []
                now = time.monotonic()
                if now - turn > self._timeout / 2:
                    hub.heard = now  # this process itself was stopped or starved
                turn = now
                if any(message.kind == BYE for message in messages):
                    return
                verdict = self._judge(messages, now)
                if verdict:
                    self._on_verdict(*verdict)
                    return
        finally:
            hub.close()

    def outlive(self, seconds: float) -> None:
        """Waits, in `on_verdict`, until rank 0 has ended; so long at most."""
        deadline = time.monotonic() + seconds
        while self._hub.is_open and readable([self._hub.socket], deadline - time.monotonic()):
            self._hub.receive()

    def _judge(self, messages: list[Message], now: float) -> tuple[str, str] | None:
        hub = self._hub
        for message in messages:
            if message.kind == VERDICT:
                return TOLD, message.text
            hub.note(message)
        if not hub.is_open:
            return ENDED, _list([hub], "ended without closing the run")
        if now - hub.heard > self._timeout:
            return SILENT, _list([hub], f"given no sign of life for {self._timeout:g} s")
        return None


class Peer(Channel):
    """One connection and what is known of the rank behind it."""

    def __init__(self, connection: socket.socket, token: bytes, is_caller: bool):
        super().__init__(connection, token, is_caller)
        self.closed = False  # its rank has closed the run
        self.sign = Sign("", 0.0)
        self.rank, self.host, self.pid = 0, "", 0

    def note(self, message: Message) -> None:
        """Keeps the sign of life in a message."""
        if message.kind in (BEAT, CLOSED):
            self.closed = message.kind == CLOSED
            self.sign = Sign(message.text, message.waiting)


class StoppableThread(threading.Thread):
    """A daemon thread that another thread can stop, or wake for good: `wakeup` is then readable, and remains
    so."""

    def __init__(self, run: Callable[[], None]):
        super().__init__(target=run, name="heartbeat", daemon=True)
        self.stopping = False
        self.wakeup, self._waker = socket.socketpair()

    def wake(self) -> None:
        """Makes `wakeup` readable."""
        with contextlib.suppress(OSError):  # it has ended
            self._waker.send(b"x")

    def stop(self) -> None:
        """Stops the thread and waits until it has ended."""
        self.stopping = True
        self.wake()
        self.join()
        self.wakeup.close()
        self._waker.close()


def connect(address: HubAddress, hello: Message, timeout: float) -> Peer:
    """Connects to the first place where the hub answers to `hello`.

    Raises ConnectionError when none does within `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    reason = "no address"
    while True:
        for place in address.places:
            try:
                connection = socket.create_connection((place[0], place[1]), _CONNECT_SECONDS)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError as error:
                reason = f"{place[0]}: {error.strerror or error}"
                continue
            hub = Peer(connection, address.token, is_caller=True)
            hub.send(hello)
            answer = _answer(hub)
            if answer is not None:
                hub.host, hub.pid = answer.text, answer.pid
                return hub
            hub.close()
            reason = f"{place[0]}: it is not rank 0 that answers there"
        if time.monotonic() > deadline or not address.places:
            raise ConnectionError(reason)
        time.sleep(0.2)


def _answer(hub: Peer) -> Message | None:
    """The hub's HELLO, None if none comes in time."""
    deadline = time.monotonic() + _ANSWER_SECONDS
    while hub.is_open and readable([hub.socket], deadline - time.monotonic()):
        messages = hub.receive()
        if messages:
            return messages[0] if messages[0].kind == HELLO else None
    return None


def _listen(addresses: Sequence[str]) -> list[socket.socket]:
    """A listening socket at each address where that is possible. Raises OSError where none is."""
    listeners, failure = [], OSError("no address to listen at")
    for address in addresses:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            listener = socket.create_server((address, 0), family=family, backlog=_BACKLOG)
        except OSError as error:
            failure = error
            continue
        listener.setblocking(False)
        listeners.append(listener)
    if not listeners:
        raise failure
    return listeners


def readable(sources: Sequence[Any], seconds: float) -> list[Any]:
    """The sources (with `fileno`) that have something to read, after at most `seconds`."""
    poll = select.poll()  # select() itself cannot take descriptors above 1023
    by_number = {source.fileno(): source for source in sources}
    for number in by_number:
        poll.register(number, select.POLLIN)
    return [by_number[number] for number, _ in poll.poll(max(0.0, seconds) * 1000)]


def _list(peers: Sequence[Peer], what: str) -> str:
    """`rank 3 (node-2, pid 4711) has ended ..., last in all_agree`; of many the first few."""
    named = []
    for peer in sorted(peers, key=lambda peer: peer.rank):
        last = f"in {peer.sign.doing}" if peer.sign.doing else "outside of any exchange"
        named.append(f"rank {peer.rank} ({peer.host}, pid {peer.pid}, last {last})")
    more = f" and {len(named) - 4} more" if len(named) > 4 else ""
    return f"{', '.join(named[:4])}{more} {'has' if len(named) == 1 else 'have'} {what}"
