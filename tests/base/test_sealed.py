"""Frames of a connection whose caller waits for the other end's nonce; those of a hurried one are in
tests/comm/watch/test_wire.py."""

from __future__ import annotations

import hashlib
import hmac
import struct

import pytest

from base.sealed import LONGEST, Seal

TOKEN, LABEL = bytes(range(32)), b"test 1"


def ends():
    return Seal(TOKEN, LABEL, is_caller=True), Seal(TOKEN, LABEL, is_caller=False)


def introduced():
    caller, called = ends()
    assert list(caller.open(called.greeting)) == list(called.open(caller.greeting)) == []
    return caller, called


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


def forged(how):
    """Bytes that an honest end receives from somebody else."""
    caller, called = introduced()
    frame = caller.close(b"hello")
    if how == "another connection":
        return ends()[1], caller.greeting + frame
    if how == "again":
        assert list(called.open(frame)) == [b"hello"]
        return called, frame
    if how == "sent back":
        return caller, frame
    if how == "another token":
        other = Seal(bytes(32), LABEL, is_caller=True)
    else:
        other = Seal(TOKEN, b"test 2", is_caller=True)
    called = ends()[1]
    list(other.open(called.greeting))
    return called, other.greeting + other.close(b"hello")


@pytest.mark.parametrize(
    "how", ["another connection", "again", "sent back", "another token", "another label"]
)
def test_a_frame_of_somebody_else_is_none(how):
    end, data = forged(how)
    with pytest.raises(ValueError, match="not authentic"):
        list(end.open(data))
