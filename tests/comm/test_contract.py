"""One contract for all communicators: see contract_worker.py, which runs on the ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.processes import run_ranks

WORKER = Path(__file__).with_name("contract_worker.py")
# name: (communicator, launcher, ranks, checks; none given means all)
RUNS = {
    "local": ("local", "none", 1, []),
    "horovod-alone": ("horovod", "none", 1, []),
    "horovod-mpi-2": ("horovod", "mpirun", 2, []),
    "horovod-mpi-3": ("horovod", "mpirun", 3, []),
    "horovod-mpi-4": (
        "horovod",
        "mpirun",
        4,
        ["average_float32", "average_float16", "all_agree", "broadcast"],
    ),
    "horovod-gloo-2": ("horovod", "gloo", 2, []),
}
CHECKS = [
    "average_float32",
    "average_float64",
    "average_float16",
    "average_mixed_dtypes",
    "float16_sum_beyond_its_range",
    "average_nothing",
    "average_again_and_again",
    "average_other_arrays_at_once",
    "average_gives_the_same_bits_again",
    "average_twice_in_a_row",
    "average_in_place",
    "average_of_nan_and_inf",
    "average_right_after_backward",
    "average_does_not_wait",
    "broadcast",
    "broadcast_many",
    "all_agree",
    "barrier",
    "refusals",
    "close",
]


@pytest.fixture(scope="module")
def launch(tmp_path_factory):
    """Function of a run's name: {check: [record of rank 0, ...]}. Each run is launched once."""
    launched: dict[str, dict[str, list[dict]]] = {}

    def get(name):
        if name not in launched:
            launched[name] = {}  # a launch that fails is not tried again for every check
            launched[name] = start(name, tmp_path_factory.mktemp("contract"))
        return launched[name]

    return get


def start(name, directory):
    backend, launcher, size, checks = RUNS[name]
    result = run_ranks(
        WORKER,
        size,
        launcher,
        timeout=180,
        env={"OMP_NUM_THREADS": "1"},
        args=[backend, directory, *checks],
    )
    result.check()
    records: dict[str, list[dict]] = {}
    for rank in range(size):
        for line in (directory / f"{rank}.jsonl").read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            records.setdefault(record["check"], []).append(record)
    assert set(records) == set(checks or CHECKS)
    return records


@pytest.mark.parametrize(
    ("name", "check"),
    [(name, check) for name, (_, _, _, checks) in RUNS.items() for check in checks or CHECKS],
)
def test_contract(launch, name, check):
    size = RUNS[name][2]
    ranks = launch(name)[check]
    assert [record["ranks"] for record in ranks] == [[rank, size, rank, size] for rank in range(size)]
    for record in ranks:
        assert record["error"] is None, f"rank {record['ranks'][0]}: {record['error']}"
    # Bit-identical results.
    assert len({record.get("digest") for record in ranks}) == 1
    if check == "barrier":
        for turn in range(size):
            entered, left = zip(*(record["times"][turn] for record in ranks))
            assert min(left) >= max(entered)
            assert max(entered) - min(entered) > 0.1 or size == 1
