"""Frames of a connection whose caller waits for the other end's nonce; those of a hurried one, and what is no
frame, are in tests/comm/watch/test_wire.py."""

from __future__ import annotations

import hashlib
import hmac
import struct

from base.sealed import LONGEST, Seal

TOKEN, LABEL = bytes(range(32)), b"test 1"


def ends():
    return Seal(TOKEN, LABEL, is_caller=True), Seal(TOKEN, LABEL, is_caller=False)


def test_frames_come_whole_and_in_order():
    caller, called = ends()
    assert list(caller.open(called.greeting)) == []
    data = caller.greeting + caller.close(b"one") + caller.close(b"") + caller.close(b"x" * LONGEST)
    got = [payload for index in range(len(data)) for payload in called.open(data[index : index + 1])]
    assert got == [b"one", b"", b"x" * LONGEST] and not called._received
    assert list(caller.open(called.close(b"back"))) == [b"back"]


def test_the_first_frame_has_both_nonces():
    """The format written down again; only the other end's nonce allows a frame at all."""
    caller, called = ends()
    assert not caller.can_close and not called.can_close
    list(caller.open(called.greeting))
    assert caller.can_close
    words = LABEL + b"caller" + caller.greeting + called.greeting + struct.pack(">Q", 0) + b"hello"
    tag = hmac.new(TOKEN, words, hashlib.sha256).digest()
    assert caller.close(b"hello") == struct.pack(">H", 5) + tag + b"hello"
