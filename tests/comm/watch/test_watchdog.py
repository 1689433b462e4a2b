"""The watchdog with real ranks that are stopped or killed: every process ends in time and the line names who
is missing."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from comm.local import LocalCommunicator
from comm.watch.heartbeat import ENDED, LOST, SILENT, STUCK, TOLD, Sign
from comm.watch.watchdog import WatchedCommunicator, patience
from hosts.mpirun import KEEPALIVE
from tests.processes import LIMIT, run_command, start_ranks, until, wait_for_file
from tests.sockets import listening, unacknowledged

WORKER = Path(__file__).with_name("watchdog_worker.py")
# Horovod's threads look for work fifty times a second, not a thousand times: most tests wait.
ENV = {"OMP_NUM_THREADS": "1", "HOROVOD_CYCLE_TIME": "20"}
TIMEOUT = 15.0  # of the watchdog, where it has to be waited for: on a busy machine joining takes many seconds
UNHURRIED = 300.0  # where something else ends the run


def start(launcher, directory, mode, timeout=TIMEOUT, hosts=None, env=None):
    args = ["byteps" if launcher == "byteps" else "horovod", directory, timeout, mode]
    over = {"prefix": hosts.prefix, "launcher_args": hosts.mpirun_args} if hosts else {}
    return start_ranks(WORKER, 2, launcher, env={**ENV, **(env or {})}, args=args, **over)


def let_exchange(run, directory):
    """Until both ranks have exchanged. None sets out before all are ready: on a busy machine one may be
    seconds ahead of another."""
    for rank in range(2):
        wait_for_file(directory / f"pid.{rank}", run=run)
    (directory / "go").touch()
    for rank in range(2):
        wait_for_file(directory / f"steps.{rank}", run=run)


def strike(directory, rank, number) -> int:
    pid = int((directory / f"pid.{rank}").read_text(encoding="ascii"))
    os.kill(pid, number)
    return pid


def finish(run):
    result = run.wait()  # raises when anything outlives the launcher
    lost = "PRTE has lost communication" in result.stderr  # Open MPI 5's mpirun then exits with 0
    assert not result.timed_out and (result.returncode != 0 or lost), result.describe()
    return result


def test_a_rank_stopped_on_another_host(two_hosts, tmp_path):
    """Two network namespaces: signs of life cross the wire, and the other host is named."""
    with start("mpirun", tmp_path, "exchange", hosts=two_hosts) as run:
        let_exchange(run, tmp_path)
        pid = strike(tmp_path, 1, signal.SIGSTOP)
        result = finish(run)
    (line,) = [line for line in result.stderr.splitlines() if "error: " in line]
    assert f"rank 1 (beta, pid {pid}, " in line and "given no sign of life" in line
    assert [address for address, _ in places_in(tmp_path)] == ["10.77.0.1"]  # not on all of them


def test_a_host_that_is_cut_off(two_hosts, tmp_path):
    """The wire is taken out: no connection is closed, nothing arrives. mpirun names the host, and all
    processes of both end, its daemon on the lost host included."""
    hurried = zip(KEEPALIVE, ("1", "1", "4"))
    env = {f"{of}_MCA_{name}": value for name, value in hurried for of in ("OMPI", "PRTE")}
    with start("mpirun", tmp_path, "exchange", timeout=UNHURRIED, hosts=two_hosts, env=env) as run:
        let_exchange(run, tmp_path)
        # The kernel's keepalive asks only where nothing is on its way (hosts/mpirun.py).
        daemons = set(run.pids()) - set(run.find(WORKER.name))
        until(lambda: not unacknowledged(daemons), run)
        two_hosts.cut()
        result = finish(run)
    named = r"lost communication .*on node (10\.77\.0\.2|beta)$"
    assert re.search(named, result.stderr, re.DOTALL | re.MULTILINE)


def test_a_rank_that_does_not_close(tmp_path):
    with start("mpirun", tmp_path, "close") as run:
        let_exchange(run, tmp_path)
        time.sleep(1.0)  # rank 0 is inside close
        strike(tmp_path, 1, signal.SIGSTOP)
        result = finish(run)
    assert "rank 1 (" in result.stderr and "given no sign of life" in result.stderr


def test_ranks_that_all_wait(tmp_path):
    with start("mpirun", tmp_path, "quarrel") as run:
        let_exchange(run, tmp_path)
        result = finish(run)
    (line,) = [line for line in result.stderr.splitlines() if "error: " in line]
    assert f"all 2 ranks have waited in barrier/broadcast for {TIMEOUT:g} s" in line


@pytest.mark.parametrize(("launcher", "mode"), [("mpirun", "compute"), ("byteps", "exchange")])
def test_an_orderly_run_is_left_alone(launcher, mode, tmp_path):
    """Also one that lasts longer than the timeout, and with a rank that computes for longer than that."""
    with start(launcher, tmp_path, mode) as run:
        let_exchange(run, tmp_path)
        check_ports(run, tmp_path, launcher)
        time.sleep(1.3 * TIMEOUT)  # by then it would have been noticed
        (tmp_path / "stop").touch()
        result = run.wait().check()
    assert [rank.stdout for rank in result.ranks] == [
        f"rank {rank} of 2 closed, threads left: []\n" for rank in range(2)
    ]
    assert "error: " not in result.stderr


def places_in(directory):
    return json.loads((directory / "places").read_text(encoding="ascii"))


def check_ports(run, directory, launcher):
    """All ranks are on this machine: signs of life came over loopback, by a port that nobody reaches any
    more; what libraries keep open is what docs/network.md says."""
    ((address, port),) = places_in(directory)
    assert address == "127.0.0.1"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((address, port), LIMIT)
    ranks = [int((directory / f"pid.{rank}").read_text(encoding="ascii")) for rank in range(2)]
    found = listening(run.pids())
    if launcher == "byteps":  # the scheduler, a server, and each rank
        assert len(found) == 4 and all(each.is_loopback for each in found)
    else:
        assert not [each for each in found if each.pid in ranks]


def test_the_best_informed_speaks_first():
    for kind in (SILENT, STUCK, LOST, ENDED):
        assert patience(0, kind) < patience(1, TOLD)  # whom rank 0 tells
    for kind in (SILENT, ENDED):  # rank 0 is missing: rank 1 speaks, the others only if it does not
        assert patience(1, kind) < patience(2, kind) == patience(255, kind) <= 5
    assert patience(0, ENDED) > 0  # a rank that fails says why itself


def test_what_a_rank_does():
    """An average counts until a call that waits has returned."""
    import mxnet as mx

    comm = WatchedCommunicator(LocalCommunicator(), 60.0)
    sign = comm.sign
    assert sign() == Sign("", 0.0)
    comm.average([mx.nd.ones((2,))])
    time.sleep(0.02)
    assert sign().doing == "average" and 0.02 <= sign().waiting < 60
    assert comm.all_agree([True, False]) == [True, False]
    assert sign() == Sign("", 0.0)
    comm.close()


JOIN = """
import time
from comm.watch.watchdog import watched
watched(lambda: time.sleep(1000), 1.0)
"""


def test_joining_takes_too_long():
    result = run_command([sys.executable, "-c", JOIN])
    assert result.returncode == 1
    assert result.stderr == "error: waited 1 s (--comm_timeout) for the other ranks to join\n"


def test_a_standard_error_that_nobody_reads_does_not_hold_it_up():
    fill = "import os\nos.set_blocking(2, False)\ntry:\n    while True: os.write(2, b'x' * 4096)\n"
    fill += "except BlockingIOError: os.set_blocking(2, True)\n"
    command = [sys.executable, "-c", fill + JOIN]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        assert process.wait(LIMIT) == 1
