"""--keep_best and --eval_interval: real runs whose loss falls and rises again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import training.last_good
import training.loop
import training.run
import training.saving
from base.errors import InputError, TrainingError
from tests.faults.jobs import metrics
from tests.training.staged import arrays_of, parts_of, run
from tests.training.test_stages import Interrupted, stop_in
from training.checkpoint import BEST_FILE, Kept, best_step, list_steps
from training.report import Reporter
from training.saving import Saver
from training.start.initial import find_weights

LOSS = "eval_mlm_loss"
STEPS, EVERY = 11, 5
# The rate rises to the end, where it is too high.
WORSE: dict[str, Any] = {
    "stages": None, "max_seq_length": 16, "batch_size": 4, "num_steps": STEPS, "lr": 0.314, "warmup_ratio": 1,
    "optimizer": "adamw", "ckpt_interval": EVERY, "eval_interval": 1, "keep_best": True,
    "keep_checkpoints": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def whole(corpus, tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("whole")
    assert run(directory, corpus, **WORSE) == 0
    return directory


def best_of(directory: Path) -> dict[str, Any]:
    return json.loads((directory / BEST_FILE).read_text())


def losses_of(directory: Path) -> dict[int, float]:
    return {each["step"]: each[LOSS] for each in metrics(directory) if LOSS in each}


def test_the_best_evaluation_is_kept_beside_the_newest_checkpoint(whole):
    losses = losses_of(whole)
    assert list(losses) == list(range(1, STEPS + 1)), "evaluated at every step"
    least = min(losses, key=losses.__getitem__)
    assert 1 < least < STEPS and least % EVERY, "neither the newest nor one that is saved anyway"
    assert best_of(whole) == {"step": least, "figure": LOSS, "value": losses[least]}
    assert list_steps(str(whole)) == [least, STEPS]


def test_it_has_the_parameters_of_its_step(whole, corpus, tmp_path):
    """Compared with a run that saves every step, and evaluates at none."""
    plain = {"ckpt_interval": 1, "eval_interval": None, "keep_best": None, "keep_checkpoints": 0}
    assert run(tmp_path, corpus, **{**WORSE, **plain, "data_eval": None}) == 0
    least = best_of(whole)["step"]
    assert arrays_of(whole, least) == arrays_of(tmp_path, least)
    assert arrays_of(whole, STEPS) == arrays_of(tmp_path, STEPS)
    assert not (tmp_path / BEST_FILE).exists()


@pytest.mark.parametrize(
    "moment",
    [
        (training.saving, "save", 1, True),
        (training.saving, "save", 3, True),
        (training.last_good, "replacing", 1, True),
        (training.last_good, "replacing", 2, True),
        (training.run, "evaluate", EVERY, True),
        (training.loop.Loop, "_take", 9, True),
        (training.run, "evaluate", STEPS, True),
    ],
    ids=lambda moment: f"{moment[1]}-{moment[2]}-{moment[3]}",
)
def test_interrupted_and_resumed_it_keeps_the_same(moment, whole, corpus, tmp_path, monkeypatch):
    with monkeypatch.context() as patches:
        stop_in(patches, *moment)
        with pytest.raises(Interrupted):
            run(tmp_path, corpus, **WORSE, resume=True)
    assert run(tmp_path, corpus, **WORSE, resume=True) == 0
    assert best_of(tmp_path) == best_of(whole)
    assert list_steps(str(tmp_path)) == list_steps(str(whole))
    for step in list_steps(str(whole)):
        assert arrays_of(tmp_path, step) == arrays_of(whole, step)
    assert metrics(tmp_path) == metrics(whole)


def test_steps_that_are_taken_once_more_decide_anew(whole, corpus, tmp_path):
    """--start_step before the best: what came after it is not of this run any more."""
    longer = {**WORSE, "keep_checkpoints": 0}
    assert run(tmp_path, corpus, **longer) == 0
    assert best_of(tmp_path) == best_of(whole)
    gentle = {**longer, "lr": 1e-6, "start_step": 1}
    assert 1 in list_steps(str(tmp_path)), "the first evaluation is the best so far, too"
    assert run(tmp_path, corpus, **gentle) == 0
    losses = losses_of(tmp_path)
    least = min(losses, key=losses.__getitem__)
    assert best_of(tmp_path)["value"] == losses[least] > best_of(whole)["value"]
    assert best_of(tmp_path)["step"] == least


def test_each_stage_has_its_own(corpus, tmp_path):
    changes = {"keep_best": True, "keep_checkpoints": 1, "eval_interval": "1,2"}
    assert run(tmp_path, corpus, **changes) == 0
    lines = [each for each in metrics(tmp_path) if LOSS in each]
    assert [(each["stage"], each["step"]) for each in lines] == [
        *((1, step) for step in (1, 2, 3, 4)),
        *((2, step) for step in (4, 6, 7)),
    ]
    least = min((each for each in lines if each["stage"] == 2), key=lambda each: each[LOSS])
    assert best_of(tmp_path) == {"step": least["step"], "figure": LOSS, "value": least[LOSS], "stage": 2}
    assert list_steps(str(tmp_path)) == sorted({4, 7, least["step"]} | ({6} if least["step"] == 7 else set()))


def test_parameters_of_another_run_are_not_the_best(corpus, whole, tmp_path):
    """Stage 2 alone evaluates before its first step, when it has no checkpoint yet."""
    changes = {"stages": "2", "init_from": f"{whole}:best", "max_seq_length": 32, "num_steps": 2}
    changes.update(batch_size=2, lr=0.5, warmup_ratio=0, keep_best=True)
    assert run(tmp_path, corpus, **changes) == 0
    losses = losses_of(tmp_path)
    assert min(losses, key=losses.__getitem__) == 0, "no step was better"
    assert best_of(tmp_path)["step"] == 2 and list_steps(str(tmp_path)) == [2]


def test_best_in_place_of_a_step(whole, corpus, tmp_path):
    step = best_of(whole)["step"]
    assert find_weights(f"{whole}:best", "--init_from").source == f"{whole}/{step:07d}.params"
    (part,) = parts_of(tmp_path / "a", corpus, init_from=f"{whole}:best", stages="1")
    assert part.inputs.start.source == f"{whole}/{step:07d}.params"
    with pytest.raises(InputError, match="no best.json there, which a run with --keep_best has"):
        find_weights(f"{tmp_path}:best", "--init_from")
    for content in ("{", "[]", '{"step": -1}', '{"step": true}', "{}"):
        (tmp_path / BEST_FILE).write_text(content)
        with pytest.raises(InputError, match=f"{tmp_path}/{BEST_FILE}"):
            best_step(str(tmp_path))


def test_a_disk_that_does_not_take_the_record_ends_the_run(tmp_path):
    def fails() -> None:
        raise OSError(28, "No space left on device", "best.json")

    saver = Saver(str(tmp_path), Kept(1), Reporter())
    saver.afterwards(fails)
    assert not saver.sound()
    with pytest.raises(TrainingError, match=r"best.json cannot be written: No space left"):
        saver.take([saver.sound(), saver.finite])
