"""A disk that becomes full under a run of two ranks: all ranks stop, and the last checkpoint is whole."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

import pytest

from tests.processes import ROOT, run_ranks
from training.checkpoint import list_steps, newest_complete


def test_all_ranks_agree_to_stop_when_the_disk_is_full(corpus, tmp_path):
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a small file system needs root")
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4M", "tmpfs", str(place)], check=True)
    try:
        words = [
            "--raw",
            "--num_steps",
            4000,
            "--ckpt_interval",
            5,
            "--log_interval",
            10,
            "--max_seq_length",
            32,
        ]
        words += ["--batch_size", 64, "--model", "bert_1_32_2", "--lr", 0.001, "--warmup_ratio", 0.1]
        words += ["--data", corpus.train, "--vocab", corpus.vocab, "--cache_dir", tmp_path / "tokens"]
        words += ["--ckpt_dir", place / "ckpt", "--peak_tflops", 1]
        script = ROOT / "run_pretraining_hvd.py"
        result = run_ranks(script, 2, "mpirun", args=[str(word) for word in words])
        assert result.returncode == 1 and not result.timed_out, result.describe()
        error = re.search(
            r"error: cannot save the checkpoint of step (\d+) .*No space left on device.*", result.stderr
        )
        assert error and result.stderr.count("Traceback") == 0, result.describe()
        steps = list_steps(str(place / "ckpt"))
        failed = int(error[1])
        assert steps and max(steps) == failed - 5 and f"of step {failed - 5} is intact" in error[0]
        newest = newest_complete(str(place / "ckpt"), lambda message: pytest.fail(message))
        assert newest is not None and newest.step == failed - 5
        assert not [name for name in os.listdir(place / "ckpt") if ".tmp-" in name]
        assert f"saved {place}/ckpt/{failed - 5:07d}.params" in result.stdout
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)
