"""Ends of a script: one line and its exit code."""

from __future__ import annotations

import sys

import pytest

from tests.processes import ROOT, run_command, run_ranks, until
from tests.training.small_runs import command

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


def test_a_missing_gpu_driver_is_one_line():
    """The loader's error for a library that needs another one, as libmxnet.so does."""
    script = SCRIPT.replace("raise OSError", "raise OSError(sys.argv[2])\n    raise OSError")
    words = ["EBADF", "libcuda.so.1: cannot open shared object file: No such file or directory"]
    result = run_command([sys.executable, "-c", script, *words])
    assert result.returncode == 2 and len(result.stderr.splitlines()) == 1
    assert (
        "NVIDIA's driver, is not on this machine" in result.stderr and "make setup CUDA=cpu" in result.stderr
    )
    assert result.stderr.startswith("error: libcuda.so.1")


def test_other_errors_of_the_system_are_defects():
    result = run_command([sys.executable, "-c", SCRIPT, "EBADF"])
    assert result.returncode == 1 and "Traceback" in result.stderr and "Bad file descriptor" in result.stderr


def test_rank_0_tells_what_becomes_of_a_run(tmp_path):
    """Its end, that it goes on, and a failure, each once."""
    said = tmp_path / "said"
    words = ["--notify", f'echo "$RUN_EVENT|$RUN_CODE|$RUN_MESSAGE" >> {said}']

    def run(*more):
        return run_ranks(ROOT / "run_pretraining_hvd.py", 2, args=command(tmp_path / "run", *words, *more))

    def told(lines):
        until(lambda: said.exists() and len(said.read_text().splitlines()) == lines)
        return said.read_text().splitlines()

    run("--num_steps", "2").check()
    assert told(1) == ["end|0|complete"]
    run("--num_steps", "3", "--resume").check()
    assert sorted(told(3)) == ["end|0|complete"] * 2 + ["restart||continuing after step 2"]
    assert run("--num_steps", "2", "--resume").returncode == 2
    assert told(4)[-1].startswith("failure|2|error: --num_steps 2: the checkpoint is already at step 3")
