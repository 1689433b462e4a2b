"""--num_epochs: passes over the data as steps, counted here by the position that the feed itself reaches."""

from __future__ import annotations

import pytest

from base.errors import InputError
from data.pretraining.batches import EPOCH_SHIFT
from tests.processes import ROOT, run_ranks
from tests.training.staged import arrays_of, manifest_of, run, words
from training.checkpoint import best_step, list_steps

PASSES = {
    "num_steps": None, "num_epochs": "2,0.5", "batch_size": "64,16", "static_masks": True,
    "ckpt_interval": 1000,
}  # fmt: skip


@pytest.fixture(scope="module")
def whole(corpus, tmp_path_factory):
    """Two passes over the text in stage 1, half of one in stage 2. Static masks: every pass is the same."""
    directory = tmp_path_factory.mktemp("passes")
    assert run(directory, corpus, **PASSES) == 0
    return directory


def ends_of(directory):
    """The manifests of both stages' last steps."""
    return [facts for step in list_steps(str(directory)) if (facts := manifest_of(directory, step))["ended"]]


def test_each_stage_takes_its_passes(whole):
    first, second = ends_of(whole)
    assert first["step"] == first["num_steps"] and first["options"]["num_epochs"] == 2
    # A step is one block: the position is the beginning of the third pass.
    assert first["blocks"] == 2 << EPOCH_SHIFT
    assert second["blocks"] == second["num_steps"] == second["step"] - first["step"] > 3


def test_the_start_says_how_many_steps_they_are(whole):
    text = (whole / "run.yaml").read_text()
    assert "\nnum_epochs: [2.0, 0.5]\n" in text and "\nnum_steps: null\n" in text
    assert f"; 0.5 epochs, {ends_of(whole)[1]['num_steps']} steps, peak learning rate" in text


def test_resumed_and_made_longer(whole, corpus, tmp_path):
    steps = [each["step"] for each in ends_of(whole)]
    assert run(tmp_path, corpus, **{**PASSES, "stages": "1", "num_epochs": "1,1"}) == 0
    assert ends_of(tmp_path)[0]["step"] == steps[0] // 2
    assert run(tmp_path, corpus, **PASSES, resume=True) == 0  # stage 1 has not ended by these passes
    assert [each["step"] for each in ends_of(tmp_path)] == [steps[0] // 2, *steps]
    finished = arrays_of(tmp_path, steps[1])
    assert run(tmp_path, corpus, **PASSES, resume=True) == 0
    assert arrays_of(tmp_path, steps[1]) == finished and list_steps(str(tmp_path))[-1] == steps[1]
    with pytest.raises(InputError, match=r"--num_epochs 0.1, or \d+ steps: the checkpoint is already at"):
        run(tmp_path, corpus, **{**PASSES, "num_epochs": "2,0.1"}, resume=True)


def test_two_ranks_share_the_passes(whole, corpus, tmp_path):
    """Four blocks a step: both ranks agree on the steps, and on the best of their evaluations."""
    more = {"accumulate": 2, "keep_best": True, "attention_dropout": 0.2, "weight_decay": 0.1}
    more["eval_interval"] = 4
    options = words(tmp_path, corpus, **{**PASSES, **more})
    run_ranks(ROOT / "run_pretraining_hvd.py", 2, args=options).check()
    blocks = [each["num_steps"] for each in ends_of(whole)]
    assert [each["num_steps"] for each in ends_of(tmp_path)] == [-(-each // 4) for each in blocks]
    assert best_step(str(tmp_path)) in list_steps(str(tmp_path))
