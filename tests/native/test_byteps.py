"""The unmodified BytePS over the host runtime: real workers, servers and schedulers."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys

import pytest

from tests.processes import ROOT, nothing_new

WORKER = str(ROOT / "tests/native/byteps_worker.py")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def processes(workers, local_ranks, task, prefix="", **changes):
    """All processes of a run, for `together`."""
    distributed = workers > 1 or changes.get("BYTEPS_FORCE_DISTRIBUTED") == "1"
    env = {
        "DMLC_NUM_WORKER": str(workers),
        "DMLC_NUM_SERVER": "1",
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port()),
        "DMLC_NODE_HOST": "127.0.0.1",
        "BYTEPS_LOCAL_SIZE": str(local_ranks),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        **changes,
    }
    started = {}
    for role in ("scheduler", "server") if distributed else ():
        started[f"{prefix}{role}"] = (
            [sys.executable, "-c", "import byteps.server"],
            {**env, "DMLC_ROLE": role},
        )
    for rank in range(workers * local_ranks):
        place = {
            "DMLC_ROLE": "worker",
            "DMLC_WORKER_ID": str(rank // local_ranks),
            "BYTEPS_LOCAL_RANK": str(rank % local_ranks),
        }
        started[f"{prefix}rank{rank}"] = ([sys.executable, WORKER, task], {**env, **place})
    return started


def named_memory():
    return {name for name in os.listdir("/dev/shm") if name.startswith("BytePS_")}


def succeed(ended):
    failed = {name: end for name, end in ended.items() if end.code != 0}
    assert not failed, failed


@pytest.mark.parametrize(("workers", "local_ranks"), [(1, 1), (1, 3), (2, 2)])
def test_sums_of_known_values(together, workers, local_ranks):
    """For two local ranks and for two workers the test below takes the same sums."""
    succeed(together(processes(workers, local_ranks, "sums")))


@pytest.mark.parametrize(("workers", "local_ranks"), [(1, 1), (1, 2), (2, 1)])
def test_two_runs_at_once_share_nothing(together, tmp_path, workers, local_ranks):
    # A process alone needs nothing; ranks of one worker know their run by its path, those of several by their
    # scheduler.
    runs = {}
    for name in ("a.", "b."):
        folder = tmp_path / (name if (workers, local_ranks) == (1, 2) else "same")
        folder.mkdir(exist_ok=True)
        changes = {"BYTEPS_SOCKET_PATH": str(folder)}
        if workers == local_ranks == 1:
            changes["DMLC_PS_ROOT_PORT"] = "9000"
        runs.update(processes(workers, local_ranks, "sums", prefix=name, **changes))
    memory = named_memory()
    succeed(together(runs))
    nothing_new(memory, named_memory)
    assert not list(tmp_path.rglob("socket_*"))


def test_killed_ranks_leave_nothing(together, tmp_path):
    memory = named_memory()
    ended = together(processes(1, 2, "killed", BYTEPS_SOCKET_PATH=str(tmp_path)))
    codes = {end.code for end in ended.values()}
    assert -signal.SIGKILL in codes and codes <= {-signal.SIGKILL, -signal.SIGABRT}, ended
    for end in ended.values():  # one that met the other's death in the middle of an exchange says so
        assert end.code == -signal.SIGKILL or "whose process" in end.output, end
    nothing_new(memory, named_memory)
    assert not list(tmp_path.glob("socket_*"))


def test_a_socket_path_that_is_too_long(together):
    ended = together(processes(1, 2, "sums", BYTEPS_SOCKET_PATH="/tmp/" + 100 * "x"))
    for end in ended.values():
        assert end.code not in (0, None) and "File name too long" in end.output


@pytest.mark.alone
def test_waiting_costs_little_and_work_wakes_at_once(together):
    # As BytePS comes, a worker keeps more than one core busy when it has nothing to do. Without the calls
    # that wake its threads, an exchange would take several of their naps of 20 ms.
    ended = together(processes(2, 1, "idle"))
    succeed(ended)
    for name in ("rank0", "rank1"):
        used, median = map(float, re.findall(r"idle (\S+) s of 5 s, median (\S+) ms", ended[name].output)[0])
        assert used < 0.5
        assert median < 40.0


def test_the_one_bit_compressor_works(together):
    # It goes through ReadyTable::SetReadyCount, which has no return statement (setup/byteps_build.py).
    changes = {"BYTEPS_FORCE_DISTRIBUTED": "1", "BYTEPS_THREADPOOL_SIZE": "2"}
    succeed(together(processes(1, 1, "onebit", **changes)))
