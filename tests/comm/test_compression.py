"""Compressed averages on real ranks (the checks are in compression_worker.py), and their options."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from bert.communication_options import add_communication_options, check_compression
from comm.compression import byteps_settings, horovod_settings, with_compression
from comm.local import LocalCommunicator
from comm.pieces import PIECE_BYTES, cut
from data.errors import InputError
from tests.processes import run_ranks

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
HALF = ["half", *HALF_CONTRACT, "sums_arrive_as_they_are", "traffic"]
PIECES = ["zeros", "not_finite", "sums_arrive_as_they_are", "broadcast_of_much", "traffic"]
PIECES += ["average_nothing", "average_of_nan_and_inf", "broadcast_many", "all_agree", "refusals"]
# What earlier averages left would come out in these, which are therefore first.
KEPT = ["zeros", "nothing_is_lost", *PIECES[1:], "float16_is_refused"]
# name: (backend, launcher, ranks, ranks of a worker, compression, k, error feedback, checks)
RUNS = {
    "fp16-mpi-2": ("horovod", "mpirun", 2, 1, "fp16", None, False, HALF),
    "fp16-byteps": ("byteps", "byteps", 2, 1, "fp16", None, False, HALF),
    "none-byteps": ("byteps", "byteps", 2, 1, "none", None, False, ["traffic"]),
    "onebit": ("byteps", "byteps", 2, 1, "onebit", None, False, [*PIECES, "onebit", "nothing_is_lost"]),
    "topk": ("byteps", "byteps", 2, 1, "topk", 0.01, False, [*PIECES, "topk", "nothing_is_lost"]),
    "randomk": ("byteps", "byteps", 2, 1, "randomk", 0.01, False, ["randomk", *PIECES, "nothing_is_lost"]),
    "dithering": ("byteps", "byteps", 2, 1, "dithering", 127, False, [*PIECES, "dithering"]),
    "topk-kept": ("byteps", "byteps", 2, 1, "topk", 0.1, True, KEPT),
    "randomk-kept": ("byteps", "byteps", 2, 1, "randomk", 0.4, True, KEPT),
    "topk-kept-local": ("byteps", "byteps", 4, 2, "topk", 0.1, True, ["nothing_is_lost"]),
}
# A round's bytes as a share of those without compression, at most.
TRAFFIC = {"fp16-byteps": 0.51, "onebit": 1 / 28, "topk": 1 / 40, "randomk": 1 / 40, "dithering": 0.3}


@pytest.fixture(scope="module")
def own_network():
    """Words that start a command in a network of its own; empty where that is not possible."""
    if os.geteuid() != 0 or not shutil.which("unshare") or not shutil.which("ip"):
        return []
    tried = subprocess.run([*ALONE, "true"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=20)
    return ALONE if tried.returncode == 0 else []


@pytest.fixture(scope="module")
def launch(tmp_path_factory, own_network):
    """Function of a run's name: {check: [record of rank 0, ...]}. Each run is launched once."""
    launched: dict[str, dict[str, list[dict]]] = {}

    def get(name):
        if name not in launched:
            launched[name] = {}  # a launch that fails is not tried again for every check
            launched[name] = start(name, tmp_path_factory.mktemp("compression"), own_network)
        return launched[name]

    return get


def start(name, directory, own_network):
    backend, launcher, size, local, compression, k, feedback, checks = RUNS[name]
    given = {"compression": compression, "compression_k": k, "error_feedback": feedback}
    working = directory / "working"
    working.mkdir()
    result = run_ranks(
        WORKER,
        size,
        launcher,
        timeout=200,
        env={"OMP_NUM_THREADS": "1"},
        args=[backend, directory, json.dumps(given), *checks],
        cwd=working,
        prefix=own_network,
        **({"local_ranks": local} if launcher == "byteps" else {}),
    )
    result.check()
    assert list(working.iterdir()) == []  # no lr.s, and nothing else
    records: dict[str, list[dict]] = {}
    for rank in range(size):
        for line in (directory / f"{rank}.jsonl").read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            records.setdefault(record["check"], []).append(record)
    assert set(records) == set(checks)
    return records


@pytest.mark.parametrize(
    ("name", "check"),
    [(name, check) for name, run in RUNS.items() for check in run[-1] if check != "traffic"],
)
def test_on_ranks(launch, name, check):
    ranks = launch(name)[check]
    assert len(ranks) == RUNS[name][2]
    for rank, record in enumerate(ranks):
        assert record["error"] is None, f"rank {rank}: {record['error']}"
    assert len({record.get("digest") for record in ranks}) == 1  # bit-identical


@pytest.mark.parametrize("name", TRAFFIC)
def test_fewer_bytes_travel(launch, own_network, name):
    if not own_network:
        pytest.skip("bytes can be counted in a network namespace only, which needs root and iproute2")
    full = launch("none-byteps")["traffic"][0]
    # Two workers push to one server and pull from it.
    assert 4 * full["full"] < full["bytes"] < 4.2 * full["full"]
    assert launch(name)["traffic"][0]["bytes"] < TRAFFIC[name] * full["bytes"]


def options(compression="none", k=None, feedback=False):
    """As the command line gives them."""
    parser = argparse.ArgumentParser()
    add_communication_options(parser.add_argument, float)
    words = ["--compression", compression, *(["--compression_k", str(k)] if k is not None else [])]
    return parser.parse_args([*words, *(["--error_feedback"] if feedback else [])])


def checked(*given):
    result = options(*given)
    check_compression(result)
    return result


def two_workers(**more):
    environ = {"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "2", "DMLC_WORKER_ID": "0", "DMLC_NUM_SERVER": "1"}
    environ.update(BYTEPS_LOCAL_RANK="0", BYTEPS_LOCAL_SIZE="1", DMLC_PS_ROOT_URI="127.0.0.1")
    return {**environ, "DMLC_PS_ROOT_PORT": "9000", **more}


@pytest.mark.parametrize(
    ("compression", "k", "feedback", "message"),
    [
        (
            "none",
            0.1,
            False,
            "--compression_k is for --compression topk, randomk and dithering, not for none",
        ),
        ("onebit", 0.1, False, "--compression_k is for"),
        ("dithering", 1.5, False, "--compression_k 1.5: dithering takes a whole number of levels"),
        ("dithering", 40000, False, "--compression_k 40000"),
        ("topk", 2, False, "--compression_k 2: topk takes the share of the values to send"),
        ("randomk", 1e-5, False, "--compression_k 1e-05"),
        ("none", None, True, "--error_feedback is for --compression topk and randomk, not for none"),
        ("onebit", None, True, "its servers compress again"),
        ("dithering", None, True, "--error_feedback is for"),
    ],
)
def test_impossible_options(compression, k, feedback, message):
    with pytest.raises(InputError, match="^--") as caught:
        check_compression(options(compression, k, feedback))
    assert message in str(caught.value)


@pytest.mark.parametrize("compression", ["none", "fp16", "onebit", "topk", "randomk", "dithering"])
def test_possible_options(compression):
    assert with_compression(LocalCommunicator(), checked(compression)).size == 1
    if compression in ("none", "fp16"):
        assert horovod_settings(checked(compression)) == {}
        assert byteps_settings(checked(compression), two_workers()) == {}
    else:
        with pytest.raises(InputError, match=f"--compression {compression} is BytePS's"):
            horovod_settings(checked(compression))
        settings = byteps_settings(checked(compression), two_workers())
        assert settings["compressor"]["compressor_type"] == compression
        assert settings["bucket_bytes"] == PIECE_BYTES


def test_size_of_buckets():
    given = argparse.Namespace(**{**vars(checked()), "bucket_mb": 0.5})
    assert byteps_settings(given, two_workers()) == {"bucket_bytes": 2**19}
    with pytest.raises(InputError, match="--bucket_mb is for BytePS; .* HOROVOD_FUSION_THRESHOLD"):
        horovod_settings(given)
    with pytest.raises(InputError, match="--bucket_mb: --compression topk"):
        check_compression(argparse.Namespace(**{**vars(options("topk")), "bucket_mb": 0.5}))


def test_share_of_all_ranks():
    """With error feedback BytePS lets pass what both ranks select, without it what one does."""
    kept = byteps_settings(checked("topk", 0.1, True), two_workers())["compressor"]["compressor_k"]
    assert 0.2 < float(kept) < 0.2001
    assert byteps_settings(checked("topk", 0.1), two_workers())["compressor"]["compressor_k"] == "0.1"
    with pytest.raises(
        InputError, match="--compression_k 0.3: topk with --error_feedback and 2 ranks .* 0.2;"
    ):
        byteps_settings(checked("topk", 0.3, True), two_workers())


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
        byteps_settings(checked("topk"), two_workers(**changes))
    assert byteps_settings(checked("fp16"), two_workers(**changes)) == {}


def test_one_worker_has_nothing_to_compress():
    environ = {"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "1", "DMLC_WORKER_ID": "0"}
    environ.update(BYTEPS_LOCAL_RANK="0", BYTEPS_LOCAL_SIZE="2")
    with pytest.raises(InputError, match="--compression topk .* one worker and no server"):
        byteps_settings(checked("topk"), environ)


def test_pieces():
    sizes, overlaps = cut([5, 1, 9, 3], 8)
    assert sizes == [8, 8, 2]
    covered = [
        (array, start + i, 8 * piece + offset + i)
        for array, start, piece, offset, length in overlaps
        for i in range(length)
    ]
    expected = [(array, i) for array, size in enumerate([5, 1, 9, 3]) for i in range(size)]
    assert covered == [(array, i, position) for position, (array, i) in enumerate(expected)]
