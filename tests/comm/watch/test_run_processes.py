"""A process's view of the others of its run: real processes with the variables that launchers set."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from base.launchers import RUN_HOSTS, announced_hosts, launched_rank
from comm.watch.run_processes import (
    describe_run,
    parts_on_this_host,
    scheduler_state,
    silent_hosts,
    uses_byteps,
)
from hosts.addresses import free_port
from tests.processes import LIMIT, environ_of, until

WORKER = {"DMLC_ROLE": "worker"}


@pytest.mark.parametrize(
    ("environ", "rank"),
    [
        ({}, 0),
        ({"HOROVOD_RANK": "2"}, 2),
        ({"PMI_RANK": "1"}, 1),
        ({"PMIX_RANK": "5"}, 5),
        ({"PMIX_RANK": "0", "OMPI_COMM_WORLD_RANK": "3"}, 3),
        ({"SLURM_PROCID": "5", "SLURM_NTASKS": "8"}, 0),
        ({**WORKER, "DMLC_WORKER_ID": "2", "BYTEPS_LOCAL_SIZE": "4", "BYTEPS_LOCAL_RANK": "1"}, 9),
        ({**WORKER, "DMLC_WORKER_ID": "1", "OMPI_COMM_WORLD_RANK": "7"}, 1),
    ],
)
def test_the_rank_that_a_launcher_announces(environ, rank):
    assert launched_rank(environ) == rank


RUN = {"DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_NUM_WORKER": "2", "DMLC_NUM_SERVER": "2"}
WAIT = "import time\ntime.sleep(60)"


@contextmanager
def process(*words, **environ):
    started = subprocess.Popen(words, env={**os.environ, **environ}, stdin=subprocess.DEVNULL)
    try:
        wanted = {f"{name}={value}" for name, value in environ.items()}
        until(lambda: wanted <= set(environ_of(started.pid)))  # it is the new program by then
        yield started.pid
    finally:
        started.kill()
        started.wait()


def stop(pid):
    os.kill(pid, signal.SIGSTOP)
    until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")


def test_what_is_seen_of_a_byteps_run():
    """A stopped rank and a server are seen; what started a server, and another run's rank, are not."""
    run = {**RUN, "DMLC_PS_ROOT_PORT": str(free_port("127.0.0.1"))}
    own = {**run, "DMLC_ROLE": "worker", "DMLC_WORKER_ID": "0", "BYTEPS_LOCAL_RANK": "0"}
    assert uses_byteps(own)
    python = [sys.executable, "-c"]
    with process(*python, WAIT, **{**own, "DMLC_WORKER_ID": "1"}) as rank, process(
        # The last word is the one by which a server is known.
        *python, WAIT, "import byteps.server", **{**run, "DMLC_ROLE": "server"}
    ) as serving, process(*python, WAIT, **{**run, "DMLC_ROLE": "server"}), process(
        *python, WAIT, **{**own, "DMLC_PS_ROOT_PORT": "1"}
    ):  # fmt: skip
        stop(rank)
        assert parts_on_this_host(own) == [("a BytePS server", serving, False), ("rank 1", rank, True)]
        said = describe_run(own, ask_others=True)
    assert said == (
        f"stopped by a signal on this host: rank 1 (pid {rank}); "
        "on this host run 1 of 2 ranks and 1 of 2 BytePS servers; "
        f"the BytePS scheduler at 127.0.0.1:{run['DMLC_PS_ROOT_PORT']} cannot be reached (Connection refused)"
    )


@pytest.mark.parametrize(
    "run",
    [
        {"OMPI_MCA_ess_base_jobid": f"job-{os.getpid()}", "OMPI_MCA_orte_hnp_uri": "tcp://127.0.0.1:1"},
        {"PMIX_NAMESPACE": f"prterun-node-{os.getpid()}@1"},  # Open MPI 5
    ],
)
def test_what_is_seen_of_a_run_under_mpirun(run):
    own = {"OMPI_COMM_WORLD_RANK": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", **run}
    with process(sys.executable, "-c", WAIT, **{**own, "OMPI_COMM_WORLD_RANK": "5"}) as pid:
        assert describe_run(own, ask_others=True) == "on this host run 1 of its 2 ranks"
        stop(pid)
        assert parts_on_this_host(own) == [("rank 5", pid, True)]
    assert parts_on_this_host(own) == []
    assert describe_run({}, ask_others=True) == ""


def test_hosts_that_do_not_answer():
    """127.0.0.2 rejects the connection, or accepts it; 255.255.255.255 cannot."""
    hosts = announced_hosts([("own", 1), ("127.0.0.2", 1), ("someone@255.255.255.255", 2), ("own", 1)])
    for rank in "04":
        own = {"OMPI_COMM_WORLD_RANK": rank, RUN_HOSTS: hosts}
        assert silent_hosts(own, 5) == ["255.255.255.255"]
    assert describe_run(own, ask_others=True) == "255.255.255.255 (ranks 2, 3) does not answer at port 22"
    assert describe_run(own, ask_others=False) == "" == describe_run({}, ask_others=True)


def test_a_scheduler_that_does_not_answer():
    with socket.create_server(("127.0.0.1", 0)) as listener:  # the kernel accepts, as for a stopped process
        environ = {**RUN, "DMLC_PS_ROOT_PORT": str(listener.getsockname()[1])}
        assert scheduler_state(environ, 0.2) == "does not answer"
    assert scheduler_state(environ, 0.2) == "cannot be reached (Connection refused)"


def test_what_is_seen_of_local_ranks_without_servers():
    """A worker of its own has no scheduler's address; its ranks have one command line."""
    code = """
import os, subprocess, sys, time
from comm.watch.run_processes import describe_run

if os.environ["BYTEPS_LOCAL_RANK"] == "1":
    time.sleep(60)
print(describe_run(os.environ, ask_others=True))
"""
    own = {"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "1", "DMLC_WORKER_ID": "0", "BYTEPS_LOCAL_SIZE": "2"}
    words = [sys.executable, "-c", code, str(os.getpid())]

    def seen():
        environ = {**os.environ, **own, "BYTEPS_LOCAL_RANK": "0"}
        return subprocess.run(words, env=environ, stdout=subprocess.PIPE, text=True, timeout=LIMIT).stdout

    assert seen() == "on this host run 1 of its 2 ranks\n"
    with process(*words, **own, BYTEPS_LOCAL_RANK="1") as pid:
        assert seen() == "\n"
        stop(pid)
        assert seen() == f"stopped by a signal on this host: rank 1 (pid {pid})\n"
