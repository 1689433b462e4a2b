"""Authenticated messages of bounded length over one TCP connection. Standard library only.

Both ends know a token of 32 random bytes, which never travels here. On the wire, in either direction: a nonce
of 16 random bytes, then frames:

    length of the payload, 2 bytes | HMAC-SHA256 with the token, 32 bytes | payload, at most LONGEST bytes

The HMAC covers the direction, both nonces, the frame's number in its direction, and the payload, so that a
frame is worth nothing in another connection, another place of this one, or sent back. The caller's first
frame alone lacks the other end's nonce, which it cannot know yet: whoever sends it a second time must be
rejected by what it says. Of bytes without a valid HMAC nothing is read but the length.
"""

from __future__ import annotations

import contextlib
import hmac
import math
import secrets
import socket
import struct
from typing import NamedTuple

HELLO, BEAT, CLOSED, VERDICT, BYE = KINDS = range(1, 6)
TOKEN_BYTES = 32
LONGEST = 4096
_NONCE_BYTES = 16
_UNKNOWN = bytes(_NONCE_BYTES)
_LENGTH = struct.Struct(">H")
_TAG_BYTES = 32
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
        self._token, self._is_caller = token, is_caller
        self._nonce, self._other_nonce = secrets.token_bytes(_NONCE_BYTES), b""
        self._unsent, self._received = self._nonce, b""
        self._sent_frames = self._received_frames = 0

    def send(self, message: Message) -> None:
        """Sends one message without waiting. Where the other end has not read for long the message is lost;
        it will be missed for that."""
        if not self.is_open or len(self._unsent) > _LONGEST_UNSENT:
            return
        payload = encode(message)
        tag = self._tag(self._is_caller, self._sent_frames, payload)
        self._sent_frames += 1
        self._unsent += _LENGTH.pack(len(payload)) + tag + payload
        with contextlib.suppress(OSError):  # a closed connection is noticed by reading
            self._unsent = self._unsent[self.socket.send(self._unsent) :]

    def receive(self) -> list[Message]:
        """The messages that have come. Closes the connection at its end, and at the first bytes that are no
        valid frame."""
        try:
            data = self.socket.recv(_NONCE_BYTES + _LENGTH.size + _TAG_BYTES + LONGEST)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError:
            data = b""
        if not data:
            self.close()
            return []
        self._received += data
        messages = []
        try:
            payload = self._next_frame()
            while payload is not None:
                messages.append(decode(payload))
                payload = self._next_frame()
        except ValueError:
            self.close()
        return messages

    def close(self) -> None:
        """Closes the connection."""
        self.is_open = False
        self.socket.close()

    def _next_frame(self) -> bytes | None:
        """The payload of the next whole frame, None while there is none. Raises ValueError for a frame that
        the other end has not sent."""
        if not self._other_nonce:
            if len(self._received) < _NONCE_BYTES:
                return None
            self._other_nonce = self._received[:_NONCE_BYTES]
            self._received = self._received[_NONCE_BYTES:]
        if len(self._received) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._received)
        if length > LONGEST:
            raise ValueError("too long")
        start = _LENGTH.size + _TAG_BYTES
        if len(self._received) < start + length:
            return None
        tag, payload = self._received[_LENGTH.size : start], self._received[start : start + length]
        if not hmac.compare_digest(tag, self._tag(not self._is_caller, self._received_frames, payload)):
            raise ValueError("not authentic")
        self._received_frames += 1
        self._received = self._received[start + length :]
        return payload

    def _tag(self, from_caller: bool, number: int, payload: bytes) -> bytes:
        mine, other = self._nonce, self._other_nonce
        caller, called = (mine, other) if self._is_caller else (other, mine)
        if from_caller and number == 0:
            called = _UNKNOWN
        words = (_LABEL, b"caller" if from_caller else b"called", caller, called, struct.pack(">Q", number))
        return hmac.digest(self._token, b"".join((*words, payload)), "sha256")
