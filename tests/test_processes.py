"""The helper that starts processes for other tests: it must end them all."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from tests.processes import (
    TIMED_OUT,
    LeftoverProcesses,
    is_alive,
    run_command,
    run_ranks,
    start_ranks,
    until,
    wait_for_file,
)

# Starts a process in a session of its own that nothing but the environment ties to the run, then waits.
DAEMON = """
import os, subprocess, sys, time
child = subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=subprocess.DEVNULL,
                         stderr=subprocess.DEVNULL)
with open(sys.argv[1] + "/" + str(child.pid), "w"):
    pass
time.sleep(float(sys.argv[2]))
"""


def daemons(directory):
    return [int(name) for name in os.listdir(directory)]


def test_outputs_and_exit_code():
    code = "import os, sys; print(os.environ['A']); print('e', file=sys.stderr); sys.exit(3)"
    result = run_command([sys.executable, "-c", code], env={"A": "value"})
    assert (result.returncode, result.stdout, result.stderr) == (3, "value\n", "e\n")
    with pytest.raises(AssertionError, match="exited with 3"):
        result.check()


@pytest.mark.parametrize("launcher", ["mpirun", "gloo"])
def test_outputs_of_ranks(launcher):
    code = "import os, sys\nrank = os.environ.get('OMPI_COMM_WORLD_RANK') or os.environ['HOROVOD_RANK']\n"
    code += "print('out', rank, sys.argv[1:])\nprint('err', rank, file=sys.stderr)\n"
    result = run_ranks(code, 2, launcher, args=["x", 1]).check()
    assert [rank.stdout for rank in result.ranks] == [f"out {r} ['x', '1']\n" for r in range(2)]
    assert [rank.stderr for rank in result.ranks] == [f"err {r}\n" for r in range(2)]


def test_time_limit_ends_everything(tmp_path):
    with start_ranks(DAEMON, 2, grace=1, args=[tmp_path, 600]) as run:
        until(lambda: len(daemons(tmp_path)) == 2, run)
        run.end_within(0.5)
        result = run.wait()
    assert result.timed_out and result.returncode == TIMED_OUT
    assert not any(is_alive(pid) for pid in daemons(tmp_path))


def test_leftovers_are_killed_and_reported(tmp_path):
    with pytest.raises(LeftoverProcesses, match="sleep 600"):
        run_ranks(DAEMON, 1, "none", grace=0.5, args=[tmp_path, 0])
    assert len(daemons(tmp_path)) == 1
    assert not any(is_alive(pid) for pid in daemons(tmp_path))


def test_leaving_the_block_ends_everything(tmp_path):
    with start_ranks(DAEMON, 1, "none", args=[tmp_path, 600]) as run:
        until(lambda: daemons(tmp_path), run)
        assert run.poll() is None
    assert not any(is_alive(pid) for pid in daemons(tmp_path))


def test_killed_ranks_leave_no_files():
    code = (
        "import time\nfrom comm.horovod import HorovodCommunicator\nHorovodCommunicator()\ntime.sleep(600)\n"
    )
    with start_ranks(code, 2, env={"OMP_NUM_THREADS": "1"}) as run:
        private = f"/dev/shm/{run._directory.name}"
        until(lambda: len(os.listdir(private)) == 2, run)  # one segment for each rank: that is where they are
    assert not os.path.exists(private)
    assert not os.path.exists(run._directory)


WHO = """
import os, sys
place = [os.environ[name] for name in ("DMLC_WORKER_ID", "BYTEPS_LOCAL_RANK", "BYTEPS_LOCAL_SIZE")]
print("out", *place, sys.argv[1:])
print("err", os.environ["BYTEPS_GLOBAL_RANK"], file=sys.stderr)
"""
SLEEP = "import sys, time\nopen(sys.argv[1], 'w').close()\ntime.sleep(600)\n"


@pytest.mark.parametrize(
    ("size", "local_ranks", "places"), [(1, 1, ["0 0 1"]), (4, 2, ["0 0 2", "0 1 2", "1 0 2", "1 1 2"])]
)
def test_outputs_of_ranks_over_byteps(size, local_ranks, places):
    options = {"local_ranks": local_ranks, "launcher_args": ["--server_timeout", "0.5"]}
    result = run_ranks(WHO, size, "byteps", args=["x", 1], **options).check()
    assert [rank.stdout for rank in result.ranks] == [f"out {place} ['x', '1']\n" for place in places]
    assert [rank.stderr for rank in result.ranks] == [f"err {rank}\n" for rank in range(size)]


def test_acting_on_the_parts_of_a_run(tmp_path):
    with start_ranks(SLEEP, 2, "byteps", args=[tmp_path / "up"]) as run:
        wait_for_file(tmp_path / "up", run=run)
        until(lambda: len(run.find("code.py")) == 2 and all(map(run.find_role, ("server", "scheduler"))), run)
        assert run.find_role("worker") == run.find("code.py")
        assert len(run.find_role("worker", DMLC_WORKER_ID=1)) == 1
        os.kill(run.find_role("scheduler")[0], signal.SIGKILL)
        result = run.wait()
    assert result.returncode == 137 and "scheduler was killed by SIGKILL" in result.stderr


@pytest.mark.parametrize(("size", "launcher"), [(3, "byteps"), (2, "mpirun")])
def test_local_ranks_that_do_not_fit(size, launcher):
    with pytest.raises(ValueError, match="local_ranks 2"):
        run_ranks(WHO, size, launcher, local_ranks=2)
