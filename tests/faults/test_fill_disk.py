"""A run on a disk that is full at each of its first writes (tests/faults/fill_disk.py is the long form), and
one of two ranks under which it becomes full: all ranks stop, and the last checkpoint is whole."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from base.failures import memory_of
from tests.faults.disks import small_disk
from tests.faults.fill_disk import WRITERS, attack
from tests.processes import run_ranks, words_of
from training.checkpoint import list_steps, newest_complete

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")


@needs_root
def test_a_run_ends_with_one_line_and_goes_on_when_there_is_room(tmp_path):
    """Of the pages that are free there are none for run.yaml, for metrics, for events, for a checkpoint."""
    outcome = attack(tmp_path, [WRITERS[0]._replace(pages=(2, 3, 4, 24, 25))])
    assert outcome.tried == outcome.held == 8, outcome.failures


SLOWLY = """
import sys, time
import run_pretraining_hvd as script
from training import left_behind
keep = left_behind.keep_in_memory
left_behind.keep_in_memory = lambda *given: time.sleep(5) or keep(*given)  # as a large model takes
sys.exit(script.exit_code(script.main, leaves=True))
"""


@needs_root
def test_all_ranks_agree_to_stop_when_the_disk_is_full(corpus, tmp_path):
    """Rank 0 keeps the state in memory, and says why it fails; the others wait for it."""
    with small_disk(tmp_path / "disk", "4M") as place:
        words = words_of({
            "raw": True, "num_steps": 4000, "ckpt_interval": 5, "log_interval": 10, "max_seq_length": 32,
            "batch_size": 64, "model": "bert_1_32_2", "lr": 0.001, "warmup_ratio": 0.1, "data": corpus.train,
            "vocab": corpus.vocab, "cache_dir": Path(corpus.vocab).with_name("tokens"),
            "ckpt_dir": place / "ckpt", "peak_tflops": 1,
        })  # fmt: skip
        result = run_ranks(SLOWLY, 2, "mpirun", args=words)
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
        memory = memory_of(str(place / "ckpt"))
        assert max(list_steps(memory)) >= failed and "rank 0 could not save" not in result.stderr
        shutil.rmtree(memory)
