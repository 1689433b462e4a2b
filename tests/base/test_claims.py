"""A claim is one process's, which others can name; it ends with its holder, on this host and on others."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import pytest

from base.claims import BEAT, LONG_AGO, PATIENCE, Claim, HeldError, Holder
from tests.processes import LIMIT, ROOT, until

ELSEWHERE = {"host": "elsewhere", "boot": "another", "process": 4321, "since": "2026-01-02 03:04:05 UTC"}
HOLD = """
import sys, time
from base.claims import Claim
claim = Claim(sys.argv[1], print)
assert claim.attempt()
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "run.lock"


def nobody(other: str) -> None:
    raise AssertionError(other)


def write(path: Path, **changes) -> None:
    whole = path.with_name("whole")  # a holder that looks before the content is there sees no name
    whole.write_text(json.dumps({**asdict(Holder.myself()), **changes}))
    whole.rename(path)


def test_a_claim_is_taken_named_and_given_back(path):
    first, second = Claim(str(path), nobody), Claim(str(path), nobody)
    assert first.attempt()
    for _ in range(2):
        with pytest.raises(
            HeldError, match=rf"process {os.getpid()} on {os.uname().nodename} since 20.* UTC"
        ):
            second.attempt()
    second.release()
    assert path.exists(), "it is the other's"
    first.release()
    first.release()
    assert not list(path.parent.iterdir())
    assert second.attempt()
    second.release()


def test_one_of_many_gets_it(path):
    claims = [Claim(str(path), nobody) for _ in range(16)]

    def attempt(claim: Claim) -> bool:
        try:
            return claim.attempt()
        except HeldError:
            return False

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(attempt, claims)) == 1
    for claim in claims:
        claim.release()


def test_of_a_killed_process_it_is_free_at_once(path):
    """Though nobody has reaped it yet; otherwise: tests/training/start/test_lock.py."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True, env=environ
    ) as holder:
        assert holder.stdout.readline() == "held\n"
        claim = Claim(str(path), nobody)
        with pytest.raises(HeldError, match=f"process {holder.pid} "):
            claim.attempt()
        holder.kill()
        os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)
        assert path.exists() and claim.attempt()
        claim.release()


def test_another_process_with_the_number_of_the_holder_is_not_the_holder(path):
    write(path)  # it lives, and has not the lock
    claim = Claim(str(path), nobody)
    assert claim.attempt()
    claim.release()


class TestAnotherHost:
    def test_a_living_holder_shows_itself(self, path):
        write(path, **ELSEWHERE)
        claim = Claim(str(path), nobody)
        assert not claim.attempt() and not claim.attempt()
        os.utime(path, (0, time.time() - 3))  # whatever its clock says
        with pytest.raises(HeldError, match="process 4321 on elsewhere since 2026-01-02 03:04:05 UTC"):
            claim.attempt()

    def test_a_new_holder_shows_itself(self, path):
        write(path, **ELSEWHERE)
        claim = Claim(str(path), nobody)
        assert not claim.attempt()
        path.unlink()
        write(path, **{**ELSEWHERE, "host": "third"})
        with pytest.raises(HeldError, match="third"):
            claim.attempt()

    def test_of_one_that_has_gone_it_is_free_after_a_while(self, path):
        """Even if the server still keeps its lock."""
        write(path, **ELSEWHERE)
        claim = Claim(str(path), nobody, patience=0.3)
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            assert not claim.attempt()
            assert "elsewhere" in str(claim.watched)
            time.sleep(0.4)
            assert claim.attempt()
        assert json.loads(path.read_text())["process"] == os.getpid()
        claim.release()

    def test_of_one_that_has_gone_long_ago_it_is_free_at_once(self, path):
        write(path, **ELSEWHERE)
        long_ago = time.time() - LONG_AGO - 10
        os.utime(path, (long_ago, long_ago))
        claim = Claim(str(path), nobody)
        assert claim.attempt()
        claim.release()

    def test_a_holder_touches_its_file(self, path):
        claim = Claim(str(path), nobody, beat=0.02)
        assert claim.attempt()
        os.utime(path, (0, 0))
        until(lambda: path.stat().st_mtime >= 1e9)
        claim.release()

    def test_a_holder_whose_claim_was_taken_over_learns_it(self, path):
        taken = threading.Event()
        names = []
        claim = Claim(str(path), lambda other: (names.append(other), taken.set()), beat=0.02)
        assert claim.attempt()
        path.unlink()
        time.sleep(0.1)
        assert not taken.is_set(), "removed by hand it is still nobody else's"
        write(path, **ELSEWHERE)
        assert taken.wait(LIMIT) and "elsewhere" in names[0]
        claim.release()
        assert path.exists(), "the other's file stays"

    def test_the_times(self):
        assert BEAT * 10 < PATIENCE < LONG_AGO


def test_a_holder_in_another_container_lives_as_long_as_the_lock(path):
    """Of the same system, whose processes cannot be seen."""
    write(path, process=4321)
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(HeldError, match="4321"):
            Claim(str(path), nobody).attempt()


class TestWithoutLocks:
    """A file system that has none: the beat shows whether the holder lives, also on this host."""

    @pytest.fixture(autouse=True)
    def no_locks(self, monkeypatch):
        def flock(descriptor: int, operation: int) -> None:
            raise OSError(errno.ENOLCK, "No locks available")

        monkeypatch.setattr(fcntl, "flock", flock)

    def test_it_lives(self, path):
        first, second = Claim(str(path), nobody, beat=0.05), Claim(str(path), nobody)
        assert first.attempt() and not second.attempt()
        time.sleep(0.2)
        with pytest.raises(HeldError):
            second.attempt()
        first.release()

    def test_it_has_gone(self, path):
        write(path)
        claim = Claim(str(path), nobody, patience=0.1)
        assert not claim.attempt()
        time.sleep(0.15)
        assert claim.attempt()
        claim.release()


class TestHostileFiles:
    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"\xff\xfe",
            b"null",
            b"[" * 60_000,
            b'{"host": 1}',
            json.dumps({**asdict(Holder.myself()), **ELSEWHERE, "process": -1}).encode(),
            json.dumps({**asdict(Holder.myself()), "process": True}).encode(),
            json.dumps({**asdict(Holder.myself()), "host": "two\nlines"}).encode(),
            json.dumps({**asdict(Holder.myself()), "host": "h" * 5000}).encode(),
        ],
        ids=["empty", "no_text", "null", "deep", "short", "negative", "boolean", "two_lines", "long"],
    )
    def test_a_damaged_file_names_nobody_and_is_watched(self, path, content):
        path.write_bytes(content)
        claim = Claim(str(path), nobody, patience=0.1)
        assert not claim.attempt()
        time.sleep(0.15)
        assert claim.attempt()
        claim.release()

    def test_a_pipe_does_not_hang(self, path):
        os.mkfifo(path)
        claim = Claim(str(path), nobody, patience=0.1)
        with pytest.raises(OSError):
            claim.attempt()

    def test_a_link_is_not_followed(self, path, tmp_path):
        other = tmp_path / "other"
        other.write_text("precious")
        path.symlink_to(other)
        with pytest.raises(OSError):
            Claim(str(path), nobody).attempt()
        assert other.read_text() == "precious"
