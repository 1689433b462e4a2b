"""hosts/supervise.py: the folders of a part, which strangers cannot lend it; the end of mpirun's sleep."""

from __future__ import annotations

import os
import sys

import pytest

from hosts.launching.parts import SUPERVISE
from tests.processes import run_command


def supervised(folder, *more):
    """A part that lists its folder, under the supervisor."""
    words = [sys.executable, "-I", "-S", SUPERVISE, "--unattended", "--token", "T", "--folder", folder, *more]
    return run_command([*words, "--", "ls", "-ld", folder])


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
        pytest.skip("making a stranger's folder needs root")
    else:
        there.mkdir()
        os.chown(there, 65534, 65534)
    result = supervised(tmp_path / "own", "--folder", there)
    assert result.returncode == 127 and f"failed File exists: {there}" in result.stderr
    assert sorted(os.listdir(tmp_path)) == ["target", "there"] and os.listdir(tmp_path / "target") == ["kept"]


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
    words = [
        sys.executable,
        "-I",
        "-S",
        SUPERVISE,
        "--unattended",
        "--wake",
        "--",
        sys.executable,
        "-c",
        SLEEPS,
    ]
    assert run_command(words).check().stdout == "rank ended 0\n"
