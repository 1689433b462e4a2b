"""The unmodified BytePS over the host runtime: real workers, servers and schedulers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from comm.numbering import Servers, server_of
from hosts.addresses import free_port
from tests.processes import ROOT, TIMED_OUT, nothing_new, start_command, until

WORKER = str(ROOT / "tests/native/byteps_worker.py")
SERVE = [sys.executable, "-c", "import byteps.server"]
SMALL = {"BYTEPS_PARTITION_BYTES": "1024000"}  # the largest arrays have several


def processes(workers, local_ranks, task, prefix="", **changes):
    """All processes of a run, for `together`."""
    env = {
        "DMLC_NUM_WORKER": str(workers),
        "DMLC_NUM_SERVER": "1",
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port("127.0.0.1")),
        "DMLC_NODE_HOST": "127.0.0.1",
        "BYTEPS_LOCAL_SIZE": str(local_ranks),
        "OMP_NUM_THREADS": "1",
        **changes,
    }
    started = {}
    for role in ("scheduler", "server") if workers > 1 else ():
        started[f"{prefix}{role}"] = (SERVE, {**env, "DMLC_ROLE": role})
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
    # Whole, for whoever reads only this: pytest shows a few of them, and the ends of their texts.
    failed = [f"{name}: {end.code}\n{end.output}" for name, end in ended.items() if end.code != 0]
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize(("workers", "local_ranks"), [(1, 1), (1, 2), (2, 1)])
def test_two_runs_at_once_share_nothing(together, tmp_path, workers, local_ranks):
    """And have the right sums. Three local ranks: tests/comm/test_contract.py, two workers of two ranks:
    tests/comm/test_compression.py."""
    # A process alone needs nothing; ranks of one worker know their run by its path, those of several by their
    # scheduler.
    runs = {}
    for name in ("a.", "b."):
        folder = tmp_path / (name if (workers, local_ranks) == (1, 2) else "same")
        folder.mkdir(exist_ok=True)
        changes = {"BYTEPS_SOCKET_PATH": str(folder), **SMALL}
        if workers == local_ranks == 1:
            changes["DMLC_PS_ROOT_PORT"] = "9000"
        runs.update(processes(workers, local_ranks, "sums", prefix=name, **changes))
    memory = named_memory()
    succeed(together(runs))
    nothing_new(memory, named_memory)
    assert not list(tmp_path.rglob("socket_*"))


def test_three_workers_are_added_by_rank_where_asked(together):
    """Else by arrival: orders that do not begin with the first two have other bits in some of these sums."""
    ended = together(processes(3, 1, "in_turn", **SMALL, BYTEPS_REPRODUCIBLE="1"))
    succeed(ended)
    found = {name: end.output.split("by rank ")[1][0] for name, end in ended.items() if "rank" in name}
    assert found == dict.fromkeys(("rank0", "rank1", "rank2"), "6")


OWN_LOOPBACK = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]


@pytest.mark.parametrize(
    ("of_server", "least", "most"), [([], 0, 4e6), (["unshare", "--pid", "--kill-child"], 200e6, 300e6)]
)
def test_values_do_not_travel_on_one_host(together, of_server, least, most):
    """But to a server that cannot see the workers' processes, as one in another container: 256 MB, of which
    the other rank may have sent some before this one begins to count."""
    if subprocess.run([*OWN_LOOPBACK, "true"], capture_output=True).returncode:
        pytest.skip("no network namespaces: needs root, unshare and ip")
    started = processes(2, 1, "traffic")
    started["server"] = ([*of_server, *started["server"][0]], started["server"][1])
    with start_command([*OWN_LOOPBACK, "sleep", "infinity"]) as network:
        until(lambda: Path(f"/proc/{network.pid}/comm").read_text() == "sleep\n", network)
        enter = ["nsenter", f"--net=/proc/{network.pid}/ns/net"]
        ended = together({name: ([*enter, *words], env) for name, (words, env) in started.items()})
    succeed(ended)
    (sent,) = re.findall(r"sent (\d+)", ended["rank0"].output)
    assert least < int(sent) < most


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
        assert end.code not in (0, TIMED_OUT) and "File name too long" in end.output


@pytest.mark.alone
def test_waiting_costs_little_and_work_wakes_at_once(together):
    # As BytePS comes, a worker keeps more than one core busy when it has nothing to do. Without the calls
    # that wake its threads, an exchange would take several of their naps of 20 ms.
    ended = together(processes(2, 1, "idle"))
    succeed(ended)
    for name in ("rank0", "rank1"):
        used, median = map(float, re.findall(r"idle (\S+) s of 2 s, median (\S+) ms", ended[name].output)[0])
        assert used < 0.2
        assert median < 40.0


AVERAGE = """
import mxnet as mx
from comm.byteps.communicator import BytePSCommunicator

comm = BytePSCommunicator(bucket_bytes=4096)
sizes = (30000, 700, 9000, 1200, 20000, 50, 2500, 4100)
arrays = [mx.nd.full((size,), comm.rank + 1) for size in sizes]
for turn in range(3):
    comm.average(arrays)
    for array in arrays:
        assert (array.asnumpy() == 1.5).all()
        array[:] = comm.rank + 1
comm.close()
"""
ASSIGNED = re.compile(r"key (\d+) assigned to server (\d+), accumulated workload for this server is (\d+)")


@pytest.mark.parametrize("apart, beside", [(3, 0), (1, 2)])
def test_partitions_go_to_the_servers_that_are_meant(together, apart, beside):
    """Each host an address of the loopback interface; BytePS's own log says where each partition goes. With
    numbers in a row the fullest of three servers had 1.19 times the mean."""
    changes = {"DMLC_NUM_SERVER": str(apart + beside), "BYTEPS_LOG_LEVEL": "DEBUG"}
    changes.update({"BYTEPS_ENABLE_MIXED_MODE": "1"} if beside else {})
    started = processes(2, 1, "", BYTEPS_PARTITION_BYTES="4096", **changes)
    serve, env = started.pop("server")
    for number in range(apart + beside):  # workers are on hosts 2 and 3
        host = f"127.0.0.{2 + number if beside else 4 + number}"
        started[f"server{number}"] = (serve, {**env, "DMLC_NODE_HOST": host})
    for worker in range(2):
        own = {**started[f"rank{worker}"][1], "DMLC_NODE_HOST": f"127.0.0.{2 + worker}"}
        started[f"rank{worker}"] = ([sys.executable, "-c", AVERAGE], own)
    ended = together(started)
    succeed(ended)
    servers = Servers(2, apart, beside, 4096)
    for rank in ("rank0", "rank1"):
        lines = [tuple(map(int, line)) for line in ASSIGNED.findall(ended[rank].output)]
        found = {key: server for key, server, _ in lines}
        assert len(found) > 130
        assert found == {key: server_of(key >> 16, key % 2**16, servers) for key in found}
        loads = {server: load for _, server, load in lines}
        if not beside:
            assert max(loads.values()) <= 1.1 * sum(loads.values()) / apart, loads
