"""BERT-large through the training script: a step, and a checkpoint of more than 4 GB.

It needs 9 GiB, and waits for memory and the disk most of the time: in this folder it runs while two other
processes test (tests/parts.py), none of which needs much of either.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from base.memory import available_bytes
from tests.processes import run_ranks, until

SCRIPT = Path(__file__).resolve().parents[2] / "run_pretraining_hvd.py"


@pytest.mark.slow
def test_bert_large_takes_a_step(tmp_path):
    until(lambda: available_bytes() > 10 << 30)  # another suite on this machine may have it for the same test
    args = ["--model", "bert_24_1024_16", "--dummy_data_len", "32", "--batch_size", "2", "--num_steps", "1"]
    args += ["--log_interval", "1", "--peak_tflops", "1", "--ckpt_dir", tmp_path]
    result = run_ranks(SCRIPT, 1, "none", timeout=900, args=args).check()
    assert "bert_24_1024_16, 336." in result.stdout or "bert_24_1024_16, 335." in result.stdout
    (metrics,) = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert metrics["mlm_loss"] == pytest.approx(math.log(30522), abs=0.5)
    assert np.isfinite(metrics["grad_norm"]) and metrics["grad_norm"] > 0
    assert sum(path.stat().st_size for path in tmp_path.glob("0000001.*")) > 4e9
    shutil.rmtree(tmp_path)
