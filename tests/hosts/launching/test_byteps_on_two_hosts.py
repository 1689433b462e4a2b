"""hosts/launch.py over two hosts: network namespaces of this machine (see tests/namespaces.py). The
remote shell is an agent of the tests that enters the namespace, instead of ssh."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest

from tests.hosts.launcher import BYTEPS
from tests.processes import ROOT, run_command, start_command, wait_for_file

HOSTS = Path(__file__).parents[1]


def launcher(two_hosts, *options):
    words = [*two_hosts.prefix, *BYTEPS, "--hostfile", two_hosts.hostfile]
    return [*words, "--ssh", two_hosts.agent, *options, "--", sys.executable]


@pytest.mark.parametrize("options", [[], ["--interface", "wire0"]], ids=["addresses", "interface"])
def test_byteps_averages_over_two_hosts(two_hosts, tmp_path, options):
    before = [two_hosts.received(host) for host in (0, 1)]
    worker = [HOSTS.parent / "comm" / "contract_worker.py", "byteps", tmp_path, "average_of_a_large_array"]
    run_command([*launcher(two_hosts, *options), *worker], env={"OMP_NUM_THREADS": "1"}).check()
    for rank in (0, 1):
        record = json.loads((tmp_path / f"{rank}.jsonl").read_text())
        assert record["error"] is None and record["ranks"] == [rank, 2, 0, 1], record
    # 8.8 MB, half of them to the other host's server; a packet carries at most 64 kB.
    for host in (0, 1):
        assert two_hosts.received(host) - before[host] > 40
    shown = run_command([*launcher(two_hosts, "--dry_run", *options), *worker]).check().stdout
    assert ("DMLC_NODE_HOST=" in shown) != bool(options), "each determines its own from the interface"


def test_what_is_sent_along_to_another_host(two_hosts, tmp_path):
    env = {"MXNET_OWN": "a b'c", "NCCL_DEBUG": "WARN", "OMP_NUM_THREADS": "3", "DMLC_WORKER_ID": "7"}
    options = ["--server_timeout", "0.5", "--env", "OWN=$x"]
    command = [*launcher(two_hosts, *options), HOSTS / "part.py", tmp_path, "exit0", "exit0", "it's *"]
    run_command(command, env=env).check()
    facts = json.loads((tmp_path / "rank.1.json").read_text(encoding="utf-8"))
    expected = {"MXNET_OWN": "a b'c", "NCCL_DEBUG": "WARN", "OMP_NUM_THREADS": "3", "OWN": "$x"}
    expected.update(DMLC_WORKER_ID="1", DMLC_PS_ROOT_URI="10.77.0.1", DMLC_NODE_HOST="10.77.0.2")
    assert {name: facts["environ"].get(name) for name in expected} == expected
    assert facts["cwd"] == str(ROOT) and facts["argv"][4] == "it's *"


def test_signals_reach_another_host(two_hosts, tmp_path):
    # These ranks have never joined the servers, which therefore do not end by themselves.
    command = [*launcher(two_hosts, "--server_timeout", "0.5"), HOSTS / "part.py", tmp_path, "obey"]
    with start_command(command) as run:
        for rank in (0, 1):
            wait_for_file(tmp_path / f"rank.{rank}.pid", run=run)
        run.signal(signal.SIGUSR1)
        result = run.wait()
    assert result.returncode == 143, result.describe()
    for rank in (0, 1):
        assert (tmp_path / f"rank.{rank}.saved").read_text() == "SIGUSR1"
