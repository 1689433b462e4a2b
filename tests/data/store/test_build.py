from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

import base.files
from base.errors import InputError
from base.locks import locked
from base.progress import SILENT, Progress
from base.workers import WorkerCrash
from data.store.build import UNFINISHED, BuildPlan, build_columns, new_directory
from data.store.columns import map_columns
from tests.data.store.building import CODE, COLUMNS, Numbers, NumberUnit, build, expected
from tests.data.token_stores import content
from tests.processes import run_command, start_command

UNITS = 40


def command(directory, workers, seconds=0.0):
    return [sys.executable, "-c", CODE, str(directory), str(UNITS), str(workers), str(seconds)]


@pytest.fixture
def stopped(tmp_path, stopped_once):
    """A directory whose build stopped after some 30 of its units: `out` is not there, `out.partial` is."""
    shutil.copytree(stopped_once, tmp_path / "out.partial")
    return tmp_path / "out"


@pytest.fixture(scope="module")
def stopped_once(tmp_path_factory):
    out = tmp_path_factory.mktemp("stopped") / "out"
    with pytest.raises(WorkerCrash):
        build(out, UNITS, 1, Numbers("kill", 30))
    return f"{out}.partial"


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The files of a build in one process without interruption."""
    directory = tmp_path_factory.mktemp("reference") / "out"
    build(directory, UNITS, 1, size=1)
    return content(directory)


def test_the_columns_are_the_parts_one_after_the_other(tmp_path):
    build(tmp_path / "out", UNITS, 2)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text("utf-8"))
    wanted = expected(UNITS)
    columns, _ = map_columns(str(tmp_path / "out"), manifest["columns"], COLUMNS)
    assert {name: column.tolist() for name, column in columns.items()} == wanted
    assert {name: column.dtype for name, column in columns.items()} == {c.name: c.dtype for c in COLUMNS}
    assert len(manifest["columns"]["ids"]["shards"]) > 2, "too little for several shards"
    assert manifest["counts"] == {"ids": len(wanted["ids"]), "ones": UNITS}
    assert manifest["messages"] == [f"message {number}" for number in range(0, UNITS, 3)]
    assert manifest["format"] == "numbers"


@pytest.mark.parametrize("workers", [1, 3])
def test_any_number_of_workers_writes_the_same_bytes(tmp_path, reference, workers):
    build(tmp_path / "out", UNITS, workers)
    assert content(tmp_path / "out") == reference
    assert os.listdir(tmp_path) == ["out"], "something was left behind"


@pytest.mark.parametrize("victim", ["parent", "worker", "all"])
def test_killed_builds_go_on_to_the_same_bytes(tmp_path, reference, victim):
    """Real SIGKILLs at random moments, of whichever process."""
    generator = random.Random(victim)
    out = tmp_path / "out"
    stopped = 0
    for attempt in range(3):
        # Units long enough that a busy machine, too, kills a build before its end.
        with start_command(command(out, attempt % 2 + 1, seconds=0.3)) as run:
            while run.poll() is None and len(run.pids()) < 2:
                time.sleep(0.02)
            limit = time.monotonic() + generator.random()  # while the workers start, or work
            while time.monotonic() < limit and run.poll() is None:
                time.sleep(0.005)
            pids = run.pids()
            others = [pid for pid in pids if pid != run.pid]
            for pid in {"parent": [run.pid], "worker": others[:1], "all": pids}[victim]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            result = run.wait()  # LeftoverProcesses if a worker outlives its parent
            stopped += result.returncode != 0
            if victim == "worker" and result.returncode:
                assert result.returncode == 2 and "SIGKILL" in result.stderr and "unit " in result.stderr
                assert len(result.stderr.splitlines()) == 1, result.stderr
        if out.exists():
            break
    assert stopped >= 2, "hardly anything was killed"
    result = run_command(command(out, 2)).check()
    assert content(out) == reference
    assert os.listdir(tmp_path) == ["out"]


def test_a_resumed_build_does_not_start_again(stopped):
    progress = Recorded()
    build(stopped, UNITS, 1, Numbers("input", 29), progress=progress)  # unit 29 is not read again
    assert progress.updates[0][0] == 30 * 100_000
    assert progress.updates[-1] == (UNITS * 100_000, {"ids": len(expected(UNITS)["ids"]), "ones": UNITS})
    assert len(progress.notes) == 1 and "going on" in progress.notes[0]


class Recorded(Progress):
    """A progress that keeps what it is told."""

    def __init__(self):
        self.updates, self.notes = [], []

    def update(self, done, counts):
        self.updates.append((done, dict(counts)))

    def note(self, line):
        self.notes.append(line)


@pytest.mark.parametrize("units, key", [(UNITS, "other"), (39, "")])
def test_a_partial_build_of_something_else_is_thrown_away(tmp_path, stopped, units, key):
    for directory in (stopped, tmp_path / "fresh"):
        build(directory, units, 1, size=1, key=key)
    assert content(stopped) == content(tmp_path / "fresh")


@pytest.mark.parametrize("damage", ["label", "result", "numbers", "missing", "column"])
def test_what_is_damaged_in_a_partial_build_is_made_again(tmp_path, stopped, reference, damage):
    unfinished = tmp_path / "out.partial" / "unfinished"
    if damage == "label":
        (unfinished / "identity.json").write_bytes(b'{"label": {')
    elif damage == "result":
        (unfinished / "7" / "result.json").write_bytes(b'{"counts": {"ids": 1, "ones')
    elif damage == "numbers":
        with open(unfinished / "7" / "weights-00000.bin", "r+b") as handle:
            handle.write(b"flip")
    elif damage == "missing":
        os.unlink(unfinished / "7" / "ids-00000.bin")
    else:  # of a build that was killed; the longest that it can be
        (tmp_path / "out.partial" / "ids-00000.bin").write_bytes(b"x" * (1 << 16))
    build(stopped, UNITS, 1, size=1)
    assert content(stopped) == reference


def test_killed_before_the_last_rename_is_complete(tmp_path, reference):
    (tmp_path / "out.partial").mkdir()
    for name, data in reference.items():
        (tmp_path / "out.partial" / name).write_bytes(data)
    build(tmp_path / "out", UNITS, 1, Numbers("input", 0))  # which would fail if it were called
    assert content(tmp_path / "out") == reference


@pytest.mark.parametrize(
    "fault, message",
    [
        ("segfault", "unit 4: its worker process ended by SIGSEGV"),
        ("exit", "unit 4: its worker process ended with exit code 3"),
        ("memory", "unit 4: its worker needs more memory"),
    ],
)
def test_a_crash_is_an_error_that_names_the_unit_and_keeps_the_build(tmp_path, fault, message):
    with pytest.raises(WorkerCrash, match=message) as caught:
        build(tmp_path / "out", 8, 2, Numbers(fault, 4), isolate=True, memory_limit=2 << 30)
    assert isinstance(caught.value, InputError) and "\n" not in str(caught.value)
    assert sorted(os.listdir(tmp_path)) == ["out.partial"]
    build(tmp_path / "out", 8, 2, size=1)
    build(tmp_path / "fresh", 8, 1, size=1)
    assert content(tmp_path / "out") == content(tmp_path / "fresh")


@pytest.mark.parametrize("size", [1, 1_000_000])
def test_bad_input_is_an_input_error_and_leaves_nothing(tmp_path, size):
    with pytest.raises(InputError, match=r"^unit 4, record 7: not good$"):
        build(tmp_path / "out", 8, 2, Numbers("input", 4), size=size)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "place",
    ["data.store.build.os.rename", "data.store.columns.os.write", "data.store.columns.os.fsync"],
)
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_a_part_that_is_half_appended_does_not_count(tmp_path, reference, monkeypatch, place, error):
    """Stopped between any two columns of a unit, or with some of its numbers written."""
    honest = getattr(os, place.rsplit(".", 1)[1])
    for calls in (12, 30, 55):
        left = iter(range(calls))

        def failing(*words, left=left, **options):
            if next(left, None) is None:
                raise error
            return honest(*words, **options)

        with monkeypatch.context() as patched, contextlib.suppress(KeyboardInterrupt, InputError):
            patched.setattr(place, failing)
            build(tmp_path / "out", UNITS, 1, size=1)
    build(tmp_path / "out", UNITS, 1, size=1)
    assert content(tmp_path / "out") == reference


def test_a_stop_right_after_the_manifest_leaves_no_manifest_without_columns(tmp_path, reference, monkeypatch):
    honest = base.files.sync_directory

    def interrupted(path):
        honest(path)
        if os.path.exists(os.path.join(path, "manifest.json")):
            raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(base.files, "sync_directory", interrupted)
        build(tmp_path / "out", UNITS, 1, size=1)
    build(tmp_path / "out", UNITS, 1, size=1)
    assert content(tmp_path / "out") == reference


def test_an_error_of_the_system_inside_keeps_what_is_outside(tmp_path):
    """An export makes a store on its way."""

    outer = new_directory(str(tmp_path / "out"), {"is": "outer"}, SILENT)
    inside = str(tmp_path / "out.partial" / UNFINISHED / "store")
    inner = new_directory(inside, {"is": "inner"}, SILENT)
    with pytest.raises(InputError, match="Stale file handle"), outer, inner as store:
        Path(store, UNFINISHED, "an hour's work").touch()
        raise OSError(errno.ESTALE, "Stale file handle")
    assert list(tmp_path.glob("out.partial/*/store.partial/*/an hour's work"))


def test_what_is_there_is_kept_or_refused(tmp_path, reference):
    out = tmp_path / "out"
    out.mkdir()  # an empty directory is as good as none
    build(out, UNITS, 1)
    stamp = os.stat(out / "ids-00000.bin").st_mtime_ns
    build(out, UNITS, 2, Numbers("input", 0))
    assert os.stat(out / "ids-00000.bin").st_mtime_ns == stamp and content(out) == reference
    with pytest.raises(InputError, match="out is there already"):
        build(out, UNITS, 1, key="other")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")  # os.rename would replace neither it nor a mount
    for name in ("file", "full", "link is a link or a mount"):
        with pytest.raises(InputError, match=name):
            build(tmp_path / name.split()[0], UNITS, 1)
    assert sorted(os.listdir(tmp_path)) == ["empty", "file", "full", "link", "out"]
    assert (tmp_path / "file").read_text() == "mine" and os.listdir(tmp_path / "full") == ["mine"]


def test_who_waits_for_the_lock_is_told(tmp_path, monkeypatch):
    """By the progress, once; and Ctrl-C ends the waiting, which is asleep when it comes."""
    progress, naps = Recorded(), iter(range(3))

    def sleep(seconds):
        if progress.notes and next(naps, None) is None:
            raise KeyboardInterrupt

    monkeypatch.setattr("base.locks.SECONDS_BEFORE_NOTE", 0.05)
    monkeypatch.setattr("base.locks.time.sleep", sleep)
    with locked(f"{tmp_path}/out.lock", lambda: None), pytest.raises(KeyboardInterrupt):
        build(tmp_path / "out", 3, 1, size=1, progress=progress)
    assert progress.notes == [f"waiting for another process to build {tmp_path}/out"]
    assert os.listdir(tmp_path) == []


def test_without_locks_each_builds_its_own_and_one_wins(tmp_path, reference, monkeypatch):
    """A file system that has no flock; two processes that build there at once do not meet."""

    def no_lock(descriptor, operation):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", no_lock)
    first = tmp_path / "out"

    def second_comes_first(counts, lengths):
        if not first.exists():
            build(first, UNITS, 1, size=1)

    build(first, UNITS, 1, size=1, check=second_comes_first)
    assert content(first) == reference
    assert [name for name in os.listdir(tmp_path) if "partial" in name] == []


def test_an_empty_build_has_empty_columns(tmp_path):
    """And is found again: identities are compared as JSON has them."""
    plan = BuildPlan(COLUMNS, lambda: [NumberUnit(0, 1)], lambda *_: {}, {"a": (1, 2.5)}, {})
    for _ in range(2):
        build_columns(str(tmp_path / "out"), plan, 1)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text("utf-8"))
    lengths = {name: column["length"] for name, column in manifest["columns"].items()}
    assert lengths == {"ids": 0, "ends": 1, "groups": 1, "weights": 0}
