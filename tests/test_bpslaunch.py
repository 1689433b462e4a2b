"""`bpslaunch python run_pretraining_byteps.py …`: BytePS's own launcher, which starts one process each."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from pathlib import Path

import pytest

from tests.processes import ROOT, start_command

BIN = Path(sys.executable).parent
TRAINING = [
    *("--dummy_data_len", "32", "--model", "bert_1_32_2", "--batch_size", "4", "--num_steps", "6"),
    *("--log_interval", "3", "--ckpt_interval", "6", "--ckpt_dir", "ckpt"),
]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def traces():
    """What BytePS may leave on a machine."""
    places = [("/tmp", "socket_"), ("/dev/shm", "BytePS_")]
    return {
        f"{place}/{name}" for place, start in places for name in os.listdir(place) if name.startswith(start)
    }


def bpslaunch(environment, *words, cwd):
    own = {name: None for name in os.environ if name.startswith(("DMLC_", "BYTEPS_", "NVIDIA_"))}
    # bpslaunch starts servers with the first python3 on PATH, and ranks through a shell. It would bind them
    # to parts of a machine bigger than this may be.
    own.update(PATH=f"{BIN}{os.pathsep}{os.environ['PATH']}", BYTEPS_NUMA_ON="0", **environment)
    return start_command([sys.executable, BIN / "bpslaunch", *words], timeout=120, env=own, cwd=cwd, grace=20)


@pytest.mark.parametrize(("workers", "local_ranks"), [(1, 2), (2, 1)])
def test_training(workers, local_ranks, tmp_path):
    """The two ways in which ranks can be several; both at once in test_contract.py and tests/native."""
    before = traces()
    variables = {"DMLC_NUM_WORKER": str(workers), "OMP_NUM_THREADS": "1"}
    if workers > 1:
        variables.update(
            DMLC_NUM_SERVER="1", DMLC_PS_ROOT_URI="127.0.0.1", DMLC_PS_ROOT_PORT=str(free_port())
        )
        variables["DMLC_NODE_HOST"] = "127.0.0.1"
    if local_ranks > 1:
        variables["NVIDIA_VISIBLE_DEVICES"] = ",".join(map(str, range(local_ranks)))
    script = ["python", str(ROOT / "run_pretraining_byteps.py"), *TRAINING]
    with contextlib.ExitStack() as stack:
        others = [
            stack.enter_context(bpslaunch({**variables, "DMLC_ROLE": role}, cwd=tmp_path))
            for role in (["scheduler", "server"] if workers > 1 else [])
        ]
        ranks = [
            stack.enter_context(
                bpslaunch(
                    {**variables, "DMLC_ROLE": "worker", "DMLC_WORKER_ID": str(worker)}, *script, cwd=tmp_path
                )
            )
            for worker in range(workers)
        ]
        results = [run.wait().check() for run in [*ranks, *others]]
    size = workers * local_ranks
    assert f"{size} processes on cpu" in results[0].stdout
    assert "saved ckpt/0000006.params" in results[0].stdout
    assert os.listdir(tmp_path) == ["ckpt"], "a file was written outside ckpt_dir"
    assert traces() == before


def test_a_missing_variable_is_one_line(tmp_path):
    variables = {"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "2", "DMLC_WORKER_ID": "0", "DMLC_NUM_SERVER": "1"}
    variables.update(DMLC_PS_ROOT_URI="127.0.0.1", DMLC_PS_ROOT_PORT="http")
    script = ["python", str(ROOT / "run_pretraining_byteps.py"), *TRAINING]
    with bpslaunch(variables, *script, cwd=tmp_path) as run:
        result = run.wait()
    assert result.returncode != 0
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert errors == ["error: DMLC_PS_ROOT_PORT=http: it must be a whole number, 1 or more"]
