"""Ends of a script: one line and its exit code."""

from __future__ import annotations

import sys

import pytest

from tests.processes import run_command

SCRIPT = """
import errno, os, sys
from training.entry import exit_code
def main():
    raise OSError(getattr(errno, sys.argv[1]), os.strerror(getattr(errno, sys.argv[1])), *sys.argv[2:])
sys.exit(exit_code(main))
"""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ENOSPC", "loss.png"], "error: loss.png: No space left on device\n"),
        (["EROFS"], "error: a file that is being written: Read-only file system\n"),
    ],
    ids=["full", "read-only"],
)
def test_a_disk_that_fails_is_one_line(words, said):
    result = run_command([sys.executable, "-c", SCRIPT, *words])
    assert (result.returncode, result.stderr) == (1, said)


def test_other_errors_of_the_system_are_defects():
    result = run_command([sys.executable, "-c", SCRIPT, "EBADF"])
    assert result.returncode == 1 and "Traceback" in result.stderr and "Bad file descriptor" in result.stderr
