"""The file of results: what is written is read, what is damaged is named, whatever ends a run is recorded."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from base.errors import InputError, NotFiniteError, TrainingError
from tests.training.results.made import TUNED
from training.results.record import (
    FAILED,
    NO_MEMORY,
    NOT_FINITE,
    RESULTS_FILE,
    UNFINISHED,
    Speed,
    Stage,
    held_out_scores,
    outcome_of,
    read_result,
    recorded,
    speed_of,
    write_result,
)

RUN = replace(
    TUNED, hosts=2, versions={"mxnet": "1.9.1"}, options={"lr": 3e-5, "stages": None},
    scores={"f1": 88.5, "exact_match": 81.0}, stages=(Stage(1, steps=7), Stage(2, 512)),
)  # fmt: skip


class MXNetError(Exception):
    """Named like MXNet's."""


class TestFile:
    def test_what_is_written_is_read(self, tmp_path):
        (tmp_path / f"{RESULTS_FILE}.tmp-1-aa").write_text("of a run that was killed")
        write_result(str(tmp_path), RUN)
        assert read_result(str(tmp_path)) == RUN and RUN.score == 88.5
        assert [path.name for path in tmp_path.iterdir()] == [RESULTS_FILE]

    def test_no_number_is_null(self, tmp_path):
        write_result(str(tmp_path), replace(RUN, loss=math.nan, scores={"f1": math.inf}, wall_s=None))
        found = read_result(str(tmp_path))
        assert (found.loss, found.scores, found.wall_s) == (None, {"f1": None}, None)

    def test_what_cannot_be_written_leaves_the_file_as_it_was(self, tmp_path):
        write_result(str(tmp_path), RUN)
        for bad in ({"options": {"x": object()}}, {"status": "great"}):
            with pytest.raises(ValueError):
                write_result(str(tmp_path), replace(RUN, **bad))
        assert read_result(str(tmp_path)) == RUN
        assert [path.name for path in tmp_path.iterdir()] == [RESULTS_FILE]

    @pytest.mark.parametrize(
        "changes",
        [
            {"format": 2}, {"status": "great"}, {"model": None}, {"world_size": 0}, {"loss": "1"},
            {"scores": {"f1": "x"}}, {"speed": {"mph": 3}}, {"speed": {"step_s": True}}, {"unknown": 1},
            {"stages": [{"stage": 1}]}, {"scores": None}, {"machine": None}, {"options": None},
            {"machine": {"memory_gib": "x"}}, {"machine": {"gpu": []}}, {"data": []}, {"began_with": [1]},
            {"stages": [{"stage": 1, "speed": {}, "steps": []}]}, {"main_score": {}}, {"seed": True},
        ],
    )  # fmt: skip
    def test_a_damaged_file_is_named(self, tmp_path, changes):
        write_result(str(tmp_path), RUN)
        path = tmp_path / RESULTS_FILE
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
        with pytest.raises(InputError, match=RESULTS_FILE):
            read_result(str(tmp_path))

    def test_no_file_and_no_json(self, tmp_path):
        with pytest.raises(InputError, match="results.json: cannot be read"):
            read_result(str(tmp_path))
        for content in ("{", "[]", '{"loss": 1', "\xff"):
            (tmp_path / RESULTS_FILE).write_bytes(content.encode("latin-1"))
            with pytest.raises(InputError, match=RESULTS_FILE):
                read_result(str(tmp_path))


class TestEnds:
    @pytest.mark.parametrize(
        ("error", "status", "reason"),
        [
            (NotFiniteError("step 3: the gradients"), NOT_FINITE, "step 3: the gradients"),
            (TrainingError("the disk is full"), FAILED, "the disk is full"),
            (MemoryError(), NO_MEMORY, "MemoryError"),
            (
                MXNetError("Traceback:\n  [bt] 1\ncudaMalloc: out of memory"),
                NO_MEMORY,
                "cudaMalloc: out of memory",
            ),
            (MXNetError("Traceback:\n  File\nMXNetError: shapes"), FAILED, "MXNetError: shapes"),
            (KeyboardInterrupt(), UNFINISHED, None),
        ],
    )
    def test_an_exception_is_recorded_and_goes_on(self, tmp_path, error, status, reason):
        assert outcome_of(error) == (status, reason)
        with pytest.raises(type(error)), recorded(str(tmp_path), RUN, lambda: {"steps": 9}):
            assert read_result(str(tmp_path)).status == UNFINISHED, "what a kill would leave"
            raise error
        found = read_result(str(tmp_path))
        assert (found.status, found.reason, found.steps) == (status, reason, 9)

    def test_figures_that_cannot_be_had_hide_nothing(self, tmp_path):
        def no_memory() -> Any:
            raise MemoryError

        with pytest.raises(NotFiniteError), recorded(str(tmp_path), RUN, no_memory):
            raise NotFiniteError("at step 1")
        assert read_result(str(tmp_path)).status == NOT_FINITE


LINES = [
    {"step": 10, "lr": 1.0, "step_s": 4.0, "sequences_per_s": 1.0, "tokens_per_s": 9.0, "training_s": 40.0},
    {"step": 10, "eval_mlm_loss": 6.0, "eval_sequences": 9, "eval_s": 0.1},
    {"step": 20, "lr": 1.0, "step_s": 2.0, "sequences_per_s": 2.0, "tokens_per_s": None, "training_s": 60.0},
    {"step": 30, "lr": 1.0, "step_s": 1.0, "sequences_per_s": 4.0, "tokens_per_s": 10.0, "training_s": 70.0},
    {"step": 30, "eval_mlm_loss": 5.0, "eval_mlm_loss_se": None, "eval_sequences": 9, "eval_s": 0.1},
]


def test_speed_is_the_median_of_intervals():
    assert speed_of(LINES) == Speed(2.0, 9.5, 2.0, 70.0)
    assert speed_of([]) == Speed()


def test_scores_are_those_of_the_last_step():
    assert held_out_scores(LINES, 30) == {"mlm_loss": 5.0, "mlm_loss_se": None}
    assert held_out_scores(LINES, 20) == held_out_scores([], 0) == {}
