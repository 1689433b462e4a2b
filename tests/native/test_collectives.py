"""The NCCL calls of the host runtime, between real processes, against NumPy."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from setup import byteps_build
from tests.processes import LIMIT, ROOT, nothing_new

WORKER = str(ROOT / "tests/native/collectives_worker.py")
SOURCES = ROOT / "native" / "byteps_host"


@pytest.fixture(scope="module")
def collectives(tmp_path_factory):
    """The CUDA and NCCL calls of the host runtime as a shared library for ctypes; `portable`: without the
    processor's float16 instructions."""

    def compiled(*options):
        library = tmp_path_factory.mktemp("collectives") / "libcollectives.so"
        command = [word for word in byteps_build.COMPILE if word != "-fvisibility=hidden"]
        command += ["-Werror", *options, "-shared", f"-I{SOURCES}", f"-I{SOURCES / 'include'}", "-o", library]
        subprocess.run([*command, *(SOURCES / each for each in byteps_build.NCCL)], check=True, timeout=LIMIT)
        return library

    return {"native": compiled(), "portable": compiled("-DHOST_RUNTIME_PORTABLE")}


@pytest.fixture
def run(together, collectives):
    """Function of a number of ranks and their task: the ends of all ranks, by rank."""

    def of_task(ranks, task, library="native"):
        env = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        words = [sys.executable, WORKER, collectives[library], ranks]
        return list(together({rank: ([*words, rank, task], env) for rank in range(ranks)}).values())

    return of_task


@pytest.mark.parametrize(
    "task, ranks, library",
    [
        *(("all_operations", ranks, "native") for ranks in (1, 3)),  # every type, against NumPy
        *(("groups", ranks, "native") for ranks in (1, 4)),  # one runs in order at its end
        *(("halves", 2, library) for library in ("native", "portable")),  # float16 is rounded as NumPy rounds
        ("many", 4, "native"),
        ("wrong_calls", 2, "native"),
    ],
)
def test_results_are_right(run, task, ranks, library):
    for rank, end in enumerate(run(ranks, task, library)):
        assert end.code == 0, f"rank {rank}: {end}"


def test_nothing_is_left_in_shared_memory(run):
    def named() -> set[str]:
        return {name for name in os.listdir("/dev/shm") if "nccl" in name.lower()}

    before = named()
    assert [end.code for end in run(2, "anonymous")] == [0, 0]
    nothing_new(before, named)


def test_a_killed_rank_is_named_by_the_others(run):
    first, *others = run(3, "killed")
    assert first.code == -signal.SIGKILL
    for end in others:
        assert end.code == 0, end
        assert "local rank 0, whose process" in end.output
        assert "failed before" in end.output


def test_different_calls_are_noticed(run):
    for end in run(3, "different"):
        assert end.code == 0, end
        assert "differ in their operation" in end.output and "count" in end.output
