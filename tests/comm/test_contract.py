"""One contract for all communicators: see contract_worker.py, which runs on the ranks."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import NamedTuple, Sequence

import pytest

from tests import namespaces
from tests.processes import once, run_ranks

WORKER = Path(__file__).with_name("contract_worker.py")
CHECKS = re.findall(r"^def check_(\w+)\(comm\):", WORKER.read_text("utf-8"), re.MULTILINE)
SOME = [
    "average_float32",
    "average_float16",
    "scaled_average",
    "all_agree",
    "broadcast",
    "broadcast_keeps_every_bit",
]
# Whether a call waits, which takes long to see, does not depend on Horovod's network.
OTHERS = [check for check in CHECKS if check != "average_does_not_wait"]
# What a third rank may change: sums, who sends, who waits for whom. Not the order in which a rank works on
# its own arrays.
OF_THREE = [*SOME, "float16_sum_beyond_its_range"]
OF_THREE += ["average_gives_the_same_bits_again", "average_in_place", "average_of_nan_and_inf"]
OF_THREE += ["average_of_a_large_array", "average_nothing", "broadcast_many", "barrier", "forget"]
OF_THREE += ["refusals", "close"]


class Run(NamedTuple):
    """One launch. `local_ranks`: ranks of a BytePS worker. `checks`: none given means all."""

    communicator: str
    launcher: str
    ranks: int
    local_ranks: int = 1
    checks: Sequence[str] = ()


RUNS = {
    "local": Run("local", "none", 1),
    "horovod-alone": Run("horovod", "none", 1),
    "horovod-mpi-2": Run("horovod", "mpirun", 2, 2),
    "horovod-mpi-3": Run("horovod", "mpirun", 3, 3, OF_THREE),
    "horovod-gloo-2": Run("horovod", "gloo", 2, 2, OTHERS),
    "byteps-alone": Run("byteps", "none", 1),
    "byteps-2-workers": Run("byteps", "byteps", 2),
    # 2 local ranks have the bits of Horovod's in test_equality.py; 2 workers of 2 are in test_compression.py,
    # and the sums of 3 in tests/native/test_byteps.py.
    "byteps-3-local": Run("byteps", "byteps", 3, 3),
}


@pytest.fixture(scope="module")
def launch(tmp_path_factory):
    """Function of a run's name: {check: [record of rank 0, ...]}. Each run is launched once."""
    return once(lambda name: start(RUNS[name], tmp_path_factory.mktemp("contract")))


def start(run, directory, **options):
    run_ranks(
        WORKER,
        run.ranks,
        run.launcher,
        env={"OMP_NUM_THREADS": "1"},
        args=[run.communicator, directory, *run.checks],
        local_ranks=run.local_ranks if run.launcher == "byteps" else 1,
        **options,
    ).check()
    records: dict[str, list[dict]] = {}
    for rank in range(run.ranks):
        for line in (directory / f"{rank}.jsonl").read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            records.setdefault(record["check"], []).append(record)
    assert set(records) == set(run.checks or CHECKS)
    return records


def look_at(ranks, size, local_size):
    """A check's records: each rank has its place and found no error, and all have the same bits."""
    assert [record["ranks"] for record in ranks] == [
        [rank, size, rank % local_size, local_size] for rank in range(size)
    ]
    for record in ranks:
        assert record["error"] is None, f"rank {record['ranks'][0]}: {record['error']}"
    assert len({record.get("digest") for record in ranks}) == 1


@pytest.mark.parametrize(
    ("name", "check"),
    [(name, check) for name, run in RUNS.items() for check in run.checks or CHECKS],
)
def test_contract(launch, name, check):
    size, ranks = RUNS[name].ranks, launch(name)[check]
    look_at(ranks, size, RUNS[name].local_ranks)
    if check == "barrier":
        apart = []
        for turn in range(size):
            entered, left = zip(*(record["times"][turn] for record in ranks))
            assert min(left) >= max(entered)
            apart.append(max(entered) - min(entered))
        assert max(apart) > 0.1 or size == 1


def test_two_ranks_on_each_of_two_hosts(tmp_path):
    """mpirun over two network namespaces of this machine (see tests/namespaces.py), which Horovod sees as two
    hosts, not as one with all the ranks. Where there are none, all are on one host. Its ranks can be divided:
    into groups, which exchange messages."""
    checks = ["messages", "groups", *SOME, "average_in_place", "barrier", "close"]
    run = Run("divided", "mpirun", 4, 2, checks)
    with contextlib.ExitStack() as stack:
        try:
            hosts = stack.enter_context(namespaces.two_hosts(tmp_path, slots=2))
        except namespaces.Unavailable:
            run = run._replace(local_ranks=4)
            found = start(run, tmp_path)
        else:
            before = [hosts.received(0), hosts.received(1)]
            found = start(run, tmp_path, prefix=hosts.prefix, launcher_args=hosts.mpirun_args)
            # 40 arrays of up to 400 kB; a packet carries at most 64 kB.
            for host in (0, 1):
                assert hosts.received(host) - before[host] > 100
    for ranks in found.values():
        look_at(ranks, 4, run.local_ranks)
