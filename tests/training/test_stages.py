"""Both stages in one launch, and the same steps however they are interrupted; other starts of a run."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import training.loop
import training.run
from base.errors import InputError
from comm.local import LocalCommunicator
from tests.training.staged import (
    END,
    FIRST,
    SECOND,
    arrays_of,
    manifest_of,
    metrics_of,
    parts_of,
    run,
)
from training.checkpoint import list_steps
from training.optimizer.schedule import Schedule
from training.report import RunReporter
from training.stages import data_seed


@pytest.fixture(scope="module")
def whole(corpus, tmp_path_factory) -> Path:
    """Both stages without an interruption."""
    directory = tmp_path_factory.mktemp("whole")
    assert run(directory, corpus) == 0
    return directory


@pytest.fixture(scope="module")
def first(corpus, tmp_path_factory) -> Path:
    """Stage 1 alone."""
    directory = tmp_path_factory.mktemp("first")
    assert run(directory, corpus, stages="1") == 0
    return directory


class Interrupted(BaseException):
    """The process ends here, as far as a test can have it."""


def test_steps_and_schedules_of_both(whole):
    lines = metrics_of(whole)
    training = [each for each in lines if "lr" in each]
    assert [each["step"] for each in training] == list(range(1, END + 1))
    assert [each["stage"] for each in training] == [1] * FIRST + [2] * SECOND
    schedules = Schedule(FIRST, 0.02, 1), Schedule(SECOND, 0.01, 2)
    expected = [schedules[0](step) for step in range(1, FIRST + 1)]
    expected += [schedules[1](step) for step in range(1, SECOND + 1)]
    assert [each["lr"] for each in training] == expected
    evaluations = [(each["step"], each["stage"]) for each in lines if "eval_mlm_loss" in each]
    assert evaluations == [(2, 1), (4, 1), (4, 2), (6, 2), (7, 2)]
    short, long = (each for each in lines if "eval_mlm_loss" in each and each["step"] == FIRST)
    assert short["eval_sequences"] > long["eval_sequences"], "the longer ones are fewer"


def test_manifests_know_their_stage(whole):
    facts = [manifest_of(whole, step) for step in list_steps(str(whole))]
    assert [(each["step"], each["stage"], each["begun"], each["num_steps"]) for each in facts] == [
        (2, 1, 0, FIRST),
        (4, 1, 0, FIRST),
        (6, 2, FIRST, SECOND),
        (7, 2, FIRST, SECOND),
    ]
    assert facts[1]["options"]["max_seq_length"] == 16 and facts[2]["options"]["max_seq_length"] == 32
    assert facts[2]["blocks"] == 2, "stage 2's data begin anew"


def test_stage_1_is_what_it_is_alone(whole, first):
    assert arrays_of(whole, FIRST) == arrays_of(first, FIRST)
    assert metrics_of(whole)[: len(metrics_of(first))] == metrics_of(first)


def test_stage_2_after_stage_1_alone(whole, first, corpus, tmp_path):
    """Two launches, and no --resume: nothing is written over."""
    shutil.copytree(first, tmp_path / "run")
    assert run(tmp_path / "run", corpus, stages="2") == 0
    assert arrays_of(tmp_path / "run", END) == arrays_of(whole, END)
    assert metrics_of(tmp_path / "run") == metrics_of(whole)


def stop_in(monkeypatch: Any, where: Any, name: str, at: int, before: bool) -> None:
    """Ends the run in call number `at` of a function, before or after its work."""
    calls, original = [0], getattr(where, name)

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] == at and before:
            raise Interrupted
        result = original(*args, **kwargs)
        if calls[0] == at:
            raise Interrupted
        return result

    monkeypatch.setattr(where, name, counted)


# A function, the number of the call that does not return, and whether it does its work before.
MOMENTS: dict[str, tuple[Any, str, int, bool]] = {
    "in stage 1": (training.loop.Loop, "_take", 3, True),
    "before stage 1's end is saved": (training.run, "save", 2, True),
    "after stage 1's end is saved": (training.run, "save", 2, False),
    "after stage 1's last evaluation": (RunReporter, "evaluation", 2, False),
    "after stage 1's report": (training.loop, "summarize", 1, False),
    "before stage 2's start is looked for": (training.run, "find_start", 2, True),
    "when stage 2 is open": (training.run, "open_run", 2, False),
    "after stage 2's first evaluation": (RunReporter, "evaluation", 3, False),
    "in stage 2's second step": (training.loop.Loop, "_take", FIRST + 2, True),
    "after stage 2's first checkpoint": (training.run, "save", 3, False),
    "before the very last evaluation": (training.run, "evaluate", 5, True),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_interrupted_and_resumed_it_is_the_same_run(moment, whole, corpus, tmp_path, monkeypatch):
    with monkeypatch.context() as patches:
        stop_in(patches, *MOMENTS[moment])
        with pytest.raises(Interrupted):
            run(tmp_path, corpus, resume=True)
    assert run(tmp_path, corpus, resume=True) == 0
    for step in (FIRST, END):
        assert arrays_of(tmp_path, step) == arrays_of(whole, step)
    assert metrics_of(tmp_path) == metrics_of(whole)


def test_a_finished_run_takes_no_more_steps(whole, corpus, tmp_path):
    shutil.copytree(whole, tmp_path / "run")
    assert run(tmp_path / "run", corpus, resume=True) == 0
    assert metrics_of(tmp_path / "run") == metrics_of(whole)
    assert arrays_of(tmp_path / "run", END) == arrays_of(whole, END)


def test_a_damaged_checkpoint_of_stage_2_leaves_stage_1s_end(whole, corpus, tmp_path):
    shutil.copytree(whole, tmp_path / "run")
    for step in (6, 7):
        (tmp_path / "run" / f"{step:07d}.params").write_bytes(b"short")
    assert run(tmp_path / "run", corpus, resume=True) == 0
    assert arrays_of(tmp_path / "run", END) == arrays_of(whole, END)
    assert metrics_of(tmp_path / "run") == metrics_of(whole)


@pytest.mark.parametrize("stage, moment", [(1, "before"), (1, "after"), (2, "after")])
def test_a_signal_at_the_boundary(stage, moment, whole, corpus, tmp_path, monkeypatch, capsys):
    """During the last step of stage 1 (before it is saved), after it, and while stage 2 is opened."""
    with monkeypatch.context() as patches:
        where, name = {
            (1, "before"): (training.loop.Loop, "_log"),
            (1, "after"): (training.loop, "summarize"),
            (2, "after"): (training.run, "open_run"),
        }[stage, moment]
        calls, original = [0], getattr(where, name)

        def signalled(*args: Any, **kwargs: Any) -> Any:
            calls[0] += 1
            if calls[0] == {"_log": FIRST, "summarize": 1, "open_run": 2}[name]:
                signal.raise_signal(signal.SIGTERM)
            return original(*args, **kwargs)

        patches.setattr(where, name, signalled)
        assert run(tmp_path, corpus, resume=True) == 143
    saved = list_steps(str(tmp_path))[-1]
    assert saved == (FIRST if stage == 1 else FIRST + 1)
    said = capsys.readouterr().err
    assert "stopped by a signal" in said and f"step {saved}" in said
    assert run(tmp_path, corpus, resume=True) == 0
    assert arrays_of(tmp_path, END) == arrays_of(whole, END)
    assert metrics_of(tmp_path) == metrics_of(whole)
