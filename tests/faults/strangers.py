"""Strangers at the heartbeat's port: a seeded attack on a real hub in a process of its own.

    python -m tests.faults --figures 5b --backends byteps --case at=hub,messages=10000,seed=1

A hub of four ranks runs without mxnet; ranks 1 and 2 are connected, rank 3 is missing, which keeps the port
open. Then come, all at once: messages of every kind below, connections that say nothing, that send a byte now
and then, that are half closed or reset, and a flood of connections from another process, during which rank 3
has to get in. `attack` returns every effect that it finds: a verdict, an exception, an end, descriptors or
memory that do not come back, signs of life that are late. There must be none.

`damage` spoils the hub first, to show that the attack can find something (DAMAGES).
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import random
import socket
import struct
import subprocess
import sys
import threading
import time
from typing import Callable, Iterator, NamedTuple, Sequence

from base import sealed
from comm.watch import heartbeat, wire
from comm.watch.heartbeat import Hub, HubAddress, Link, Sign, Watch
from tests.processes import ROOT

TIMEOUT, INTERVAL = 60.0, 0.1  # of the heartbeat under attack
HERE = "127.0.0.1"
HELD = 300  # connections that only stay: far more than the hub keeps
IDLE = 1000  # of those at a run
NO_TOKEN = bytes(range(32))
MEMORY = 8 << 20  # bytes that its interpreter may keep
FLOOD_SECONDS = 0.6
CONNECT_SECONDS = 60.0
RETURN_SECONDS = 10.0  # a busy machine may take that long to give all descriptors back
_BATCH = 28  # messages, between two looks at the hub
STAYING = 64  # of those that have sent something
_FIXED = struct.Struct(">BIId")  # kind, rank, process id, seconds: written down again, from the documentation


class Outcome(NamedTuple):
    """Outcome of an attack. `messages`: those that were delivered. `effects`: a line for each, none if all
    is well."""

    messages: int
    effects: tuple[str, ...]


def attack(messages: int, seed: int, stranger_seconds: float = 3.0, damage: str = "") -> Outcome:
    """Attacks a hub with so many messages, drawn with `seed`, and floods."""
    effects: list[str] = []
    links: list[Link] = []
    delivered = 0
    with _hub(stranger_seconds, damage) as (process, address):
        port = address.places[0][1]
        try:
            links += [_link(rank, address, effects) for rank in (1, 2)]
            descriptors, resident = [_descriptors(process.pid)], _memory(process.pid)
            held = _hold(port)
            for count in _send(port, address.token, messages, random.Random(seed), held):
                delivered = count
                descriptors.append(_descriptors(process.pid))
                if effects:
                    raise ConnectionError("the run has ended")
            with subprocess.Popen(_command("flood", port, FLOOD_SECONDS), cwd=ROOT):  # waits for its end
                time.sleep(FLOOD_SECONDS / 2)
                descriptors.append(_descriptors(process.pid))
                links.append(_link(3, address, effects))
            for connection in held:
                connection.close()
        except ConnectionError as error:
            effects.append(f"rank {len(links) + 1} cannot connect: {error}")
        for _ in range(round(RETURN_SECONDS / INTERVAL)):
            time.sleep(INTERVAL)
            if _descriptors(process.pid) <= descriptors[0]:
                break
        counts = (descriptors[0], max(descriptors), _descriptors(process.pid))
        memory = (resident, _memory(process.pid))
        effects += _differences(counts, memory, port)
        late = _finish(process, links, effects)
    if late > TIMEOUT / 4:
        effects.append(f"the hub's signs of life were {late:.1f} s late")
    if delivered < 0.9 * messages and not effects:
        effects.append(f"{messages - delivered} messages were not delivered")
    return Outcome(delivered, tuple(effects))


def bother(port: int, messages: int, seed: int, during: Callable[[], None]) -> int:
    """Attacks any hub's port as strangers who do not have its token: a thousand connections that stay, so
    many messages, a flood. Returns how many messages were delivered. `during`: called while the flood lasts.
    """
    held = _hold(port, IDLE)
    try:
        *_, delivered = _send(port, NO_TOKEN, messages, random.Random(seed), held)
        with subprocess.Popen(_command("flood", port, FLOOD_SECONDS), cwd=ROOT):  # waits for its end
            time.sleep(FLOOD_SECONDS / 2)
            during()
    finally:
        for connection in held:
            connection.close()
    return delivered


def _differences(descriptors: tuple[int, int, int], memory: tuple[int, int], port: int) -> list[str]:
    before, most, after = descriptors
    found = []
    if most > before + heartbeat.SPARE + 1 + 64:  # so many are accepted before some are shown out
        found.append(f"{most - before} descriptors more than before the attack")
    if after > before:  # rank 3's connection is there, and the listening socket is gone
        found.append(f"{after - before} descriptors have not come back")
    if memory[1] - memory[0] > MEMORY:
        found.append(f"{memory[1] - memory[0]} bytes of memory have not come back")
    with contextlib.suppress(OSError), socket.create_connection((HERE, port), 60):
        found.append("all ranks have come and the port is still open")
    return found


def _finish(process: subprocess.Popen[str], links: Sequence[Link], effects: list[str]) -> float:
    """Closes the run as ranks do; returns the longest time between two of the hub's signs of life."""
    closing = [threading.Thread(target=link.close, daemon=True) for link in links]
    for thread in closing:
        thread.start()
    try:
        rest, errors = process.communicate("close\n", timeout=TIMEOUT)
    except (subprocess.TimeoutExpired, BrokenPipeError):
        process.kill()
        rest, errors = process.communicate()
        effects.append("the hub does not close")
    for thread in closing:
        thread.join(TIMEOUT)
    if errors:
        effects.append(f"the hub wrote: {errors.strip().splitlines()[-1]}")
    said = [json.loads(line) for line in rest.splitlines()]
    effects += [f"the hub's verdict: {each['verdict']}" for each in said if "verdict" in each]
    if process.returncode != 0:
        effects.append(f"the hub ended with {process.returncode}")
    return max([each["late"] for each in said if "late" in each], default=0.0)


def _link(rank: int, address: HubAddress, effects: list[str]) -> Link:
    def verdict(kind: str, text: str) -> None:
        effects.append(f"rank {rank}'s verdict: {kind}, {text}")

    return Link(
        rank, address, Watch(TIMEOUT, INTERVAL, lambda: Sign("average", 0.0), verdict), CONNECT_SECONDS
    )


@contextlib.contextmanager
def _hub(stranger_seconds: float, damage: str) -> Iterator[tuple[subprocess.Popen[str], HubAddress]]:
    words = _command("serve", stranger_seconds, damage)
    pipe = subprocess.PIPE
    with subprocess.Popen(words, cwd=ROOT, text=True, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        try:
            assert process.stdout is not None
            place, token = json.loads(process.stdout.readline())
            yield process, HubAddress((tuple(place),), bytes.fromhex(token))
        finally:
            process.kill()


def _command(function: str, *given: object) -> list[str]:
    """Words that call a function of this module in a process of its own."""
    call = f"from tests.faults import strangers; strangers.{function}(*{given!r})"
    return [sys.executable, "-c", call]


def _send(
    port: int, token: bytes, messages: int, draw: random.Random, held: list[socket.socket]
) -> Iterator[int]:
    """Sends the messages, each over a connection of its own, a quarter of which are `held` until others come,
    and after each batch a byte over every second of those; yields how many messages were delivered."""
    kinds = tuple(MESSAGES.values())
    delivered, staying = 0, len(held)
    for number in range(messages):
        text = kinds[number % len(kinds)](draw, token)
        cut = draw.randrange(len(text) + 1)
        pieces = [text] if draw.random() < 0.7 else [text[:cut], text[cut:]]
        end = draw.randrange(4)
        with contextlib.suppress(OSError), contextlib.ExitStack() as ends:
            stranger = ends.enter_context(socket.create_connection((HERE, port), 2))
            delivered += 1
            for piece in pieces:
                stranger.sendall(piece)
            if end == 0:  # a reset
                stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if end == 1:
                stranger.shutdown(socket.SHUT_WR)
            if end == 2:
                held.append(stranger)
                ends.pop_all()
        if len(held) > staying + STAYING:
            held.pop(staying).close()
        if number % _BATCH == _BATCH - 1 or number == messages - 1:
            for connection in held[::2]:
                with contextlib.suppress(OSError):
                    connection.send(b"\0")
            yield delivered


def _hold(port: int, count: int = HELD) -> list[socket.socket]:
    """Connections that say nothing, or a byte now and then, or are half closed."""
    held = []
    for number in range(count):
        with contextlib.suppress(OSError):
            connection = socket.create_connection((HERE, port), 2)
            held.append(connection)
            if number % 5 == 0:
                connection.shutdown(socket.SHUT_WR)
    return held


def flood(port: int, seconds: float) -> None:
    """Opens connections as fast as one process can, and keeps the latest few hundred."""
    held: list[socket.socket] = []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            held.append(socket.create_connection((HERE, port), 0.5))
        if len(held) > 400:
            held.pop(0).close()


# --- What strangers send.


def _frame(payload: bytes, token: bytes) -> bytes:
    """The first bytes of a caller that has the token: `base.sealed`'s format, written down again."""
    nonce = b"n" * 16
    words = b"heartbeat 1" + b"caller" + nonce + bytes(16) + struct.pack(">Q", 0) + payload
    tag = hmac.new(token, words, hashlib.sha256).digest()
    return nonce + struct.pack(">H", len(payload)) + tag + payload


def _hello(rank: int) -> bytes:
    return _FIXED.pack(wire.HELLO, rank, 4711, 0.0) + b"node-7"


# Payloads that say nothing that a rank says.
WRONG: tuple[Callable[[random.Random], bytes], ...] = (
    lambda draw: b"",
    lambda draw: draw.randbytes(draw.randrange(1, 40)),
    lambda draw: _hello(0),
    lambda draw: _hello(1),  # again
    lambda draw: _hello(draw.randrange(4, 1 << 32)),
    lambda draw: _FIXED.pack(wire.HELLO, 3, 1, float("nan")),
    lambda draw: _FIXED.pack(wire.HELLO, 3, 1, float("inf")),
    lambda draw: _FIXED.pack(wire.BEAT, 1, 1, 1e300) + b"average",
    lambda draw: _FIXED.pack(wire.VERDICT, 0, 0, 0.0) + b"you are dead",
    lambda draw: _FIXED.pack(wire.BYE, 0, 0, 0.0),
    lambda draw: _FIXED.pack(200, 1, 1, 0.0) + b"\xff\xfe\xed\xa0\x80",
)

MESSAGES: dict[str, Callable[[random.Random, bytes], bytes]] = {
    "nothing": lambda draw, token: b"",
    "random bytes": lambda draw, token: bytes(draw.getrandbits(8) for _ in range(draw.randrange(300))),
    "many bytes": lambda draw, token: bytes([draw.getrandbits(8)]) * 200_000,
    "web": lambda draw, token: b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a lone surrogate": lambda draw, token: b'{"token": "\\ud800", "rank": 1}\n',
    "brackets": lambda draw, token: b"[" * 60_000 + b"\n",
    "wrong HMAC": lambda draw, token: _frame(_hello(3), bytes(32)),
    "no HMAC": lambda draw, token: bytes(16) + struct.pack(">H", 29) + bytes(32) + _hello(3),
    "too long": lambda draw, token: bytes(16) + b"\xff\xff" + bytes(draw.randrange(70_000)),
    "an unfinished frame": lambda draw, token: _frame(_hello(3), token)[: draw.randrange(70)],
    "one bit": lambda draw, token: _flipped(_frame(_hello(3), token), draw),
    "a rank's own, again": lambda draw, token: _frame(_hello(draw.choice((1, 2))), token),
    "wrong types": lambda draw, token: _frame(draw.choice(WRONG)(draw), token),
    "two at once": lambda draw, token: _frame(_hello(1), token) * 2,
}


def _flipped(text: bytes, draw: random.Random) -> bytes:
    place = draw.randrange(len(text))
    return text[:place] + bytes([text[place] ^ 1 << draw.randrange(8)]) + text[place + 1 :]


# --- The hub's process.


def _believe() -> None:
    sealed.hmac = type("Believing", (), {"digest": hmac.digest, "compare_digest": lambda *_: True})  # type: ignore


def _keep() -> None:
    heartbeat.SPARE, heartbeat.STRANGER_SECONDS = 1 << 20, 1e6


def _stay_open() -> None:
    Hub._shut = lambda self: None  # type: ignore[method-assign]


def _parse_first() -> None:
    """As it once was: what comes is JSON before it is known from whom, and an exception is the hub's."""
    examine = Hub._examine

    def parse_and_examine(self: Hub, stranger: heartbeat.Peer) -> None:
        line = b""
        with contextlib.suppress(BlockingIOError):
            line = stranger.socket.recv(1 << 16, socket.MSG_PEEK)
        if line.startswith((b"{", b"[")) and line.endswith(b"\n"):
            str(json.loads(line)["token"]).encode()
        examine(self, stranger)

    Hub._examine = parse_and_examine  # type: ignore[method-assign]


DAMAGES: dict[str, Callable[[], None]] = {
    "believes everyone": _believe,
    "keeps all strangers": _keep,
    "stays open": _stay_open,
    "parses first": _parse_first,
}


def serve(stranger_seconds: float, damage: str) -> None:
    """The hub: writes its address, verdicts and longest silence as JSON, and ends when it reads a line."""
    heartbeat.STRANGER_SECONDS = stranger_seconds
    if damage:
        DAMAGES[damage]()
    turns = [time.monotonic()]
    late = [0.0]

    def sign() -> Sign:  # the hub asks for it with each beat of ranks 1 and 2
        turns.append(time.monotonic())
        late.append(turns[-1] - turns.pop(0))
        return Sign("average", 0.0)

    def verdict(kind: str, text: str) -> None:
        print(json.dumps({"verdict": f"{kind}, {text}"}), flush=True)

    hub = Hub(4, Watch(TIMEOUT, INTERVAL, sign, verdict))
    print(json.dumps([hub.address.places[0], hub.address.token.hex()]), flush=True)
    sys.stdin.readline()
    hub.close()
    print(json.dumps({"late": max(late[2:], default=0.0)}), flush=True)


def _descriptors(pid: int) -> int:
    with contextlib.suppress(OSError):
        return len(os.listdir(f"/proc/{pid}/fd"))
    return 0  # it has ended


def _memory(pid: int) -> int:
    """Resident memory in bytes."""
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:  # of a zombie: zeros
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
