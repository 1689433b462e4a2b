"""Frames against the format written down again, and everything that is none."""

from __future__ import annotations

import hashlib
import hmac
import math
import socket
import struct

import pytest

from base.sealed import LONGEST
from comm.watch.wire import BEAT, BYE, CLOSED, HELLO, VERDICT, Channel, Message, decode, encode

TOKEN = bytes(range(32))


@pytest.fixture
def ends():
    """A caller and whom it has called."""
    one, other = socket.socketpair()
    caller, called = Channel(one, TOKEN, is_caller=True), Channel(other, TOKEN, is_caller=False)
    yield caller, called
    caller.close()
    called.close()


@pytest.fixture
def raw():
    """A socket, and a called channel at its other end."""
    one, other = socket.socketpair()
    yield one, Channel(other, TOKEN, is_caller=False)
    one.close()
    other.close()


def frame(words, number=0, nonces=(b"n" * 16, bytes(16)), label=b"caller", token=TOKEN):
    tag = hmac.new(
        token, b"heartbeat 1" + label + b"".join(nonces) + struct.pack(">Q", number) + words, hashlib.sha256
    ).digest()
    return struct.pack(">H", len(words)) + tag + words


def payload(kind=HELLO, rank=1, pid=7, waiting=0.0, text=b"node"):
    return struct.pack(">BIId", kind, rank, pid, waiting) + text


def test_a_message_comes_back_as_it_was():
    for message in (
        Message(HELLO, 3, 4711, text="node-7"),
        Message(BEAT, waiting=1.25, text="all_agree"),
        Message(CLOSED),
        Message(VERDICT, text="größer"),
        Message(BYE),
    ):
        assert decode(encode(message)) == message


def test_long_text_is_cut_off_and_broken_letters_are_replaced():
    arrived = decode(encode(Message(VERDICT, text="ä" * LONGEST)))
    assert arrived.text.startswith("äää") and len(encode(arrived)) <= LONGEST + 3
    assert decode(payload(text=b"\xff\xed\xa0\x80")).text == "\ufffd" * 4
    assert decode(encode(Message(HELLO, text="\ud800"))).text == "?"


@pytest.mark.parametrize(
    "words",
    [
        b"",
        payload()[:16],
        payload(kind=0),
        payload(kind=6),
        payload(waiting=math.nan),
        payload(waiting=math.inf),
        payload(waiting=-1.0),
    ],
)
def test_what_is_no_message(words):
    with pytest.raises(ValueError):
        decode(words)


def test_frames_are_those_of_the_format(ends):
    """Both directions, read from the wire by code of its own."""
    caller, called = ends
    caller.send(Message(HELLO, 1, 7, text="node"))
    data = called.socket.recv(1000)
    ours, first = data[:16], data[16:]
    assert first == frame(payload(), nonces=(ours, bytes(16)))
    other = socket.socketpair()
    with other[0], other[1]:
        answering = Channel(other[1], TOKEN, is_caller=False)
        other[0].send(data)
        assert answering.receive() == [Message(HELLO, 1, 7, text="node")]
        answering.send(Message(BYE))
        data = other[0].recv(1000)
        assert data[16:] == frame(payload(BYE, 0, 0, text=b""), 0, (ours, data[:16]), b"called")


@pytest.mark.parametrize(
    "words",
    [
        b"n" * 16 + frame(payload(), token=bytes(32)),
        b"m" * 16 + frame(payload()),
        b"n" * 16 + frame(payload(kind=9)),
        b"n" * 16 + struct.pack(">H", LONGEST + 1),
    ],
)
def test_what_is_no_frame_closes_the_connection(words, raw):
    one, called = raw
    one.send(words)
    assert called.receive() == [] and not called.is_open


def test_a_frame_is_worth_nothing_a_second_time(raw):
    """Neither in its own connection nor in another one, once both ends have spoken."""
    one, called = raw
    one.send(b"n" * 16 + frame(payload()))
    assert [message.kind for message in called.receive()] == [HELLO]
    called.send(Message(HELLO))
    theirs = one.recv(1000)[:16]
    beat = frame(payload(BEAT), 1, (b"n" * 16, theirs))
    one.send(beat)
    assert [message.kind for message in called.receive()] == [BEAT]
    one.send(beat)
    assert called.receive() == [] and not called.is_open

    again, far = socket.socketpair()
    with again:
        another = Channel(far, TOKEN, is_caller=False)
        again.send(b"n" * 16 + frame(payload()) + beat)
        assert [message.kind for message in another.receive()] == [HELLO] and not another.is_open


def test_an_unfinished_frame_takes_bounded_memory(raw):
    one, called = raw
    one.send(b"n" * 16 + struct.pack(">H", LONGEST) + bytes(31 + LONGEST))
    assert called.receive() == []
    assert called.is_open and len(called._seal._received) <= 16 + 34 + LONGEST
    one.send(b"\0")
    assert called.receive() == [] and not called.is_open


def test_what_the_other_end_does_not_read_is_bounded(ends):
    caller, called = ends
    caller.send(Message(HELLO))
    called.receive()
    called.send(Message(HELLO))
    assert caller.receive() == [Message(HELLO)]
    for _ in range(1000):
        caller.send(Message(VERDICT, text="x" * 4000))
    assert len(caller._unsent) < 1 << 17
    while called.receive():  # all that was sent is whole
        caller.send(Message(BEAT))
    assert called.is_open
