"""Signs of life over real connections: who is named, when, and that nobody else is."""

from __future__ import annotations

import functools
import os
import queue
import resource
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
    SPARE,
    STUCK,
    TOLD,
    Hub,
    HubAddress,
    Link,
    Peer,
    Sign,
    Watch,
    connect,
)
from comm.watch.watchdog import watch_scheduler
from comm.watch.wire import BEAT, HELLO, Channel, Message
from tests.faults import strangers
from tests.processes import LIMIT, start_command, until

TIMEOUT, INTERVAL = 3.0, 0.1
HERE = "127.0.0.1"
TOKEN = bytes(range(32))
BUSY, WAITING = Sign("", 0.0), Sign("all_agree", 100.0)


class Verdicts:
    """Verdicts of hubs and links: ("hub" or the link's rank, kind, text), in the order of time."""

    def __init__(self):
        self._queue = queue.Queue()

    def of(self, who):
        return lambda kind, text: self._queue.put((who, kind, text))

    def next(self):
        return self._queue.get(timeout=LIMIT)

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
    return Hub(size, Watch(TIMEOUT, INTERVAL, lambda: sign, verdicts.of("hub")))


def make_link(rank, hub, verdicts, sign=BUSY, places=None):
    watch = Watch(TIMEOUT, INTERVAL, lambda: sign, verdicts.of(rank))
    return Link(rank, HubAddress(places or hub.address.places, hub.address.token), watch, TIMEOUT)


def port_of(hub) -> int:
    ((_, port),) = hub.address.places
    return port


def mute(rank, hub) -> Peer:
    """A rank that connects and gives no sign of life after that."""
    return connect(hub.address, Message(HELLO, rank, 4711, text="node-7"), LIMIT)


def close_all(*ends):
    threads = [threading.Thread(target=end.close, daemon=True) for end in ends]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    return not any(thread.is_alive() for thread in threads)


def test_the_hub_waits_for_the_last_link_and_names_it_to_all(verdicts):
    hub = make_hub(3, verdicts)
    link = make_link(1, hub, verdicts)
    silent = mute(2, hub)
    silent.send(Message(BEAT, waiting=0.2, text="barrier"))
    began = time.monotonic()
    for end in (hub, link):
        threading.Thread(target=end.close, daemon=True).start()
    kind, text = verdicts.of_hub_and_link()
    assert time.monotonic() - began > TIMEOUT * 0.9
    assert kind == SILENT
    assert text == "rank 2 (node-7, pid 4711, last in barrier) has given no sign of life for 3 s"
    silent.close()


def test_ranks_of_one_host_are_named_together(verdicts):
    for _ in range(5):  # on a busy machine the verdict over some may come before the others have joined
        hub = make_hub(8, verdicts)
        silent = [mute(rank, hub) for rank in range(1, 8)]
        _, kind, text = verdicts.next()
        for peer in silent:
            peer.close()
        if "more" in text:
            break
    assert kind == SILENT and "rank 1 (node-7" in text and "rank 4 (node-7" in text
    assert text.endswith(" and 3 more have given no sign of life for 3 s")


def test_a_rank_that_waited_too_long_for_an_answer_comes_again(verdicts):
    """The hub was starved, or stopped, when it came first."""
    starved, go_on = threading.Event(), threading.Event()

    def sign():
        starved.set()
        go_on.wait(LIMIT)
        return BUSY

    hub = Hub(3, Watch(100.0, INTERVAL, sign, verdicts.of("hub")))
    link = make_link(1, hub, verdicts)
    starved.wait(LIMIT)
    with closing(
        Peer(socket.create_connection((HERE, port_of(hub))), hub.address.token, is_caller=True)
    ) as first:
        first.send(Message(HELLO, 2, 4711, text="node-7"))
    go_on.set()
    again = make_link(2, hub, verdicts)
    assert not hub.missing
    assert close_all(link, again, hub)
    verdicts.none_within(0)


def test_a_rank_that_ends_is_named_at_once(verdicts):
    hub = make_hub(2, verdicts)
    peer = mute(1, hub)
    peer.close()
    assert verdicts.next() == (
        "hub",
        ENDED,
        "rank 1 (node-7, pid 4711, last outside of any exchange) has ended without closing the run",
    )


def test_all_ranks_waiting(verdicts):
    hub = make_hub(2, verdicts, WAITING)
    make_link(1, hub, verdicts, Sign("average", 2 * TIMEOUT))
    assert verdicts.of_hub_and_link() == (STUCK, "all 2 ranks have waited in all_agree/average for 3 s")


def test_one_rank_at_work_is_enough(verdicts):
    """Ranks that live are left alone though all others wait, and all ends close."""
    ends = []
    for busy in range(3):
        signs = [BUSY if rank == busy else WAITING for rank in range(3)]
        hub = make_hub(3, verdicts, signs[0])
        ends += [hub, *(make_link(rank, hub, verdicts, signs[rank]) for rank in (1, 2))]
        assert hub.missing == []
    verdicts.none_within(1.5 * TIMEOUT)
    assert close_all(*ends)
    verdicts.none_within(0.1)


def test_what_is_reported_to_the_hub_reaches_all(verdicts):
    hub = make_hub(2, verdicts)
    make_link(1, hub, verdicts)
    hub.report("the scheduler is gone")
    assert verdicts.of_hub_and_link() == (LOST, "the scheduler is gone")


@contextmanager
def mute_hub():
    """Rank 0 that answers a link's first message and nothing after it: (address, its end of the
    connection)."""
    with socket.create_server((HERE, 0)) as listener:
        accepted = queue.Queue()

        def accept():
            channel = Channel(listener.accept()[0], TOKEN, is_caller=False)
            while not channel.receive():
                time.sleep(0.01)
            channel.send(Message(HELLO, 0, 17, text="node-0"))
            accepted.put(channel)

        threading.Thread(target=accept, daemon=True).start()
        yield HubAddress((listener.getsockname(),), TOKEN), accepted


@pytest.mark.parametrize(
    ("kind", "said"), [(SILENT, "given no sign of life for 3 s"), (ENDED, "ended without closing the run")]
)
def test_rank_0_is_missed(verdicts, kind, said):
    with mute_hub() as (address, accepted):
        Link(1, address, Watch(TIMEOUT, INTERVAL, lambda: BUSY, verdicts.of(1)), TIMEOUT)
        with closing(accepted.get(timeout=LIMIT)) as channel:
            channel.send(Message(BEAT, text="broadcast"))
            if kind == ENDED:
                channel.close()
            verdict = verdicts.next()
    assert verdict == (1, kind, f"rank 0 (node-0, pid 17, last in broadcast) has {said}")


def test_idle_connections_take_few_descriptors_and_leave(verdicts, monkeypatch):
    """A thousand of them once took all that a process has, and its next checkpoint could not be opened."""
    monkeypatch.setattr("comm.watch.heartbeat.STRANGER_SECONDS", 0.3)
    hub = make_hub(2, verdicts)
    before = len(os.listdir("/proc/self/fd"))
    here = [socket.create_connection((HERE, port_of(hub)), timeout=LIMIT) for _ in range(3 * SPARE)]
    assert len(os.listdir("/proc/self/fd")) - before - len(here) <= 2 * SPARE + 1
    until(lambda: len(os.listdir("/proc/self/fd")) - before - len(here) <= 0)
    assert all(each.recv(10) == b"" for each in here)
    link = make_link(1, hub, verdicts)
    for each in here:
        each.close()
    assert close_all(hub, link)


def test_without_a_free_descriptor_the_hub_waits(verdicts):
    """It neither ends nor spins, and a rank gets in when there is one."""
    hub = make_hub(2, verdicts)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    knocking = socket.socket()
    lowest_free = os.dup(knocking.fileno())
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            os.open("/dev/null", os.O_RDONLY)
        knocking.connect((HERE, port_of(hub)))
        began = time.thread_time(), time.process_time()
        time.sleep(0.5)
        assert time.process_time() - began[1] - (time.thread_time() - began[0]) < 0.2
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        knocking.close()
    link = make_link(1, hub, verdicts)
    assert close_all(hub, link)


def test_a_hub_that_does_not_have_the_token(verdicts):
    """Another program at the address is not taken for rank 0, however it answers."""
    with socket.create_server((HERE, 0)) as listener:

        def answer():
            connection, _ = listener.accept()
            channel = Channel(connection, bytes(32), is_caller=False)
            connection.setblocking(True)
            connection.recv(1000)
            channel.send(Message(HELLO, 0, 17, text="node-0"))
            connection.recv(1000)

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(ConnectionError, match="it is not rank 0"):
            connect(HubAddress((listener.getsockname(),), TOKEN), Message(HELLO, 1), 0)


def test_the_first_place_that_answers_is_taken(verdicts):
    hub = make_hub(2, verdicts)
    nobody = ("127.0.0.2", port_of(hub))
    link = make_link(1, hub, verdicts, places=[nobody, *hub.address.places])
    assert hub.missing == []
    assert close_all(hub, link)
    shown = repr(hub.address) + str(hub.address)
    assert hub.address.token.hex() not in shown and str(hub.address.token) not in shown
    with pytest.raises(ConnectionError, match="127.0.0.2: Connection refused"):
        connect(HubAddress([nobody], TOKEN), Message(HELLO, 1), 0)


def test_ipv6(verdicts):
    watch = Watch(TIMEOUT, INTERVAL, lambda: BUSY, verdicts.of("hub"))
    hub = Hub(2, watch, ["::1", "2001:db8::1"])  # the second is not this machine's
    ((address, port),) = hub.address.places
    assert address == "::1" and str(hub.address) == f"port {port} of ::1"
    link = make_link(1, hub, verdicts)
    assert close_all(hub, link)
    with pytest.raises(OSError, match="Cannot assign requested address"):
        Hub(2, watch, ["2001:db8::1"])


def test_other_ranks_cannot_act_on_the_terminal(verdicts):
    hub = make_hub(2, verdicts)
    peer = connect(hub.address, Message(HELLO, 1, 4711, text="\x1b]0;owned\x07\x9b2J\nerror: \u202e"), 5)
    peer.close()
    assert verdicts.next()[2].startswith("rank 1 (?]0;owned??2J?error: ?, pid 4711")


def test_strangers_of_every_kind_have_no_effect():
    outcome = strangers.attack(messages=700, seed=3, stranger_seconds=0.5)
    assert outcome.effects == (), outcome


@pytest.mark.parametrize("damage", strangers.DAMAGES)
def test_the_attack_finds_damage(damage, monkeypatch):
    for limit in ("CONNECT_SECONDS", "RETURN_SECONDS"):  # of what the damage prevents
        monkeypatch.setattr(strangers, limit, 2.0)
    assert strangers.attack(messages=56, seed=3, stranger_seconds=0.5, damage=damage).effects


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
        watch = watch_scheduler(environ, TIMEOUT, INTERVAL, functools.partial(verdicts.of("watch"), LOST))
        verdicts.none_within(1.5 * TIMEOUT)
        answering.clear()
        who, kind, text = verdicts.next()
        assert text == f"the BytePS scheduler at {environ['DMLC_PS_ROOT_URI']}:" + (
            f"{environ['DMLC_PS_ROOT_PORT']} does not answer, for 3 s now (--comm_timeout)"
        )
        watch.stop()
        assert "heartbeat" not in [thread.name for thread in threading.enumerate()]


ENDING = """
import os, sys, time
from comm.watch.heartbeat import HubAddress, Link, Sign, Watch

def end(kind, text):
    print(kind, text, flush=True)
    os._exit(1)

address = HubAddress([("127.0.0.1", int(sys.argv[1]))], bytes.fromhex(sys.argv[2]))
Link(1, address, Watch(3.0, 0.1, lambda: Sign("", 0.0), end), 60.0)
print("connected", flush=True)
time.sleep(60)
"""


def test_a_stopped_rank_that_is_continued_ends_too(verdicts, tmp_path):
    """Nobody kills it: what it missed while it was stopped is enough."""
    hub = make_hub(2, verdicts)
    with start_command([sys.executable, "-c", ENDING, str(port_of(hub)), hub.address.token.hex()]) as run:
        until(lambda: "connected" in run.stdout(), run)
        run.signal(signal.SIGSTOP)
        who, kind, text = verdicts.next()
        assert (who, kind) == ("hub", SILENT) and f"pid {run.pid}" in text
        run.signal(signal.SIGCONT)
        result = run.wait()
    assert result.returncode == 1 and not result.timed_out
    assert result.stdout == f"connected\ntold {text}\n"
