"""Mean and spread over seeds, the best of a search, two models compared."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Mapping

import pytest

from base.errors import InputError
from base.tables import terminal
from tasks.seeds import DIFFERENT, NOT_SHOWN
from tests.training.results.made import PRETRAINED, TUNED, of_seed, seeds, written
from training.results.members import Plan, members_of, write_plan
from training.results.record import NO_MEMORY, NOT_FINITE
from training.results.summary import (
    compared,
    comparison_table,
    members_json,
    members_tables,
    read_members,
    search_notes,
)

SCORES = {0: 88.1, 1: 87.4, 2: 88.9, 3: 88.0, 4: 87.7}


def searched(folder: Path, scores: Mapping[str, Mapping[int, float]]) -> str:
    """A folder of --search lr=... with --seeds."""
    first = next(iter(scores.values()))
    members = members_of(tuple(first), [("lr", tuple(scores))], None)
    folder.mkdir(parents=True, exist_ok=True)
    write_plan(str(folder), Plan(members))
    for member in members:
        of_seed(folder, member, TUNED, scores[member.setting["lr"]][member.seed])
    return str(folder)


def moved(scores: Mapping[int, float], *by: float) -> dict[int, float]:
    return {seed: score + by[place % len(by)] for place, (seed, score) in enumerate(scores.items())}


class TestSeeds:
    def test_the_table_has_each_value(self, tmp_path):
        members = read_members(seeds(tmp_path, SCORES))
        assert members.score_names == ["f1", "exact_match"], "the one that decides comes first"
        (table,) = members_tables(members)
        shown = terminal(table)
        assert "88.02" in shown and "88.10, 87.40, 88.90, 88.00, 87.70" in shown
        assert f"{statistics.stdev(SCORES.values()):.2f}" in shown

    def test_runs_that_came_to_nothing_are_named_and_not_counted(self, tmp_path):
        folder = seeds(tmp_path, SCORES)
        written(tmp_path / "seed_3", TUNED, status=NOT_FINITE, scores={"f1": 1.0})
        (tmp_path / "seed_4" / "results.json").unlink()
        members = read_members(folder)
        assert members.settings[0].of("f1").values == (88.1, 87.4, 88.9)
        assert "Without seed_3 (not finite), seed_4 (unfinished)." in terminal(*members_tables(members))

    def test_one_seed_has_no_spread(self, tmp_path):
        members = read_members(seeds(tmp_path, {0: 0.9}, PRETRAINED))
        assert members.settings[0].of("mlm_loss").deviation is None
        assert "0.9000  –         –     1  0.9000" in terminal(*members_tables(members))

    def test_results_of_two_tasks_are_no_seeds(self, tmp_path):
        folder = seeds(tmp_path, SCORES)
        written(tmp_path / "seed_3", PRETRAINED)
        with pytest.raises(InputError, match="different tasks"):
            read_members(folder)


class TestSearch:
    def test_the_best_by_its_mean(self, tmp_path):
        better = moved(SCORES, 2.0, 2.2)
        members = read_members(searched(tmp_path, {"1": SCORES, "2": better, "3": moved(SCORES, -1, 1)}))
        assert members.best().values == {"lr": "2"}
        (table,) = members_tables(members)
        assert [row.cells[0] for row in table.rows] == ["2", "1", "3"]
        assert [row.cells[-1] for row in table.rows] == ["best", "", ""]
        notes = search_notes(members)
        assert notes[0] == "Best by its mean: --lr 2." and "chosen by luck too" in notes[-1]

    def test_less_of_a_loss_is_better(self, tmp_path):
        folder = searched(tmp_path, {"1": SCORES, "2": moved(SCORES, 2.0)})
        for path in tmp_path.glob("*/results.json"):
            path.write_text(json.dumps({**json.loads(path.read_text()), "higher_is_better": False}))
        assert read_members(folder).best().values == {"lr": "1"}

    @pytest.mark.parametrize(
        "one, other, said",
        [
            (SCORES, moved(SCORES, 0.9, -0.8), "not shown to differ from any other beyond the noise"),
            (SCORES, moved(SCORES, 3.0, 3.1), "It differs from lr 1, beyond the noise"),
            ({0: 1.0, 1: 1.1}, {0: 90.0, 1: 90.1}, "fewer than 5 seeds"),
        ],
        ids=["noise", "real", "few"],
    )
    def test_what_is_shown_by_the_choice(self, tmp_path, one, other, said):
        members = read_members(searched(tmp_path, {"1": one, "2": other}))
        assert said in " ".join(search_notes(members))

    def test_a_setting_that_lost_a_run_does_not_win(self, tmp_path):
        folder = searched(tmp_path, {"1": SCORES, "2": moved(SCORES, 3.0)})
        written(tmp_path / "lr_2-seed_1", TUNED, status=NO_MEMORY)
        members = read_members(folder)
        assert members.best().values == {"lr": "1"}
        assert "out of memory" in terminal(*members_tables(members))

    def test_nothing_has_finished(self, tmp_path):
        folder = searched(tmp_path, {"1": SCORES})
        for path in tmp_path.glob("*/results.json"):
            path.unlink()
        members = read_members(folder)
        assert members.best() is None and "No run has finished" in terminal(*members_tables(members))
        assert members_json(members)["best"] is None


class TestTwoModels:
    def test_paired_by_seed(self, tmp_path):
        """Scores that vary by points between seeds, and by little within one."""
        wide = {seed: 60 + 7.0 * seed for seed in range(5)}
        one, other = seeds(tmp_path / "a", wide), seeds(tmp_path / "b", moved(wide, 0.9, 1.0, 1.2))
        (verdict,) = compared([read_members(one), read_members(other)])
        assert verdict.verdict == DIFFERENT and verdict.test == "paired t-test"
        assert verdict.difference == pytest.approx(1.0) and verdict.high - verdict.low < 0.5
        assert read_members(one).settings[0].of("f1").half > 10, "the means' own intervals overlap"

    def test_no_difference_is_claimed_inside_the_noise(self, tmp_path):
        one, other = seeds(tmp_path / "a", SCORES), seeds(tmp_path / "b", moved(SCORES, 1.0, -0.9))
        (verdict,) = compared([read_members(one), read_members(other)])
        assert verdict.verdict == NOT_SHOWN and verdict.low < 0 < verdict.high
        table = terminal(comparison_table([read_members(one), read_members(other)]))
        shown = " ".join(table.split()).lower()  # lines are broken by the width of the columns
        assert "no difference shown" in shown and "does not say that there is none" in shown

    def test_another_score(self, tmp_path):
        folders = [seeds(tmp_path / name, SCORES) for name in "ab"]
        members = [read_members(folder) for folder in folders]
        (verdict,) = compared(members, "exact_match")
        assert verdict.difference == 0 and verdict.verdict == NOT_SHOWN
        with pytest.raises(InputError, match="no score f2 .it has f1, exact_match"):
            compared(members, "f2")

    def test_what_cannot_be_compared(self, tmp_path):
        one = read_members(seeds(tmp_path / "a", SCORES))
        with pytest.raises(InputError, match="named twice"):
            compared([one, one])
        search = read_members(searched(tmp_path / "s", {"1": SCORES}))
        with pytest.raises(InputError, match="is a search"):
            compared([one, search])
        with pytest.raises(InputError, match="has no score f1"):
            compared([one, read_members(seeds(tmp_path / "p", SCORES, PRETRAINED))])


def test_json_has_every_value(tmp_path):
    content = json.loads(json.dumps(members_json(read_members(seeds(tmp_path, SCORES)))))
    (setting,) = content["settings"]
    assert setting["scores"]["f1"]["by_seed"] == {str(seed): score for seed, score in SCORES.items()}
    assert setting["scores"]["f1"]["deviation"] == pytest.approx(statistics.stdev(SCORES.values()))
