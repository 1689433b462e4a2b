"""Pods of a run over BytePS: they begin together and end together. Standard library only.

Kubernetes starts and replaces each pod by itself, while BytePS needs all of its processes anew when one of
them is lost: scheduler and servers would wait for ever for a worker that has been replaced. So every pod
keeps a connection to the `Coordinator` in the scheduler's pod. When all have joined it, the run starts; when
a pod's processes have ended or its connection breaks, all pods learn the run's exit code and end with it, and
their Jobs start them again, or do not.

Lines of text in frames of base/sealed.py, under the run's secret. A member sends `join ROLE INDEX WORKERS
SERVERS SLOTS`, `leaving` (it has received a signal), `ended CODE`; the coordinator sends `start`, `leave`
(let the ranks save and end), `stop CODE REASON`.

Anyone may reach the coordinator's port. Whoever has not shown that it has the secret is a stranger: of these
there are few at a time, they leave after seconds, and nothing that they send is looked at. BytePS's own ports
have no such protection: see hosts/batch/pod.yaml for the network policy.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Callable

from base.errors import RUN_AGAIN, InputError, one_line
from base.launchers import is_number
from base.sealed import AT_ONCE, LONGEST, TOKEN_BYTES, Seal
from hosts.launching.signals import STOPPED

SCHEDULER, SERVER, WORKER = "scheduler", "server", "worker"
STRANGERS = 256  # connections that have not joined
ORDERLY = (0, RUN_AGAIN, *STOPPED)  # exit codes of ranks that have saved or are complete
TOGETHER = 90.0  # seconds for the other pods' processes to end when the first has ended in order
SERVERS = 30.0  # seconds for servers and the scheduler to end after the last rank
UNRELEASED = 5.0  # the same where ranks were stopped: those that had not joined do not release them
LEAVING = 15.0  # seconds for members to close their connections when they know the exit code
INTRODUCTION = 10.0  # seconds for a connection to join
_LABEL = b"gathering 1"
_ACCEPTED_A_TURN = 64
_PROBES = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 2), (socket.TCP_KEEPCNT, 5))
_UNANSWERED_MS = 20_000  # a pod whose node is gone is noticed as late as one that is asked for signs of life


@dataclass(frozen=True)
class Shape:
    """Numbers of pods with workers and with servers, and of ranks of a worker."""

    workers: int
    servers: int
    slots: int

    def members(self) -> set[tuple[str, int]]:
        """Role and index of every pod."""
        servers = {(SERVER, index) for index in range(self.servers)}
        return {(SCHEDULER, 0), *servers, *((WORKER, index) for index in range(self.workers))}


@dataclass(frozen=True)
class Verdict:
    """The run's exit code, and the reason as a sentence; empty where it is complete."""

    code: int
    reason: str = ""


def read_secret(path: str) -> bytes:
    """The run's secret: what a file has, at least TOKEN_BYTES bytes, blanks around it left out.

    Raises:
        InputError: it cannot be read, or is too short.
    """
    try:
        secret = Path(path).read_bytes().strip()
    except OSError as error:
        raise InputError(f"--secret {path}: {error.strerror}; mount the run's Secret there") from None
    if len(secret) < TOKEN_BYTES:
        raise InputError(f"--secret {path}: it has {len(secret)} bytes, a secret at least {TOKEN_BYTES}")
    return secret


class Stream:
    """A connection that carries lines, which both ends sign."""

    def __init__(self, connection: socket.socket, secret: bytes, is_caller: bool):
        """Takes the connection over; the kernel gives it up when the other host answers no more."""
        self.connection, self._seal = connection, Seal(secret, _LABEL, is_caller)
        self._sending = threading.Lock()
        self._held: list[bytes] = []  # until the other end's nonce has come
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _PROBES:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNANSWERED_MS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._write(self._seal.greeting)

    def send(self, text: str) -> None:
        """Sends a line, when the other end's nonce has come. An end of the connection is seen by whoever
        reads."""
        self._held.append(one_line(text)[: LONGEST // 4].encode())
        self._flush()

    def receive(self) -> list[list[str]] | None:
        """Words of the lines that have arrived, empty where none is complete; None at the end of the
        connection, or where bytes come that the other end has not signed."""
        lines = []
        try:
            data = self.connection.recv(AT_ONCE)
            if not data:
                return None
            for payload in self._seal.open(data):
                lines.append(payload.decode("utf-8").split())
        except (BlockingIOError, InterruptedError):
            return []
        except (OSError, ValueError):
            return lines or None  # the next call finds the bad frame again
        self._flush()
        return lines

    def _flush(self) -> None:
        with self._sending:  # one thread listens, another sends
            while self._held and self._seal.can_close:
                self._write(self._seal.close(self._held.pop(0)))

    def _write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            self.connection.sendall(data)

    def close(self) -> None:
        """Closes the connection."""
        with contextlib.suppress(OSError):
            self.connection.close()


class Coordinator(threading.Thread):
    """Starts all pods when all have come, and decides how the run ends. A thread of its own."""

    def __init__(self, shape: Shape, secret: bytes, port: int, patience: float, say: Callable[[str], None]):
        """Listens at `port` (0: a free one) on all addresses of the pod; `patience`: seconds to wait for all
        pods. Raises OSError where the port is not free."""
        super().__init__(daemon=True)
        self._shape, self._secret, self._patience, self._say = shape, secret, patience, say
        self._listener = socket.create_server(("", port), backlog=1024)
        self.port = self._listener.getsockname()[1]
        self._strangers: dict[Stream, float] = {}
        self._members: dict[tuple[str, int], Stream] = {}
        self._ended: dict[tuple[str, int], int] = {}
        self._begun = False
        self._verdict: Verdict | None = None
        self._selector = selectors.DefaultSelector()
        self._deadline = 0.0

    def run(self) -> None:
        """Serves until the run has ended."""
        self._deadline = time.monotonic() + self._patience
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        while self._verdict is None or (self._members and time.monotonic() < self._deadline):
            for key, _ in self._selector.select(0.2):
                key.data()
            self._look_at_the_clock()
        for stream in (*self._members.values(), *self._strangers):
            stream.close()
        self._listener.close()

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_A_TURN):
            try:
                connection, _ = self._listener.accept()
            except OSError:  # nobody waits any more, or has gone again
                break
            connection.settimeout(5.0)  # for sending; what is read has arrived
            stream = Stream(connection, self._secret, is_caller=False)
            self._strangers[stream] = time.monotonic()
            self._selector.register(connection, selectors.EVENT_READ, partial(self._introduce, stream))
        while len(self._strangers) > STRANGERS:
            self._drop(min(self._strangers, key=lambda each: self._strangers[each]))

    def _drop(self, stream: Stream) -> None:
        self._strangers.pop(stream, None)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(stream.connection)
        stream.close()

    def _introduce(self, stream: Stream) -> None:
        lines = stream.receive()
        if lines == []:
            return
        # What is read from here on is of a pod that has the run's secret.
        words = lines[0] if lines else []
        numbers = words[2:]
        if len(words) != 6 or words[0] != "join" or not all(map(is_number, numbers)):
            self._drop(stream)
            return
        who, shape = (words[1], int(numbers[0])), Shape(*map(int, numbers[1:]))
        if shape != self._shape or who not in self._shape.members():
            stream.send(f"stop 2 {_name(who)} belongs to {shape}, the scheduler to {self._shape}")
            self._drop(stream)
            return
        if self._begun:
            # A pod has been replaced, and its old connection is still believed to be alive.
            self._drop(stream)
            self._end(Verdict(1, f"{_name(who)} has come a second time"))
            return
        del self._strangers[stream]
        earlier = self._members.pop(who, None)
        if earlier is not None:
            self._drop(earlier)
        self._members[who] = stream
        self._selector.modify(stream.connection, selectors.EVENT_READ, lambda: self._hear(who, stream))
        if set(self._members) == self._shape.members():
            self._begun = True
            self._say(f"all {len(self._members)} pods have come")
            self._send("start")

    def _hear(self, who: tuple[str, int], stream: Stream) -> None:
        lines = stream.receive()
        if lines is None:
            self._drop(stream)
            if self._members.get(who) is stream:
                del self._members[who]
            if self._begun and who not in self._ended:
                self._end(Verdict(1, f"{_name(who)} has been lost"))
            return
        for words in lines:
            if words == ["leaving"]:
                self._send("leave", only=WORKER)
            elif len(words) == 2 and words[0] == "ended" and is_number(words[1]):
                self._note_end(who, int(words[1]))

    def _note_end(self, who: tuple[str, int], code: int) -> None:
        self._ended[who] = code
        if code not in ORDERLY:
            self._end(Verdict(code, f"{_name(who)} ended with {code}"))
        elif len(self._ended) == 1:
            self._deadline = time.monotonic() + TOGETHER
        waiting = self._shape.members() - set(self._ended)
        if not waiting:
            self._end(self._orderly_end())
        elif who[0] == WORKER and not any(role == WORKER for role, _ in waiting):
            self._deadline = time.monotonic() + (UNRELEASED if self._orderly_end().code else SERVERS)

    def _orderly_end(self) -> Verdict:
        codes = [code for who, code in sorted(self._ended.items()) if who[0] == WORKER]
        code = next((each for each in codes if each), 0)
        return Verdict(code, f"the ranks ended with {code}" if code else "")

    def _look_at_the_clock(self) -> None:
        now = time.monotonic()
        for stream in [each for each, since in self._strangers.items() if now - since > INTRODUCTION]:
            self._drop(stream)
        if self._verdict is not None or now < self._deadline:
            return
        if not self._begun:
            missing = sorted(self._shape.members() - set(self._members))
            names = ", ".join(map(_name, missing))
            self._end(Verdict(1, f"these pods have not come within {self._patience:g} s: {names}"))
        elif self._ended:
            # Servers that only wait are no reason for another exit code.
            late = sorted(who for who in self._shape.members() - set(self._ended) if who[0] == WORKER)
            names = ", ".join(map(_name, late))
            why = f"these had not ended {TOGETHER:g} s after the first: {names}"
            self._end(Verdict(1, why) if late else self._orderly_end())

    def _end(self, verdict: Verdict) -> None:
        if self._verdict is None:
            self._verdict = verdict
            self._deadline = time.monotonic() + LEAVING
            self._send(f"stop {verdict.code} {verdict.reason}")

    def _send(self, text: str, only: str = "") -> None:
        for (role, _), stream in list(self._members.items()):
            if role == only or not only:
                stream.send(text)


class Member:
    """One pod's connection to the coordinator, once it has joined."""

    def __init__(self, role: str, index: int, shape: Shape, secret: bytes):
        self.role, self.index, self._shape, self._secret = role, index, shape, secret
        self._stream: Stream | None = None
        self.verdict: Verdict | None = None
        self._started, self._over = threading.Event(), threading.Event()

    def join(
        self,
        place: tuple[str, int],
        patience: float,
        stopped: Callable[[], bool],
        leave: Callable[[], None],
        stop: Callable[[], None],
    ) -> str:
        """Connects to the coordinator at `place` (host name, port) and waits for all other pods.

        `stopped` is asked every half a second; where it is true, the wait ends. From the start on a thread
        listens: it calls `leave` when the ranks shall save and end, `stop` when all is over.

        Returns:
            The coordinator's address in numbers; empty where there is nothing to start: see `verdict`, which
            stays None if `stopped` was the reason.
        """
        numbers = f"{self.index} {self._shape.workers} {self._shape.servers} {self._shape.slots}"
        deadline = time.monotonic() + patience
        why = "no answer"
        while not stopped():
            if time.monotonic() > deadline:
                where = f"{place[0]}:{place[1]}"
                self.verdict = Verdict(
                    1, f"the coordinator at {where} was not reached in {patience:g} s: {why}"
                )
                return ""
            try:
                connection = socket.create_connection(place, timeout=5.0)
            except OSError as error:
                why = error.strerror or str(error)
                time.sleep(0.5)
                continue
            connection.settimeout(None)
            self._stream, self._over = Stream(connection, self._secret, is_caller=True), threading.Event()
            self._stream.send(f"join {self.role} {numbers}")
            threading.Thread(target=self._listen, args=(leave, stop), daemon=True).start()
            # The coordinator's own patience is as long; it names who is missing.
            while not self._over.is_set() and time.monotonic() < deadline + LEAVING and not stopped():
                if self._started.wait(0.5):
                    return str(connection.getpeername()[0])
            self.close()
            self._over.wait(LEAVING)
            if self.verdict is not None:
                return ""
            why = "it closed the connection; is it the coordinator of this run, with the same secret?"
            time.sleep(0.5)
        return ""

    def _listen(self, leave: Callable[[], None], stop: Callable[[], None]) -> None:
        assert self._stream is not None
        while self.verdict is None:
            lines = self._stream.receive()
            if lines is None and self._started.is_set():
                self.verdict = Verdict(1, "the connection to the scheduler's pod has been lost")
            if lines is None:
                break
            for words in lines:
                if words == ["start"]:
                    self._started.set()
                elif words == ["leave"]:
                    leave()
                elif len(words) >= 2 and words[0] == "stop" and is_number(words[1]):
                    self.verdict = Verdict(min(int(words[1]), 255), " ".join(words[2:]))
        self._over.set()
        if self._started.is_set():
            stop()

    def leaving(self) -> None:
        """Reports that this pod has been asked to end."""
        if self._stream is not None:
            self._stream.send("leaving")

    def ended(self, code: int) -> Verdict:
        """Reports the exit code of this pod's processes; waits for the run's."""
        if self._stream is not None:
            self._stream.send(f"ended {code}")
        if not self._over.wait(TOGETHER + SERVERS + LEAVING) or self.verdict is None:
            self.verdict = Verdict(code or 1, "the scheduler's pod did not say how the run ended")
        return self.verdict

    def close(self) -> None:
        """Closes the connection."""
        if self._stream is not None:
            with contextlib.suppress(OSError):
                self._stream.connection.shutdown(socket.SHUT_RDWR)  # a thread may be reading
            self._stream.close()


def _name(who: tuple[str, int]) -> str:
    return who[0] if who[0] == SCHEDULER else f"{who[0]} {who[1]}"
