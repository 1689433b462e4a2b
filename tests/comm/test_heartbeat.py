"""Signs of life over real connections: who is named, when, and that nobody else is."""

from __future__ import annotations

import functools
import queue
import signal
import socket
import sys
import threading
import time
from contextlib import closing, contextmanager

import pytest

from comm.watch.heartbeat import (
    ENDED,
    LOST,
    SILENT,
    STUCK,
    TOLD,
    Hub,
    HubAddress,
    Link,
    Peer,
    Sign,
    Watch,
    connect,
    readable,
)
from comm.watch.watchdog import SchedulerWatch
from tests.processes import start_command

TIMEOUT, INTERVAL = 1.0, 0.1
HERE = ["127.0.0.1"]
BUSY, WAITING = Sign("", 0.0), Sign("all_agree", 100.0)


class Verdicts:
    """Verdicts of hubs and links: ("hub" or the link's rank, kind, text), in the order of time."""

    def __init__(self):
        self._queue = queue.Queue()

    def of(self, who):
        return lambda kind, text: self._queue.put((who, kind, text))

    def next(self):
        return self._queue.get(timeout=5 * TIMEOUT)

    def of_hub_and_link(self):
        """The hub's verdict, once link 1 has been told the same: the two are free to come in either order."""
        found = {who: (kind, text) for who, kind, text in (self.next(), self.next())}
        assert found[1] == (TOLD, found["hub"][1])
        return found["hub"]

    def none_within(self, seconds):
        with pytest.raises(queue.Empty):
            raise AssertionError(self._queue.get(timeout=seconds))


@pytest.fixture
def verdicts():
    return Verdicts()


def make_hub(size, verdicts, sign=BUSY):
    return Hub(size, Watch(TIMEOUT, INTERVAL, lambda: sign, verdicts.of("hub")), "127.0.0.1")


def make_link(rank, hub, verdicts, sign=BUSY, addresses=HERE):
    watch = Watch(TIMEOUT, INTERVAL, lambda: sign, verdicts.of(rank))
    return Link(rank, HubAddress(addresses, hub.port, hub.token), watch, TIMEOUT)


def mute(rank, hub) -> Peer:
    """A rank that connects and gives no sign of life after that."""
    return connect(HERE, hub.port, {"token": hub.token, "rank": rank, "host": "node-7", "pid": 4711}, 5)


def close_all(*ends):
    threads = [threading.Thread(target=end.close, daemon=True) for end in ends]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
    return not any(thread.is_alive() for thread in threads)


def heartbeats():
    return [thread for thread in threading.enumerate() if thread.name == "heartbeat"]


def test_ranks_that_live_are_left_alone_and_all_ends_close(verdicts):
    hub = make_hub(3, verdicts)
    links = [make_link(rank, hub, verdicts) for rank in (1, 2)]
    assert hub.missing == []
    verdicts.none_within(2.5 * TIMEOUT)
    assert close_all(hub, *links)
    verdicts.none_within(0.1)
    assert heartbeats() == []


def test_the_hub_waits_for_the_last_link_and_still_watches(verdicts):
    hub = make_hub(3, verdicts)
    link = make_link(1, hub, verdicts)
    silent = mute(2, hub)
    for end in (hub, link):
        threading.Thread(target=end.close, daemon=True).start()
    kind, text = verdicts.of_hub_and_link()
    assert kind == SILENT and "rank 2 (node-7, pid 4711" in text
    silent.close()


def test_a_silent_rank_is_named_to_all(verdicts):
    hub = make_hub(3, verdicts)
    make_link(1, hub, verdicts)
    silent = mute(2, hub)
    silent.send(doing="barrier", waiting=0.2)
    began = time.monotonic()
    kind, text = verdicts.of_hub_and_link()
    assert TIMEOUT * 0.9 < time.monotonic() - began < TIMEOUT * 3
    assert kind == SILENT
    assert text == "rank 2 (node-7, pid 4711, last in barrier) has given no sign of life for 1 s"
    silent.close()


def test_ranks_of_one_host_are_named_together(verdicts):
    hub = make_hub(8, verdicts)
    silent = [mute(rank, hub) for rank in range(1, 8)]
    _, kind, text = verdicts.next()
    assert kind == SILENT and "rank 1 (node-7" in text and "rank 4 (node-7" in text
    assert text.endswith(" and 3 more have given no sign of life for 1 s")
    for peer in silent:
        peer.close()


def test_a_rank_that_ends_is_named_at_once(verdicts):
    hub = make_hub(2, verdicts)
    peer = mute(1, hub)
    began = time.monotonic()
    peer.close()
    assert verdicts.next() == (
        "hub",
        ENDED,
        "rank 1 (node-7, pid 4711, last outside of any exchange) has ended without closing the run",
    )
    assert time.monotonic() - began < TIMEOUT / 2


def test_all_ranks_waiting(verdicts):
    hub = make_hub(2, verdicts, WAITING)
    make_link(1, hub, verdicts, Sign("average", 2 * TIMEOUT))
    assert verdicts.of_hub_and_link() == (STUCK, "all 2 ranks have waited in all_agree/average for 1 s")


@pytest.mark.parametrize("busy", [0, 1])
def test_one_rank_at_work_is_enough(busy, verdicts):
    hub = make_hub(2, verdicts, BUSY if busy == 0 else WAITING)
    link = make_link(1, hub, verdicts, BUSY if busy == 1 else WAITING)
    verdicts.none_within(1.5 * TIMEOUT)
    assert close_all(hub, link)


def test_what_is_reported_to_the_hub_reaches_all(verdicts):
    hub = make_hub(2, verdicts)
    make_link(1, hub, verdicts)
    hub.report("the scheduler is gone")
    assert verdicts.of_hub_and_link() == (LOST, "the scheduler is gone")


@contextmanager
def mute_hub():
    """Rank 0 that answers a link's first line and nothing after it: (port, its end of the connection)."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepted = queue.Queue()

        def accept():
            connection, _ = listener.accept()
            connection.recv(1000)
            connection.send(b'{"host": "node-0", "pid": 17}\n')
            accepted.put(connection)

        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1], accepted


def test_rank_0_silent(verdicts):
    with mute_hub() as (port, accepted):
        Link(
            1,
            HubAddress(HERE, port, "token"),
            Watch(TIMEOUT, INTERVAL, lambda: BUSY, verdicts.of(1)),
            TIMEOUT,
        )
        with closing(accepted.get(timeout=5)) as connection:
            connection.send(b'{"doing": "broadcast"}\n')
            who, kind, text = verdicts.next()
    assert (who, kind) == (1, SILENT)
    assert text == "rank 0 (node-0, pid 17, last in broadcast) has given no sign of life for 1 s"


def test_rank_0_ended(verdicts):
    with mute_hub() as (port, accepted):
        Link(
            1,
            HubAddress(HERE, port, "token"),
            Watch(TIMEOUT, INTERVAL, lambda: BUSY, verdicts.of(1)),
            TIMEOUT,
        )
        accepted.get(timeout=5).close()
        who, kind, text = verdicts.next()
    assert (who, kind) == (1, ENDED) and text.startswith("rank 0 (node-0, pid 17")


@pytest.mark.parametrize(
    "words",
    [
        b"GET / HTTP/1.0\r\n\r\n",
        b'{"token": "wrong", "rank": 1}\n',
        b'{"token": null, "rank": "x"}\n',
        b"[1]\n",
        b"x" * 200_000,
    ],
)
def test_strangers_are_turned_away(words, verdicts):
    hub = make_hub(2, verdicts)
    with socket.create_connection(("127.0.0.1", hub.port), timeout=5) as stranger:
        try:
            stranger.sendall(words)
            assert stranger.recv(10) == b""
        except ConnectionError:
            pass  # closed while it was talking
    assert hub.missing == [1]
    link = make_link(1, hub, verdicts)
    verdicts.none_within(TIMEOUT)
    assert close_all(hub, link)


def test_a_rank_connects_once(verdicts):
    hub = make_hub(2, verdicts)
    link = make_link(1, hub, verdicts)
    with socket.create_connection(("127.0.0.1", hub.port), timeout=5) as second:
        second.sendall(b'{"token": "%s", "rank": 1}\n' % hub.token.encode())
        assert second.recv(10) == b""
    verdicts.none_within(0.5)
    assert close_all(hub, link)


def test_the_first_address_that_answers_is_taken(verdicts):
    hub = make_hub(2, verdicts)
    link = make_link(1, hub, verdicts, addresses=["127.0.0.2", "127.0.0.1"])  # nobody listens at the first
    assert hub.missing == []
    assert close_all(hub, link)
    with pytest.raises(ConnectionError, match="127.0.0.2: Connection refused"):
        make_link(1, hub, verdicts, addresses=["127.0.0.2"])


def test_a_message_in_two_pieces():
    ours, theirs = socket.socketpair()
    peer = Peer(ours)
    theirs.send(b'{"doing": "bar')
    assert peer.read() == []
    theirs.send(b'rier"}\n{"doing": ""}\n')
    assert readable([ours], 1) and peer.read() == [{"doing": "barrier"}, {"doing": ""}]
    theirs.close()
    assert peer.read() == [] and not peer.is_open


def test_the_scheduler_is_watched(verdicts):
    environ = {"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "2", "DMLC_PS_ROOT_URI": "127.0.0.1"}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        environ["DMLC_PS_ROOT_PORT"] = str(listener.getsockname()[1])
        answering = threading.Event()
        answering.set()

        def answer():  # as ZeroMQ does
            while answering.is_set():
                connection, _ = listener.accept()
                with connection:
                    connection.send(b"\xff")

        threading.Thread(target=answer, daemon=True).start()
        watch = SchedulerWatch(environ, TIMEOUT, INTERVAL, functools.partial(verdicts.of("watch"), LOST))
        verdicts.none_within(1.5 * TIMEOUT)
        answering.clear()
        who, kind, text = verdicts.next()
        assert text == f"the BytePS scheduler at {environ['DMLC_PS_ROOT_URI']}:" + (
            f"{environ['DMLC_PS_ROOT_PORT']} does not answer, for 1 s now"
        )
        watch.close()
        assert heartbeats() == []


ENDING = """
import os, sys, time
from comm.watch.heartbeat import HubAddress, Link, Sign, Watch

def end(kind, text):
    print(kind, text, flush=True)
    os._exit(1)

address = HubAddress(["127.0.0.1"], int(sys.argv[1]), sys.argv[2])
Link(1, address, Watch(1.0, 0.1, lambda: Sign("", 0.0), end), 1.0)
print("connected", flush=True)
time.sleep(60)
"""


def test_a_stopped_rank_that_is_continued_ends_too(verdicts, tmp_path):
    """Nobody kills it: what it missed while it was stopped is enough."""
    hub = make_hub(2, verdicts)
    with start_command([sys.executable, "-c", ENDING, str(hub.port), hub.token], timeout=30) as run:
        deadline = time.monotonic() + 10
        while "connected" not in run.stdout() and time.monotonic() < deadline:
            time.sleep(0.02)
        run.signal(signal.SIGSTOP)
        who, kind, text = verdicts.next()
        assert (who, kind) == ("hub", SILENT) and f"pid {run.pid}" in text
        run.signal(signal.SIGCONT)
        result = run.wait()
    assert result.returncode == 1 and not result.timed_out
    assert result.stdout == f"connected\ntold {text}\n"
