"""The launcher "byteps" of tests/processes.py."""

from __future__ import annotations

import os
import signal

import pytest

from tests.processes import run_ranks, start_ranks, until, wait_for_file

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
def test_outputs_of_ranks(size, local_ranks, places):
    options = {"local_ranks": local_ranks, "launcher_args": ["--server_timeout", "0.5"]}
    result = run_ranks(WHO, size, "byteps", args=["x", 1], **options).check()
    assert [rank.stdout for rank in result.ranks] == [f"out {place} ['x', '1']\n" for place in places]
    assert [rank.stderr for rank in result.ranks] == [f"err {rank}\n" for rank in range(size)]


def test_acting_on_the_parts_of_a_run(tmp_path):
    with start_ranks(SLEEP, 2, "byteps", args=[tmp_path / "up"]) as run:
        wait_for_file(tmp_path / "up", run=run)
        until(
            lambda: len(run.find("code.py")) == 2 and run.find_role("server") and run.find_role("scheduler"),
            run,
        )
        assert run.find_role("worker") == run.find("code.py")
        assert len(run.find_role("worker", DMLC_WORKER_ID=1)) == 1
        os.kill(run.find_role("scheduler")[0], signal.SIGKILL)
        result = run.wait()
    assert result.returncode == 137 and "scheduler was killed by SIGKILL" in result.stderr


@pytest.mark.parametrize(("size", "launcher"), [(3, "byteps"), (2, "mpirun")])
def test_local_ranks_that_do_not_fit(size, launcher):
    with pytest.raises(ValueError, match="local_ranks 2"):
        run_ranks(WHO, size, launcher, local_ranks=2)
