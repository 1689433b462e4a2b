"""Record of a launch from its files: figures, or why there are none."""

from __future__ import annotations

import hashlib
import json
import math

import numpy as np
import pytest

from comparison.launch import Launched
from comparison.report import plain
from comparison.runs.record import LOG, METRICS, PROFILED, TIMED, Record, Steps, read_run
from comparison.settings import Setting, Turn
from training.checkpoint import save

SETTING = Setting("byteps", 2, "float32", 512)
STEPS = Steps(total=40, warm_up=20, interval=10)


def line(step: int, **changes: object) -> dict:
    values = {"step": step, "time": 1000.0 + step / 10, "mlm_loss": 9.0, "nsp_loss": 0.7, "step_s": 0.1}
    values.update(tokens_per_s=900.0, padded_tokens_per_s=1000.0, sequences_per_s=30.0, skipped_steps=0)
    values.update(grad_norm=1.5, lr=0.01)
    return {**values, **changes}


def read(directory, lines, log="", kind=TIMED, steps=STEPS, saved=True, **how) -> Record:
    if lines is not None:
        text = "".join(each if isinstance(each, str) else json.dumps(each) + "\n" for each in lines)
        (directory / METRICS).write_text(text)
    (directory / LOG).write_text(log)
    if saved:
        save(str(directory), steps.total, {"weight": np.full(3, 0.5, "float32")}, {}, {})
    launched = Launched(**{"returncode": 0, "seconds": 12.0, "timed_out": False, "peak_bytes": {"worker": 5},
                           "begun": 990.0, **how})  # fmt: skip
    return read_run(Turn(SETTING, 3, kind), steps, launched, directory, ["mpirun"])


def test_a_good_launch(tmp_path):
    evaluation = {"step": 20, "eval_mlm_loss": 8.0}
    record = read(tmp_path, [line(10), line(20), evaluation, line(30), line(40, step_s=0.2)])
    assert record.failure is None and record.repeat == 3 and record.setting == SETTING
    assert [each.step for each in record.warm_up] == [10, 20]
    assert [(each.step, each.step_s) for each in record.intervals] == [(30, 0.1), (40, 0.2)]
    # The first ten steps took one second and ended at 1001.
    assert record.start_up_s == pytest.approx(10.0)
    assert record.peak_bytes == {"worker": 5} and record.seconds == 12.0
    assert record.begun == "1970-01-01T00:16:30+00:00"
    assert [(each.grad_norm, each.lr) for each in record.intervals] == [(1.5, 0.01)] * 2
    assert Record.from_json(json.loads(json.dumps(plain(record)))) == record


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([line(10), line(20, mlm_loss=None, skipped_steps=7), line(30), line(40)],
         "mlm_loss is not finite at step 20; 7 steps were skipped"),
        ([line(10), line(20), line(30), line(40, nsp_loss=None)], "nsp_loss is not finite at step 40"),
        ([line(10, mlm_loss=math.nan), line(20), line(30), line(40)], "mlm_loss is not finite at step 10"),
        ([line(10, tokens_per_s=None), line(20), line(30), line(40)],
         "tokens_per_s is not finite at step 10"),
        ([line(10), line(20)], "too short: 20 of 40 steps, 2 of 4 lines"),
        ([line(10), line(20), line(40)], "too short: 40 of 40 steps, 3 of 4 lines"),
        ([line(10), line(20), line(30), '{"step": 40, "mlm'], "too short: 30 of 40 steps, 3 of 4 lines"),
        ([], "exit code 0, but no metrics in metrics.jsonl"),
        (None, "exit code 0, but no metrics in metrics.jsonl"),
        ([line(10), line(20), line(30), line(40, step_s=0)], "step_s is 0 at step 40"),
    ],
)  # fmt: skip
def test_what_is_no_result(tmp_path, lines, reason):
    record = read(tmp_path, lines)
    assert record.failure == reason
    assert record.intervals == record.warm_up == () and record.start_up_s is None
    assert not record.out_of_memory


def test_the_checksum_is_that_of_the_saved_parameters(tmp_path):
    good = [line(step) for step in (10, 20, 30, 40)]
    record = read(tmp_path, good)
    saved = (tmp_path / "0000040.params").read_bytes()
    assert record.params_sha256 == hashlib.sha256(saved).hexdigest()
    manifest = tmp_path / "0000040.json"
    manifest.write_text(manifest.read_text().replace(record.params_sha256, "0" * 64))
    damaged = read(tmp_path, good, saved=False)
    assert damaged.failure is not None and "0000040.json is damaged" in damaged.failure
    manifest.unlink()
    missing = read(tmp_path, good, saved=False)
    assert missing.failure is not None and "0000040.json: cannot be read" in missing.failure
    assert missing.intervals == missing.warm_up == () and missing.params_sha256 is None


@pytest.mark.parametrize("changes", [{"grad_norm": None}, {"skipped_steps": 2}])
def test_skipped_steps_alone_are_no_failure(tmp_path, changes):
    """With a loss scale the first steps of a float16 run are skipped until the scale fits: without a norm."""
    assert read(tmp_path, [line(step, **changes) for step in (10, 20, 30, 40)]).failure is None


def test_single_sentences_have_no_loss_of_the_next(tmp_path):
    lines = [line(step, nsp_loss=None, nsp_acc=None) for step in (10, 20, 30, 40)]
    record = read(tmp_path, lines)
    assert record.failure is None and [each.nsp_loss for each in record.intervals] == [None, None]
    record = read(tmp_path, [*lines[:3], line(40, nsp_loss=None, nsp_acc=0.5)])
    assert record.failure == "nsp_loss is not finite at step 40"


@pytest.mark.parametrize(
    ("log", "how", "failure"),
    [
        ("error: rank 1: no\n", {"returncode": 1}, "exit code 1: rank 1: no"),  # even after the last step
        ("", {"returncode": 124, "timed_out": True},
         "no end within 12 s (--time_limit); 40 of 40 steps were reported"),
        ("std::bad_alloc\n", {"returncode": 134}, "out of memory: std::bad_alloc"),
    ],
)  # fmt: skip
def test_a_bad_end(tmp_path, log, how, failure):
    record = read(tmp_path, [line(10), line(20), line(30), line(40)], log=log, **how)
    assert record.failure == failure and record.intervals == ()
    assert record.out_of_memory == ("memory" in failure)


def test_a_missing_profile(tmp_path):
    record = read(tmp_path, [line(14)], kind=PROFILED, steps=Steps(14, 0, 14))
    assert record.failure is not None and record.failure.startswith("no profile: ")
    assert record.intervals == () and record.breakdown is None
