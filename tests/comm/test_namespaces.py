"""mpirun over several hosts: two network namespaces of this machine (see tests/namespaces.py)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.processes import run_ranks

WORKER = Path(__file__).with_name("contract_worker.py")
CHECKS = ["average_float32", "average_float16", "average_in_place", "all_agree", "broadcast"]
CHECKS += ["broadcast_keeps_every_bit"]


@pytest.mark.parametrize("two_hosts", [1, 2], ids=["2-hosts-1-slot", "2-hosts-2-slots"], indirect=True)
def test_two_hosts(two_hosts, tmp_path, request):
    slots = request.node.callspec.params["two_hosts"]
    size = 2 * slots
    before = [two_hosts.received(0), two_hosts.received(1)]
    run_ranks(
        WORKER,
        size,
        env={"OMP_NUM_THREADS": "1"},
        args=["horovod", tmp_path, *CHECKS],
        prefix=two_hosts.prefix,
        launcher_args=two_hosts.mpirun_args,
    ).check()
    for rank in range(size):
        lines = (tmp_path / f"{rank}.jsonl").read_text(encoding="utf-8").splitlines()
        records = [json.loads(line) for line in lines]
        assert [record["check"] for record in records] == CHECKS
        for record in records:
            assert record["error"] is None, f"rank {rank}: {record['error']}"
            # Horovod sees two hosts, not one with all the ranks.
            assert record["ranks"] == [rank, size, rank % slots, slots]
    # 40 arrays of up to 400 kB; a packet carries at most 64 kB.
    for host in (0, 1):
        assert two_hosts.received(host) - before[host] > 100
