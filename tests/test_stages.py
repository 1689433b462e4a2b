"""Both stages in one launch on two real ranks, over Horovod and over BytePS; killed at the boundary."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.embedded import built_once
from tests.killing import END, FIRST, Job, job, kill_and_resume, metrics
from training.checkpoint import list_steps, read_manifest


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    return built_once(tmp_path_factory, vocab_size=1024)


@pytest.fixture(scope="module")
def horovod(text) -> Job:
    return job("hvd", 2, text)


@pytest.fixture(scope="module")
def whole(horovod, tmp_path_factory) -> Path:
    """An uninterrupted launch of two Horovod processes."""
    directory = tmp_path_factory.mktemp("whole")
    with horovod.start(directory) as run:
        result = run.wait().check()
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


@pytest.mark.parametrize("moment", ["its end is saved", "stage 2 is evaluated before its first step"])
def test_killed_at_the_boundary_and_resumed(moment, horovod, whole, tmp_path):
    outcome = kill_and_resume(horovod, tmp_path, moment, whole)
    assert outcome.newest == FIRST and outcome.differences == []


def test_over_byteps_it_is_the_same_training(text, whole, tmp_path):
    """Names are declared in stage 1, and serve the arrays of stage 2; two ranks' sums have the same bits."""
    with job("byteps", 2, text).start(tmp_path) as run:
        run.wait().check()
    of_horovod = [each for each in metrics(whole) if "lr" in each]
    of_byteps = [each for each in metrics(tmp_path) if "lr" in each]
    assert [each["stage"] for each in of_byteps] == [each["stage"] for each in of_horovod]
    for found, expected in zip(of_byteps, of_horovod):
        assert found["mlm_loss"] == pytest.approx(expected["mlm_loss"], rel=1e-5)
        assert found["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-3)
