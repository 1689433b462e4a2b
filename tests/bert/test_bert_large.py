"""Steps of BERT-large's width and of its number of layers through the training script. With both a step needs
9 GiB and a minute; test_model.py has names and shapes of all parameters, test_memory.py their number, and
tests/training/test_checkpoint.py writes as many bytes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from tests.processes import run_ranks

SCRIPT = Path(__file__).resolve().parents[2] / "run_pretraining_hvd.py"


@pytest.mark.parametrize(
    "model, millions", [("bert_2_1024_16", "59."), ("bert_24_64_1", "3.")], ids=["width", "layers"]
)
def test_a_step(model, millions, tmp_path):
    """And its checkpoint: 12 bytes of each parameter."""
    args = ["--model", model, "--dummy_data_len", "32", "--batch_size", "2", "--num_steps", "1"]
    args += ["--log_interval", "1", "--peak_tflops", "1", "--ckpt_dir", tmp_path]
    result = run_ranks(SCRIPT, 1, "none", args=args).check()
    assert f"{model}, {millions}" in result.stdout
    (metrics,) = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert metrics["mlm_loss"] == pytest.approx(math.log(30522), abs=0.5)
    assert np.isfinite(metrics["grad_norm"]) and metrics["grad_norm"] > 0
    assert sum(path.stat().st_size for path in tmp_path.glob("0000001.*")) > 12e6 * float(millions)
