"""Frames of bounded length that show who has sent them, over any stream of bytes. Standard library only.

Both ends know a token of at least TOKEN_BYTES random bytes, which never travels here. On the wire, in either
direction: a nonce of 16 random bytes, then frames:

    length of the payload, 2 bytes | HMAC-SHA256 with the token, 32 bytes | payload, at most LONGEST bytes

The HMAC covers the protocol's label, the direction, both nonces, the frame's number in its direction, and the
payload, so that a frame is worth nothing in another connection, another place of this one, or sent back. Of
bytes without a valid HMAC nothing is read but the length. What is sent is not secret.
"""

from __future__ import annotations

import hmac
import secrets
import struct
from typing import Iterator

TOKEN_BYTES = 32
LONGEST = 4096
_NONCE_BYTES = 16
_UNKNOWN = bytes(_NONCE_BYTES)
_LENGTH = struct.Struct(">H")
_TAG_BYTES = 32
AT_ONCE = _NONCE_BYTES + _LENGTH.size + _TAG_BYTES + LONGEST  # bytes that are worth reading at a time


class Seal:
    """One end's frames of a connection.

    `greeting`: bytes that this end sends first.
    """

    def __init__(self, token: bytes, label: bytes, is_caller: bool, hurried: bool = False):
        """Draws this end's nonce.

        Args:
            label: name and version of the protocol.
            is_caller: this end has connected to the other.
            hurried: the caller sends its first frame without waiting for the other end's nonce. Nothing in
                that frame's HMAC then tells a repetition from it: its content must. The same on both ends.
        """
        self.greeting = secrets.token_bytes(_NONCE_BYTES)
        self._token, self._label, self._is_caller, self._hurried = token, label, is_caller, hurried
        self._other_nonce, self._received = b"", b""
        self._sent_frames = self._received_frames = 0

    @property
    def can_close(self) -> bool:
        """Whether the other end's nonce has come, before which only a hurried caller calls `close`."""
        return bool(self._other_nonce)

    def close(self, payload: bytes) -> bytes:
        """The next frame, of at most LONGEST bytes."""
        tag = self._tag(self._is_caller, self._sent_frames, payload)
        self._sent_frames += 1
        return _LENGTH.pack(len(payload)) + tag + payload

    def open(self, data: bytes) -> Iterator[bytes]:
        """Payloads of the frames that are whole with these bytes, in their order.

        Raises:
            ValueError: after the valid frames, one that the other end has not sent.
        """
        self._received += data
        payload = self._next()
        while payload is not None:
            yield payload
            payload = self._next()

    def _next(self) -> bytes | None:
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
        mine, other = self.greeting, self._other_nonce
        caller, called = (mine, other) if self._is_caller else (other, mine)
        if self._hurried and from_caller and number == 0:
            called = _UNKNOWN
        words = (self._label, b"caller" if from_caller else b"called", caller, called)
        message = b"".join((*words, struct.pack(">Q", number), payload))
        return hmac.digest(self._token, message, "sha256")
