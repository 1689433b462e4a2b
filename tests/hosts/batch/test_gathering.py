"""hosts/batch/gathering.py: pods begin and end together; each test has its own coordinator."""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest

from base.errors import InputError
from hosts.batch import gathering
from hosts.batch.gathering import (
    SCHEDULER,
    SERVER,
    STRANGERS,
    WORKER,
    Coordinator,
    Member,
    Shape,
    Stream,
    Verdict,
    read_secret,
)
from tests.faults.strangers import bother
from tests.processes import LIMIT, until

SHAPE = Shape(2, 1, 4)
SECRET = b"s" * 32
WHO = [(SCHEDULER, 0), (SERVER, 0), (WORKER, 0), (WORKER, 1)]


def nothing() -> None:
    """Answers no order."""


class Pod:
    """A member in a thread: joins, waits for its orders, and ends with `code` when `finish` is set."""

    def __init__(self, port: int, role: str, index: int, shape: Shape = SHAPE):
        self.member = Member(role, index, shape, SECRET)
        self.started, self.left, self.stopped = (threading.Event() for _ in range(3))
        self.asked, self.address, self.verdict = threading.Event(), "", None
        self._port = port
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        place = ("127.0.0.1", self._port)
        self.address = self.member.join(place, LIMIT, self.asked.is_set, self.left.set, self.stopped.set)
        self.verdict = self.member.verdict
        self.started.set()

    def end(self, code: int) -> None:
        threading.Thread(
            target=lambda: setattr(self, "verdict", self.member.ended(code)), daemon=True
        ).start()


def verdicts(pods):
    """Those of pods that are told to stop."""
    until(lambda: all(pod.stopped.is_set() for pod in pods))
    return {pod.member.verdict for pod in pods}


@pytest.fixture
def coordinator():
    made = Coordinator(SHAPE, SECRET, 0, LIMIT, lambda text: None)
    made.start()
    return made


@pytest.fixture
def pods(coordinator):
    made = [Pod(coordinator.port, *who) for who in WHO]
    for pod in made:
        assert pod.started.wait(LIMIT) and pod.address == "127.0.0.1"
    yield made
    for pod in made:
        pod.member.close()


def test_all_end_with_0_when_all_have(pods, coordinator):
    for pod in pods:
        pod.end(0)
    until(lambda: all(pod.verdict == Verdict(0) for pod in pods))
    for pod in pods:
        pod.member.close()
    coordinator.join(LIMIT)
    assert not coordinator.is_alive()


@pytest.mark.parametrize(
    ("ending", "code", "verdict"),
    [
        # Ranks that have saved decide; servers that do not end are no reason to wait for long.
        *(([2, 3], code, Verdict(code, f"the ranks ended with {code}")) for code in (75, 130, 143)),
        *(([3], code, Verdict(code, f"worker 1 ended with {code}")) for code in (1, 2, 137)),
        ([2], 143, Verdict(1, "these had not ended 0.1 s after the first: worker 1")),
    ],
)
def test_how_some_end_decides_how_all_do(pods, ending, code, verdict, monkeypatch):
    for limit in ("UNRELEASED", "TOGETHER") if len(ending) == 1 else ("UNRELEASED",):
        monkeypatch.setattr(gathering, limit, 0.1)
    for number in ending:
        pods[number].end(code)
    assert verdicts(pods) == {verdict}


@pytest.mark.parametrize("lost", range(1, 4))
def test_a_pod_that_vanishes_ends_all(pods, lost):
    pods.pop(lost).member.close()
    name = "server 0" if lost == 1 else f"worker {lost - 2}"
    assert verdicts(pods) == {Verdict(1, f"{name} has been lost")}


def test_any_pod_that_must_go_lets_all_ranks_save(pods):
    pods[1].member.leaving()
    until(lambda: all(pod.left.is_set() for pod in pods[2:]))
    assert not pods[1].left.is_set() and not pods[0].stopped.is_set()


def test_who_has_not_come_is_named():
    coordinator = Coordinator(SHAPE, SECRET, 0, 3.0, lambda text: None)
    coordinator.start()
    pods = [Pod(coordinator.port, *who) for who in WHO[:2]]
    for pod in pods:
        assert pod.started.wait(LIMIT) and not pod.address
        assert pod.verdict == Verdict(1, "these pods have not come within 3 s: worker 0, worker 1")


def test_a_coordinator_that_is_not_there_is_named():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    member = Member(WORKER, 0, SHAPE, SECRET)
    assert member.join(("127.0.0.1", port), 0.6, lambda: False, nothing, nothing) == ""
    where = f"127.0.0.1:{port} was not reached in 0.6 s: Connection refused"
    assert member.verdict == Verdict(1, f"the coordinator at {where}")


def test_a_pod_that_must_go_while_it_waits_does(coordinator):
    pod = Pod(coordinator.port, *WHO[1])
    pod.asked.set()
    assert pod.started.wait(LIMIT) and not pod.address and pod.verdict is None


@contextlib.contextmanager
def joined(coordinator, who):
    """The connection of a pod that joins and then says nothing."""
    with socket.create_connection(("127.0.0.1", coordinator.port), LIMIT) as connection:
        stream = Stream(connection, SECRET, is_caller=True)
        stream.send(f"join {who[0]} {who[1]} 2 1 4")
        assert stream.receive() == []  # the coordinator's nonce, by which the line is signed
        yield connection


def test_a_pod_that_is_replaced_before_the_start_counts_once(coordinator):
    """Its connection may still seem to be alive when its successor comes."""
    with joined(coordinator, WHO[3]) as first:
        until(lambda: WHO[3] in coordinator._members)
        pods = [Pod(coordinator.port, *WHO[3])]
        assert first.recv(100) == b"", "the first one is let go"
        pods += [Pod(coordinator.port, *who) for who in WHO[:3]]
        for pod in pods:
            assert pod.started.wait(LIMIT) and pod.address
        assert not pods[0].stopped.is_set()


def test_a_pod_that_is_replaced_during_the_run_ends_it(pods, coordinator):
    with joined(coordinator, WHO[3]):
        assert verdicts(pods) == {Verdict(1, "worker 1 has come a second time")}


def test_a_pod_of_another_run_is_bad_input(coordinator):
    pod = Pod(coordinator.port, WORKER, 0, Shape(3, 1, 4))
    assert pod.started.wait(LIMIT) and pod.verdict.code == 2


JUNK = [b"GET / HTTP/1.1\r\n\r\n", b"join worker 0 2 1 4\n", b"\xff\xfe\n", b"a" * 9000, b"stop 0\n"]


def test_strangers_change_nothing_before_the_start(coordinator):
    """Junk, silence, and more connections than are kept."""
    strangers = []
    for number in range(STRANGERS + 20):
        strangers.append(socket.create_connection(("127.0.0.1", coordinator.port)))
        if number < len(JUNK):
            strangers[-1].sendall(JUNK[number])
    pods = [Pod(coordinator.port, *who) for who in WHO]
    for pod in pods:
        assert pod.started.wait(LIMIT) and pod.address
    for each in strangers:
        each.close()
    pods[2].end(3)
    assert {verdict.code for verdict in verdicts(pods)} == {3}


def test_an_attack_changes_nothing_during_the_run(pods, coordinator):
    """Connections that stay, messages of every kind, a flood; and who knows the words but not the secret."""
    with socket.create_connection(("127.0.0.1", coordinator.port), LIMIT) as connection:
        attacker = Stream(connection, b"t" * 32, is_caller=True)
        attacker.send("join worker 1 2 1 4")
        while attacker.receive() is not None:
            attacker.send("ended 1")
    assert bother(coordinator.port, 300, 7, lambda: None) > 200
    assert not any(pod.stopped.is_set() or pod.left.is_set() for pod in pods)
    pods[1].member.leaving()
    until(lambda: all(pod.left.is_set() for pod in pods[2:]))
    for pod in pods:
        pod.end(143)
    until(lambda: all(pod.verdict is not None for pod in pods))
    assert {pod.verdict for pod in pods} == {Verdict(143, "the ranks ended with 143")}


def test_what_was_recorded_is_worth_nothing_again(pods, coordinator):
    """A pod's bytes, taken from the network and sent again by somebody else."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        member = Member(*WHO[3], SHAPE, SECRET)
        place = listener.getsockname()
        threading.Thread(
            target=member.join, args=(place, 3.0, lambda: False, nothing, nothing), daemon=True
        ).start()
        between, _ = listener.accept()
        with between, socket.create_connection(("127.0.0.1", coordinator.port), LIMIT) as first:
            between.sendall(first.recv(100))  # the nonce that the pod signs
            recorded = b""
            while len(recorded) < 16 + 34 + len("join worker 1 2 1 4"):
                recorded += between.recv(1000)
    with socket.create_connection(("127.0.0.1", coordinator.port), LIMIT) as again:
        again.sendall(recorded)
        assert len(again.recv(100)) == 16 and again.recv(100) == b"", "it is shown out"
    assert not any(pod.stopped.is_set() for pod in pods)


def test_a_coordinator_without_the_secret_is_not_believed():
    coordinator = Coordinator(SHAPE, b"t" * 32, 0, LIMIT, lambda text: None)
    coordinator.start()
    member = Member(WORKER, 0, SHAPE, SECRET)
    assert member.join(("127.0.0.1", coordinator.port), 0.6, lambda: False, nothing, nothing) == ""
    assert member.verdict.code == 1 and "with the same secret?" in member.verdict.reason


def test_a_secret_is_long_enough(tmp_path):
    path = tmp_path / "secret"
    with pytest.raises(InputError, match="--secret .*secret: No such file"):
        read_secret(str(path))
    path.write_text("x" * 31 + "\n")
    with pytest.raises(InputError, match="it has 31 bytes, a secret at least 32"):
        read_secret(str(path))
    path.write_text("x" * 32 + "\n")
    assert read_secret(str(path)) == b"x" * 32
