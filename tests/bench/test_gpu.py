"""bench.gpu: on the CPU it goes through its own parts; without a GPU it says so in one line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest

from bench import gpu
from bench.gpu import NOTICE, Failed, Result, Work, check, report, started, without_code
from bench.ours import Kind, Network
from bert.configuration import named_config
from bert.model import network_parameters
from tasks.pretraining.task import Pretraining
from tests.processes import ROOT, run_command

WORK = Work("cpu", 2, ["bert_1_32_2"], 2, 16, 8)


def test_without_a_gpu_one_line_and_exit_2():
    result = run_command([sys.executable, "-m", "bench.gpu"], cwd=ROOT)
    assert result.returncode == 2
    (line,) = result.stderr.strip().splitlines()
    assert "no GPU" in line and "make setup CUDA=112" in line and not result.stdout


def test_gpus_that_mxnet_has_no_code_for():
    assert not without_code([]) and not without_code([(5, 2), (6, 1), (7, 0), (7, 5), (8, 0), (8, 6), (8, 9)])
    assert without_code([(7, 0), (9, 0)]) == "GPU 1 has compute capability 9.0"
    assert "3.7" in without_code([(3, 7)]) and "12.0" in without_code([(12, 0)])


def test_the_measuring_code_runs_on_the_cpu(tmp_path):
    """The parts of one process each."""
    path = tmp_path / "gpu.json"
    command = [sys.executable, "-m", "bench.gpu", "--device", "cpu", "--json", str(path)]
    result = run_command([*command, "--parts", "precision", "memory"], cwd=ROOT)
    assert result.returncode == 0, result.stdout + result.stderr
    rows = json.loads(path.read_text("utf-8"))["results"]
    assert [row["part"] for row in rows] == ["precision", "memory"] and "allocate" in rows[1]["seen"]
    assert "this CPU: a trial" in result.stdout and NOTICE in result.stdout
    assert result.stdout.strip().endswith("passed: all 2 checks")


def test_float16_has_parameters_of_its_own():
    """Only a GPU can take a step in it; with float32's its first operator fails there."""
    kind = Kind(mx.cpu(), "float16", operators="mxnet")
    network = Network(Pretraining(), named_config("bert_1_32_2"), 100, kind).network
    assert all(np.dtype(each.dtype) == np.float16 for each in network_parameters(network).values())


def test_each_rank_of_a_backend_takes_the_rows_that_are_asked_for(monkeypatch):
    """--batch_size of the training scripts is a rank's."""
    rows = []

    def started(command, more):
        rows.append(command[command.index("--batch_size") + 1])
        folder = Path(command[command.index("--ckpt_dir") + 1])
        folder.mkdir()
        line = json.dumps({"mlm_loss": 1.0, "sequences_per_s": 1.0}) + "\n"
        (folder / "metrics.jsonl").write_text(line * WORK.steps)

    monkeypatch.setattr(gpu, "started", started)
    assert all(each.passed for each in gpu.backends(WORK)) and rows == [str(WORK.rows)] * 2


def test_a_part_that_breaks_off_has_not_passed():
    (broken,) = check(Work("nowhere", 1, WORK.models, 2, 16, 2), ["memory"])
    assert not broken.passed and broken.what == "broke off" and "exit code 1" in broken.seen
    _, verdict = report(WORK, [broken, Result("speed", "a", "b", True)])
    assert verdict == "FAILED: 1 of 2 checks"


def test_a_command_that_fails_is_quoted_by_its_last_line():
    with pytest.raises(Failed, match="exit code 3: the reason"):
        started([sys.executable, "-c", "import sys; print('the reason'); sys.exit(3)"], {})
