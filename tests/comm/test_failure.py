"""End of a run when one of its ranks ends, or when Horovod cannot do what is required."""

from __future__ import annotations

import re
import sys

import pytest

from tests.processes import run_command, run_ranks

ONE_THREAD = {"OMP_NUM_THREADS": "1"}
JOINS = "from comm.horovod import HorovodCommunicator\nHorovodCommunicator()\n"
# Ranks that work together until the last one fails; FOLDER/noticed has what another rank's wait ended with.
FAILS = """
import sys, time
from pathlib import Path
import mxnet as mx
from comm.base import CommunicationError, abort
from comm.horovod import HorovodCommunicator

comm = HorovodCommunicator()
array = mx.nd.ones((1000, 1000))
for _ in range(3):
    comm.average([array])
    assert comm.all_agree([True]) == [True]
if comm.rank == comm.size - 1:
    time.sleep(0.5)  # the others are waiting by then
    if sys.argv[2] == "raise":
        raise RuntimeError("this rank has failed")
    abort(7)
try:
    comm.average([array])
    comm.all_agree([True])
except CommunicationError as error:
    Path(sys.argv[1], "noticed").write_text(str(error), encoding="utf-8")
    raise
"""


@pytest.mark.parametrize(
    ("launcher", "how", "exit_code"),
    [
        ("mpirun", "raise", 1),
        ("mpirun", "abort", 7),
        ("gloo", "raise", 1),
    ],
)
def test_a_rank_that_ends_ends_the_run(launcher, how, exit_code, tmp_path):
    result = run_ranks(FAILS, 2, launcher, env=ONE_THREAD, args=[tmp_path, how])
    assert result.returncode == exit_code, result.describe()
    if how == "raise":
        assert "this rank has failed" in result.stderr
        assert "lost the other ranks" in (tmp_path / "noticed").read_text(encoding="utf-8")


def test_a_launcher_that_horovod_does_not_join():
    """Without this check both processes would train alone and say that they are rank 0 of 1."""
    env = {**ONE_THREAD, "HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}
    result = run_ranks(JOINS, 2, env=env)
    assert result.returncode != 0
    assert "InputError: the launcher started 2 processes (OMPI_COMM_WORLD_SIZE)" in result.stderr


def test_an_interface_that_the_host_lacks():
    """Open MPI would go on with a warning."""
    given = ["-mca", "btl_tcp_if_include", "10.0.0.0/8,ens5x"]
    result = run_ranks(JOINS, 2, env=ONE_THREAD, launcher_args=given)
    said = "InputError: btl_tcp_if_include 10.0.0.0/8,ens5x: "
    assert result.returncode == 1 and said in result.stderr, result.describe()
    assert "has no network interface ens5x, only lo" in result.stderr


def test_without_horovod():
    code = f"import sys\nsys.modules['horovod'] = None\n{JOINS}"
    *_, line = run_command([sys.executable, "-c", code]).stderr.splitlines()
    assert re.fullmatch(r"base\.errors\.InputError: Horovod for MXNet cannot be .*; run `make setup`", line)
