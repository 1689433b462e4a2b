"""Authenticated messages of bounded length over one TCP connection: frames of base/sealed.py, in which the
caller's first one does not wait for the other end. Standard library only."""

from __future__ import annotations

import contextlib
import math
import socket
import struct
import time
from typing import NamedTuple

from base.sealed import AT_ONCE, LONGEST, Seal

HELLO, BEAT, CLOSED, VERDICT, BYE = KINDS = range(1, 6)
_FIXED = struct.Struct(">BIId")  # kind, rank, process id, seconds; then text
_LONGEST_UNSENT = 1 << 16
_LABEL = b"heartbeat 1"


class Message(NamedTuple):
    """One message. kind: one of KINDS. rank, pid: who sends HELLO. waiting: seconds, of a BEAT. text: the
    host of a HELLO, the exchange of a BEAT, a VERDICT's words."""

    kind: int
    rank: int = 0
    pid: int = 0
    waiting: float = 0.0
    text: str = ""


def encode(message: Message) -> bytes:
    """The payload of a message; text that does not fit is cut off."""
    text = printable(message.text).encode("utf-8")
    return (_FIXED.pack(*message[:4]) + text)[:LONGEST]


def decode(payload: bytes) -> Message:
    """The message in a payload. Raises ValueError for one that this module does not write."""
    if len(payload) < _FIXED.size:
        raise ValueError("too short")
    kind, rank, pid, waiting = _FIXED.unpack_from(payload)
    if kind not in KINDS or not math.isfinite(waiting) or waiting < 0:
        raise ValueError("not a message")
    return Message(kind, rank, pid, waiting, printable(payload[_FIXED.size :].decode("utf-8", "replace")))


def printable(text: str) -> str:
    """`text` with a question mark for everything that could act on a terminal: control characters, escape
    sequences, line breaks, changes of the writing direction, lone surrogates."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


class Channel:
    """One end of a connection, which never waits. `is_caller`: this end has connected to the other."""

    def __init__(self, connection: socket.socket, token: bytes, is_caller: bool):
        connection.setblocking(False)
        self.socket = connection
        self.is_open = True
        self.since = self.heard = time.monotonic()  # the beginning, and the latest message
        self._seal = Seal(token, _LABEL, is_caller, hurried=True)
        self._unsent = self._seal.greeting

    def send(self, message: Message) -> None:
        """Sends one message without waiting. Where the other end has not read for long the message is lost;
        it will be missed for that."""
        if not self.is_open or len(self._unsent) > _LONGEST_UNSENT:
            return
        self._unsent += self._seal.close(encode(message))
        with contextlib.suppress(OSError):  # a closed connection is noticed by reading
            self._unsent = self._unsent[self.socket.send(self._unsent) :]

    def receive(self) -> list[Message]:
        """The messages that have come. Closes the connection at its end, and at the first bytes that are no
        valid frame."""
        try:
            data = self.socket.recv(AT_ONCE)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError:
            data = b""
        if not data:
            self.close()
            return []
        messages: list[Message] = []
        try:
            for payload in self._seal.open(data):
                messages.append(decode(payload))
        except ValueError:
            self.close()
        self.heard = time.monotonic() if messages else self.heard
        return messages

    def close(self) -> None:
        """Closes the connection."""
        self.is_open = False
        self.socket.close()
