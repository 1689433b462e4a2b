"""Both stages in one launch on two real ranks, over Horovod and over BytePS; killed at the boundary
(all moments of one process: tests/training/test_stages.py)."""

from __future__ import annotations

import math
import os
import re
import signal
from pathlib import Path
from typing import Callable

import pytest

from tests.embedded import built_once
from tests.faults.figure import Setting
from tests.faults.jobs import Job, differences, find, json_lines, metrics
from tests.processes import LIMIT, RunResult, until
from training.checkpoint import list_steps, read_manifest

FIRST, SECOND = 6, 6  # steps of the stages
END = FIRST + SECOND
CHANGES = {"num_steps": f"{FIRST},{SECOND}", "ckpt_interval": 3}


def killed(job: Job, directory: Path, moment: Callable[[], bool]) -> RunResult:
    """A run under hosts/launch.py, whose rank 1 is killed at a moment."""
    again = ["--max_restarts", 3, "--backoff", "0.1"]
    with job.start(job.words(directory, resume=None, **CHANGES), launcher_args=again) as run:
        pid = find(run, job.setting.launcher, 1)  # now: to look for it takes longer than some steps
        until(moment, run, pause=0.0005)
        os.kill(pid, signal.SIGKILL)
        return run.wait().check()


def check_restart(result: RunResult, directory: Path, step: int) -> None:
    """One restart was made and noted; it went on after `step`, or a later checkpoint that a busy machine made
    before the kill; no half file was left."""
    (record,) = json_lines(directory / "restarts.jsonl")
    step = max(step, record["step"])
    assert (record["failed"], record["code"], record["step"]) == ("rank 1", 137, step), record
    assert record["hosts"] == ["localhost"] and record["reason"] == "failure" and record["lost_s"] < LIMIT
    assert f"launch: restart 1 at {record['time']}" in result.stderr, result.describe()
    # A run that was evaluated at the end of stage 1, too, before the kill goes on in stage 2.
    assert re.search(rf"(continuing|stage 2 begins) after step {step}\b", result.stdout), result.describe()
    assert not list(directory.glob("*.tmp-*"))


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("shared")
    (folder / "embedded").symlink_to(built_once(tmp_path_factory, vocab_size=1024))
    return folder


@pytest.fixture(scope="module")
def horovod(shared) -> Job:
    return Job(Setting("hvd_mpi", 0, shared, shared))


@pytest.fixture(scope="module")
def whole(horovod, tmp_path_factory) -> Path:
    """An uninterrupted launch of two Horovod processes."""
    directory = tmp_path_factory.mktemp("whole")
    result = horovod.start(horovod.words(directory, **CHANGES), launcher="mpirun").finish()
    assert result.ranks[1].stdout == "" and result.ranks[1].stderr == ""
    said = result.ranks[0].stdout
    assert f"stage 2 begins after step {FIRST}" in said
    assert "stage 1, step 6/6" in said and f"stage 2, step 7/{END}" in said
    assert "Stage 2 brought mlm_loss on held-out text of 64 tokens from " in said
    return directory


def test_two_stages_on_two_ranks(whole):
    manifests = [read_manifest(str(whole), step) for step in list_steps(str(whole))]
    assert [(each["step"], each["stage"], each["world_size"]) for each in manifests] == [
        (3, 1, 2),
        (6, 1, 2),
        (9, 2, 2),
        (12, 2, 2),
    ]
    assert manifests[2]["blocks"] == 3 * 2, "stage 2's data begin anew, for both ranks"
    lines = metrics(whole)
    assert [each["step"] for each in lines if "lr" in each] == list(range(1, END + 1))
    assert all(math.isfinite(each["mlm_loss"]) for each in lines if "lr" in each)


def test_a_rank_is_killed_and_the_launcher_starts_the_run_again(horovod, whole, tmp_path):
    """The evaluation of stage 2 before its first step, on two Horovod processes: the end has the bits of the
    undisturbed run."""

    def evaluated() -> bool:
        return any(each["stage"] == 2 and "eval_mlm_loss" in each for each in metrics(tmp_path))

    result = killed(horovod, tmp_path, evaluated)
    assert differences(tmp_path, whole) == ""
    check_restart(result, tmp_path, FIRST)


def test_over_byteps_it_is_the_same_training(shared, whole, tmp_path):
    """Names are declared in stage 1, and serve the arrays of stage 2; two ranks' sums have the same bits. A
    worker is killed in stage 2, and the launcher starts the run again."""
    job = Job(Setting("byteps", 0, shared, shared))
    result = killed(job, tmp_path, (tmp_path / f"{FIRST + 3:07d}.json").exists)
    check_restart(result, tmp_path, FIRST + 3)
    assert differences(tmp_path, whole) == ""
