"""The NCCL calls of the host runtime, between real processes, against NumPy."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from tests.processes import ROOT, nothing_new

WORKER = str(ROOT / "tests/native/collectives_worker.py")


def run(together, library, ranks, task):
    """The ends of all ranks, by rank."""
    env = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    processes = {
        f"rank{rank}": ([sys.executable, WORKER, str(library), str(ranks), str(rank), task], env)
        for rank in range(ranks)
    }
    ended = together(processes)
    return [ended[f"rank{rank}"] for rank in range(ranks)]


def succeeds(together, library, ranks, task):
    for rank, end in enumerate(run(together, library, ranks, task)):
        assert end.code == 0, f"rank {rank}: {end}"


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_all_operations_and_types_match_numpy(together, collectives, ranks):
    succeeds(together, collectives, ranks, "all_operations")


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_group_runs_in_order_at_its_end(together, collectives, ranks):
    succeeds(together, collectives, ranks, "groups")


def test_float16_is_rounded_as_numpy_rounds(together, collectives):
    succeeds(together, collectives, 2, "halves")


def test_float16_without_the_processors_instructions(together, portable_collectives):
    succeeds(together, portable_collectives, 2, "halves")


@pytest.mark.parametrize("ranks", [2, 4])
def test_many_small_operations(together, collectives, ranks):
    succeeds(together, collectives, ranks, "many")


def test_nothing_is_left_in_shared_memory(together, collectives):
    def named() -> set[str]:
        return {name for name in os.listdir("/dev/shm") if "nccl" in name.lower()}

    before = named()
    succeeds(together, collectives, 2, "anonymous")
    nothing_new(before, named)


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_killed_rank_is_named_by_the_others(together, collectives, ranks):
    first, *others = run(together, collectives, ranks, "killed")
    assert first.code == -signal.SIGKILL
    for end in others:
        assert end.code == 0, end
        assert "local rank 0, whose process" in end.output
        assert "failed before" in end.output


def test_different_calls_are_noticed(together, collectives):
    for end in run(together, collectives, 3, "different"):
        assert end.code == 0, end
        assert "differ in their operation" in end.output and "count" in end.output


def test_wrong_arguments_are_refused(together, collectives):
    succeeds(together, collectives, 2, "wrong_calls")
