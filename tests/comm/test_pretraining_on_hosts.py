"""The training script under mpirun on two hosts: network namespaces of this machine (tests/namespaces.py)."""

from __future__ import annotations

import json
from pathlib import Path

from tests.processes import run_ranks

SCRIPT = Path(__file__).resolve().parents[2] / "run_pretraining_hvd.py"


def test_two_hosts_train_together(two_hosts, corpus, tmp_path):
    args = ["--raw", "--data", corpus.train, "--data_eval", corpus.held_out, "--vocab", corpus.vocab]
    args += ["--model", "bert_1_32_2", "--max_seq_length", "32", "--batch_size", "256", "--use_avg_len"]
    args += ["--num_steps", "6", "--lr", "0.01", "--warmup_ratio", "0.5", "--log_interval", "3"]
    args += ["--ckpt_dir", tmp_path / "run", "--peak_tflops", "1"]
    result = run_ranks(
        SCRIPT,
        2,
        env={"OMP_NUM_THREADS": "1"},  # each "host" would take all cores of this machine
        args=args,
        launcher_args=two_hosts.mpirun_args,
        prefix=two_hosts.prefix,
    ).check()
    assert "2 processes on cpu" in result.stdout + "".join(rank.stdout for rank in result.ranks)
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [each["step"] for each in metrics] == [3, 6, 6]
    assert (tmp_path / "run" / "0000006.json").exists()
