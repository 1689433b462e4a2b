"""hosts/supervise.py: the folders of a part, which strangers cannot lend it; the end of mpirun's sleep."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path

import pytest

from hosts.launching.parts import SUPERVISE
from tests.processes import run_command, start_command, until

SUPERVISED = [sys.executable, "-I", "-S", SUPERVISE, "--unattended"]


def supervised(folder, *more):
    """A part that lists its folder, under the supervisor."""
    return run_command([*SUPERVISED, "--token", "T", "--folder", folder, *more, "--", "ls", "-ld", folder])


def test_a_folder_is_the_users_own_and_goes_with_the_part(tmp_path):
    result = supervised(tmp_path / "new" / "folder").check()
    assert result.stdout.startswith("drwx------") and (tmp_path / "new").is_dir()
    (tmp_path / "shared").mkdir()  # by another part of this machine
    supervised(tmp_path / "shared").check()
    assert sorted(os.listdir(tmp_path)) == ["new"] and not os.listdir(tmp_path / "new")


@pytest.mark.parametrize("kind", ["link", "file", "stranger"])
def test_what_somebody_else_has_put_there_is_an_error_and_stays(kind, tmp_path):
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "kept").touch()
    there = tmp_path / "there"
    if kind == "link":
        there.symlink_to(tmp_path / "target")
    elif kind == "file":
        there.touch()
    elif os.geteuid():
        pytest.skip("only root can make a stranger's folder")
    else:
        there.mkdir()
        os.chown(there, 65534, 65534)
    result = supervised(tmp_path / "own", "--folder", there)
    assert result.returncode == 127 and f"failed File exists: {there}" in result.stderr
    assert sorted(os.listdir(tmp_path)) == ["target", "there"] and os.listdir(tmp_path / "target") == ["kept"]


@pytest.fixture
def memory():
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def test_folders_of_killed_supervisors_go_at_the_next_start(memory):
    used, new, users = (memory / f"launch.0000000{name}" for name in "12x")
    for folder in (new, users):
        folder.mkdir()
        (folder / "segment").touch()
    with start_command([*SUPERVISED, "--folder", used, "--", "sh", "-c", "echo on; exec sleep 600"]) as run:
        until(run.stdout, run)
        for folder in (used, users):
            os.utime(folder, (0, 0))
        supervised(memory / "own").check()
        assert sorted(memory.iterdir()) == [used, new, users]
        run.signal(signal.SIGKILL)
        run.wait()
    supervised(memory / "own").check()
    assert sorted(memory.iterdir()) == [new, users]


SLEEPS = """
import os, signal, subprocess, sys
child = subprocess.Popen(["sleep", "0.5"], env={"OMPI_COMM_WORLD_RANK": "0", "PATH": os.environ["PATH"]})
other = subprocess.Popen(["sleep", "1000"])  # the remote shell of a daemon
interrupts = 0
def count(*_):
    global interrupts
    interrupts += 1
signal.signal(signal.SIGCHLD, count)
while interrupts < 20:
    signal.pause()
other.kill()
print("rank ended", child.wait())
"""


def test_mpirun_does_not_sleep_on_when_its_ranks_have_ended():
    """A program that waits as mpirun does after a failure, in which each signal leaves out a part."""
    words = [*SUPERVISED, "--wake", "--", sys.executable, "-c", SLEEPS]
    assert run_command(words).check().stdout == "rank ended 0\n"
