"""Compressed averages on real ranks (the checks are in compression_worker.py), and their options."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Mapping, NamedTuple, Sequence

import pytest

from base.errors import InputError
from base.options import add_options, options_in
from comm.compression import PIECE_BYTES, byteps_settings, horovod_settings, with_compression
from comm.local import LocalCommunicator
from comm.options import CommunicationConfig, communication_config
from tests.comm.byteps.test_environment import WORKER as OF_A_WORKER
from tests.comm.test_contract import SOME
from tests.processes import LIMIT, once, run_ranks, words_of

WORKER = Path(__file__).with_name("compression_worker.py")
# A network of its own, where nobody else's bytes are counted.
ALONE = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
# Checks of the contract in which float16's precision is enough.
HALF_CONTRACT = [
    "average_float16",
    "float16_sum_beyond_its_range",
    "average_nothing",
    "average_gives_the_same_bits_again",
    "average_in_place",
    "average_of_nan_and_inf",
    "average_does_not_wait",
    "broadcast",
    "broadcast_many",
    "all_agree",
    "barrier",
    "refusals",
]
# float16 over Horovod: "average_float16" there.
HALF = ["half", *HALF_CONTRACT, "sums_arrive_as_they_are"]
PIECES = ["zeros", "not_finite", "traffic"]
# What does not depend on the compressor: what is small, and what is no average, travels as it is.
OF_ANY = ["sums_arrive_as_they_are", "broadcast_of_much", "average_nothing", "average_of_nan_and_inf"]
OF_ANY += ["broadcast_many", "all_agree", "refusals"]
# What earlier averages left would come out in these, which are therefore first.
KEPT = ["zeros", "nothing_is_lost", "nothing_is_kept_after_forgetting", "not_finite", "float16_is_refused"]


class Case(NamedTuple):
    """`k`: --compression_k, `kept`: --error_feedback."""

    compression: str
    k: float | None
    kept: bool
    checks: Sequence[str]


class Launch(NamedTuple):
    """One launch over BytePS takes its cases one after the other. `local_ranks`: ranks of a worker."""

    ranks: int
    local_ranks: int
    cases: Mapping[str, Case]


WORKERS = {
    "none-byteps": Case("none", None, False, ["traffic"]),
    "fp16-byteps": Case("fp16", None, False, [*HALF, "traffic"]),
    "onebit": Case("onebit", None, False, [*PIECES, "two_passes"]),
    "topk": Case("topk", 0.01, False, [*PIECES, *OF_ANY, "two_passes", "nothing_is_lost"]),
    "randomk": Case("randomk", 0.01, False, ["randomk", *PIECES]),
    "dithering": Case("dithering", 127, False, [*PIECES, "dithering"]),
    "topk-kept": Case("topk", 0.1, True, KEPT),
    "randomk-kept": Case("randomk", 0.4, True, KEPT),
}
LOCAL_RANKS = {
    "none-local": Case("none", None, False, [*SOME, "average_again_and_again", "average_of_a_large_array"]),
    "topk-kept-local": Case("topk", 0.1, True, ["nothing_is_lost"]),
}
LAUNCHES = [
    Launch(2, 1, WORKERS),
    Launch(4, 2, LOCAL_RANKS),
]
LAUNCH_OF = {name: launch for launch in LAUNCHES for name in launch.cases}
# A round's bytes as a share of those without compression, at most.
TRAFFIC = {"fp16-byteps": 0.51, "onebit": 1 / 28, "topk": 1 / 40, "randomk": 1 / 40, "dithering": 0.3}


@pytest.fixture(scope="module")
def own_network():
    """Words that start a command in a network of its own; empty where that is not possible."""
    if os.geteuid() != 0 or not shutil.which("unshare") or not shutil.which("ip"):
        return []
    tried = subprocess.run(
        [*ALONE, "true"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=LIMIT
    )
    return ALONE if tried.returncode == 0 else []


class Launched(NamedTuple):
    """The records of each rank, and what was wrong with the launch as a whole."""

    records: list[list[dict]]
    wrong: str


@pytest.fixture(scope="module")
def launched(tmp_path_factory, own_network):
    """Function of a case's name: what its launch has left. Each is started once."""
    get = once(lambda number: start(LAUNCHES[number], tmp_path_factory.mktemp("compression"), own_network))
    return lambda name: get(LAUNCHES.index(LAUNCH_OF[name]))


@pytest.fixture(scope="module")
def ranks_of(launched):
    """Function of a case's name and a check: its record of each rank, rank 0's first."""

    def get(name, check):
        found = [
            next((each for each in records if (each["case"], each.get("check")) == (name, check)), None)
            for records in launched(name).records
        ]
        assert None not in found, f"not all ranks came to the end of {check}: {launched(name).wrong}"
        return found

    return get


def start(launch, directory, own_network):
    cases = {
        name: {
            "options": {
                "compression": case.compression, "compression_k": case.k, "error_feedback": case.kept
            },
            "checks": case.checks,
        }
        for name, case in launch.cases.items()
    }  # fmt: skip
    working = directory / "working"
    working.mkdir()
    # Bytes are counted where they travel; the other launches have values copied by the server.
    counted = any("traffic" in case.checks for case in launch.cases.values())
    result = run_ranks(
        WORKER,
        launch.ranks,
        "byteps",
        env={"OMP_NUM_THREADS": "1", "BYTEPS_DIRECT": str(int(not counted))},
        args=[directory, json.dumps(cases)],
        cwd=working,
        prefix=own_network,
        local_ranks=launch.local_ranks,
    )
    records = [read_records(directory / f"{rank}.jsonl") for rank in range(launch.ranks)]
    left = [path.name for path in working.iterdir()]  # no lr.s, and nothing else
    if result.returncode == 0 and not left:
        return Launched(records, "")
    last = [{**seen[-1], "error": None} if seen else None for seen in records]
    return Launched(records, f"files left: {left}\nthe ranks' last records: {last}\n{result.describe()}")


def read_records(path):
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(
    ("name", "check"),
    [
        (name, check)
        for name, launch in LAUNCH_OF.items()
        for check in launch.cases[name].checks
        if check != "traffic"
    ],
)
def test_on_ranks(ranks_of, name, check):
    ranks = ranks_of(name, check)
    for rank, record in enumerate(ranks):
        assert record["error"] is None, f"rank {rank}: {record['error']}"
    assert len({record.get("digest") for record in ranks}) == 1  # bit-identical


@pytest.mark.parametrize("name", [next(iter(launch.cases)) for launch in LAUNCHES])
def test_launches_end_well_and_leave_no_files(launched, name):
    assert not launched(name).wrong


@pytest.mark.parametrize("name", TRAFFIC)
def test_fewer_bytes_travel(ranks_of, own_network, name):
    if not own_network:
        pytest.skip("bytes can be counted in a network namespace only, which needs root and iproute2")
    full = ranks_of("none-byteps", "traffic")[0]
    # Two workers push to one server and pull from it.
    assert 4 * full["full"] < full["bytes"] < 4.2 * full["full"]
    assert ranks_of(name, "traffic")[0]["bytes"] < TRAFFIC[name] * full["bytes"]


def config(compression="none", k=None, feedback=False, **more):
    """As the command line gives it."""
    parser = argparse.ArgumentParser()
    table = options_in(CommunicationConfig)
    add_options(parser.add_argument, table, " ".join(table))
    options = {"compression": compression, "compression_k": k, "error_feedback": feedback, **more}
    return communication_config(parser.parse_args(words_of(options)))


def two_workers(**more):
    one_rank = {"DMLC_WORKER_ID": "0", "BYTEPS_LOCAL_RANK": "0", "BYTEPS_LOCAL_SIZE": "1"}
    return {**OF_A_WORKER, "DMLC_NUM_WORKER": "2", "DMLC_NUM_SERVER": "1", **one_rank, **more}


@pytest.mark.parametrize(
    ("compression", "k", "feedback", "message"),
    [
        ("none", 0.1, False, "--compression_k is for --compression topk, randomk and dithering, not for"),
        ("dithering", 1.5, False, "--compression_k 1.5: dithering takes a whole number of levels"),
        ("dithering", 40000, False, "--compression_k 40000"),
        ("topk", 2, False, "--compression_k 2: topk takes the share of the values to send"),
        ("randomk", 1e-5, False, "--compression_k 1e-05"),
        ("none", None, True, "--error_feedback is for --compression topk and randomk, not for none"),
        ("onebit", None, True, "its servers compress again"),
    ],
)
def test_impossible_options(compression, k, feedback, message):
    with pytest.raises(InputError, match="^--") as caught:
        config(compression, k, feedback)
    assert message in str(caught.value)


@pytest.mark.parametrize("compression", ["none", "fp16", "onebit", "topk", "randomk", "dithering"])
def test_possible_options(compression):
    assert with_compression(LocalCommunicator(), config(compression)).size == 1
    if compression in ("none", "fp16"):
        assert horovod_settings(config(compression)) == {}
        assert byteps_settings(config(compression), two_workers()) == {}
    else:
        with pytest.raises(InputError, match=f"--compression {compression} is BytePS's"):
            horovod_settings(config(compression))
        settings = byteps_settings(config(compression), two_workers())
        assert settings["compressor"]["compressor_type"] == compression
        assert settings["bucket_bytes"] == PIECE_BYTES


def test_size_of_buckets():
    given = config(bucket_mb=0.5)
    assert byteps_settings(given, two_workers()) == {"bucket_bytes": 2**19}
    with pytest.raises(InputError, match="--bucket_mb is for BytePS; .* HOROVOD_FUSION_THRESHOLD"):
        horovod_settings(given)
    with pytest.raises(InputError, match="--bucket_mb: --compression topk"):
        config("topk", bucket_mb=0.5)


def test_reproducible_runs():
    """That three workers' sums then are in order is seen in tests/native/test_byteps.py."""
    given, environ = config("fp16", reproducible=True), two_workers()
    assert byteps_settings(given, environ) == {} and environ["BYTEPS_REPRODUCIBLE"] == "1"
    environ = {}
    assert horovod_settings(given, environ) == {} and environ == {"HOROVOD_FUSION_THRESHOLD": "0"}
    with pytest.raises(InputError, match="--reproducible: HOROVOD_FUSION_THRESHOLD=64 fuses arrays; unset"):
        horovod_settings(given, {"HOROVOD_FUSION_THRESHOLD": "64"})
    with pytest.raises(InputError, match="--reproducible: dithering draws anew in every run"):
        config("dithering", reproducible=True)


def test_share_of_all_ranks():
    """With error feedback BytePS lets pass what both ranks select, without it what one does."""
    kept = byteps_settings(config("topk", 0.1, True), two_workers())["compressor"]["compressor_k"]
    assert 0.2 < float(kept) < 0.2001
    assert byteps_settings(config("topk", 0.1), two_workers())["compressor"]["compressor_k"] == "0.1"
    with pytest.raises(
        InputError, match="--compression_k 0.3: topk with --error_feedback and 2 ranks .* 0.2;"
    ):
        byteps_settings(config("topk", 0.3, True), two_workers())


@pytest.mark.parametrize(
    "changes",
    [
        {"BYTEPS_PARTITION_BYTES": "1000000"},
        {"BYTEPS_MIN_COMPRESS_BYTES": "0"},
        {"BYTEPS_SERVER_ENGINE_BLOCKING": "1"},
        {"BYTEPS_THREADPOOL_SIZE": "0"},
    ],
)
def test_variables_that_compressors_cannot_work_with(changes):
    with pytest.raises(InputError, match=next(iter(changes))):
        byteps_settings(config("topk"), two_workers(**changes))
    assert byteps_settings(config("fp16"), two_workers(**changes)) == {}


def test_one_worker_has_nothing_to_compress():
    for environ in ({}, two_workers(DMLC_NUM_WORKER="1", BYTEPS_LOCAL_SIZE="2")):
        with pytest.raises(InputError, match="--compression topk .* one worker and no server"):
            byteps_settings(config("topk"), environ)
