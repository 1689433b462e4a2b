"""The tables that the starting documents print, from results: values by hand, a dash for what is missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from base.errors import InputError
from base.tables import EMPTY, terminal
from tests.training.results.made import PRETRAINED, TUNED, seeds, written
from training.results.record import FINISHED, NO_MEMORY, NOT_FINITE, UNFINISHED, Result, Speed, Stage
from training.results.tables import (
    TABLES,
    Run,
    Values,
    find_runs,
    instance_table,
    parts_of,
    phase_table,
    run_table,
    scaling_table,
    strategy_table,
    tables_of,
)


def runs(*results: Result) -> list[Run]:
    return [Run(f"run{number}", result) for number, result in enumerate(results)]


def column(values: Values, name: str) -> list[Any]:
    return [row[name] for row in values.rows]


def shown(values: Values, heading: str) -> list[str]:
    table = values.table()
    place = list(table.head).index(heading)
    return [row.cells[place] for row in table.rows]


def speed(sequences: float | None, train_s: float | None = 10.0) -> Speed:
    return Speed(sequences, 1000.0, 0.5, train_s)


class TestFinding:
    def test_runs_members_and_a_folder_above_checkpoints(self, tmp_path):
        one, many = written(tmp_path / "one", PRETRAINED), seeds(tmp_path / "many", {3: 80.0, 5: 82.0})
        written(tmp_path / "made" / "ckpt", PRETRAINED)
        found = find_runs([one, many, str(tmp_path / "made"), one], partial=False)
        assert [Path(each.folder).relative_to(tmp_path).as_posix() for each in found] == [
            *("one", "many/seed_3", "many/seed_5", "made/ckpt"),
        ]
        assert found[2].result.seed == 5 and found[0].result == PRETRAINED

    def test_all_that_lack_results_are_named_in_one_line(self, tmp_path):
        many = seeds(tmp_path / "many", {3: 80.0, 5: 82.0})
        (tmp_path / "many" / "seed_5" / "results.json").unlink()
        (tmp_path / "empty").mkdir()
        folders = [many, str(tmp_path / "empty")]
        with pytest.raises(InputError, match=f"{many}/seed_5, {tmp_path}/empty:"):
            find_runs(folders, partial=False)
        found = find_runs(folders, partial=True)
        assert [each.result is None for each in found] == [False, True, True]
        assert shown(run_table(found), "status") == ["finished", EMPTY, EMPTY]

    def test_a_folder_that_is_not_there(self, tmp_path):
        with pytest.raises(InputError, match="no such folder"):
            find_runs([str(tmp_path / "nothing")], partial=True)


class TestInstances:
    def test_seeds_are_one_row_and_machines_several(self):
        other = {"cpu": "Xeon", "cores": 16, "memory_gib": 64.0}
        results = [
            replace(
                TUNED, seed=seed, options={"lr": 1, "seed": seed, "ckpt_dir": str(seed)},
                scores={"f1": score}, machine=machine, speed=speed(sequences, 100.0 + seed),
            )
            for machine, seed, score, sequences in (
                (TUNED.machine, 0, 88.0, 10.0), (TUNED.machine, 1, 89.0, 12.0),
                (TUNED.machine, 2, 90.0, 11.0), (other, 0, 87.5, 40.0),
            )
        ]  # fmt: skip
        found = instance_table(runs(PRETRAINED, *results))
        assert column(found, "runs") == [3, 1]
        assert column(found, "score")[0] == {"mean": 89.0, "sd": 1.0, "runs": 3}
        assert column(found, "sequences_per_s") == [11.0, 40.0] and column(found, "train_s") == [101.0, 100.0]
        assert shown(found, "machine") == ["Xeon, 2 cores, 16 GiB", "Xeon, 16 cores, 64 GiB"]
        assert shown(found, "mean ± sd") == ["89.00 ± 1.00", "87.50"]

    def test_other_options_are_other_rows(self):
        found = instance_table(runs(TUNED, replace(TUNED, options={"lr": 0.02, "seed": 0})))
        assert column(found, "runs") == [1, 1]

    def test_what_did_not_finish_is_counted_but_not_averaged(self):
        diverged = replace(TUNED, status=NOT_FINITE, scores={"f1": 1.0})
        found = instance_table(runs(replace(TUNED, scores={"f1": 80.0}), diverged))
        assert shown(found, "status") == ["1 finished, 1 NaN"] and shown(found, "mean ± sd") == ["80.00"]

    def test_a_gpu_that_nobody_named_is_a_dash(self):
        unnamed = replace(TUNED, device="gpu")
        found = instance_table(runs(unnamed, replace(unnamed, machine={"gpu": "8 x V100"})))
        assert shown(found, "machine") == [EMPTY, "8 x V100"]
        assert not instance_table(runs(PRETRAINED)).rows


class TestStrategies:
    def test_rows_by_exchange_processes_precision_and_columns_by_batch(self):
        found = strategy_table(
            runs(
                replace(PRETRAINED, batch_size=64, speed=speed(100.0)),
                replace(PRETRAINED, batch_size=64, speed=speed(104.0)),
                replace(PRETRAINED, batch_size=256, status=NO_MEMORY),
                replace(PRETRAINED, batch_size=64, dtype="bfloat16", status=NOT_FINITE, speed=speed(7.0)),
                replace(PRETRAINED, batch_size=256, dtype="bfloat16", speed=speed(None)),
                replace(PRETRAINED, backend="byteps", batch_size=512, status=UNFINISHED),
            )
        )
        assert [each.heading for each in found.columns.values()][-3:] == ["batch 8", "batch 32", "batch 64"]
        assert shown(found, "batch 8") == ["102", "NaN", EMPTY]
        assert shown(found, "batch 32") == ["OOM", EMPTY, EMPTY]
        assert shown(found, "batch 64") == [EMPTY, EMPTY, "unfinished"]
        assert found.rows[0]["batch_8"] == 102.0 and found.rows[0]["batch_64"] is None
        assert shown(found, "exchange") == ["horovod", "horovod", "byteps"]

    def test_other_work_is_another_row(self):
        found = strategy_table(runs(PRETRAINED, replace(PRETRAINED, max_seq_length=512)))
        assert len(found.rows) == 2
        assert not strategy_table(runs(replace(PRETRAINED, batch_size=None))).rows


class TestScaling:
    def test_speed_up_and_efficiency_against_the_smallest(self):
        found = scaling_table(
            runs(
                replace(PRETRAINED, world_size=32, hosts=4, batch_size=256, speed=speed(360.0)),
                replace(PRETRAINED, world_size=8, speed=speed(100.0)),
                replace(PRETRAINED, world_size=16, hosts=2, status=NOT_FINITE, speed=speed(150.0)),
            )
        )
        assert column(found, "world_size") == [8, 16, 32] and column(found, "hosts") == [1, 2, 4]
        assert column(found, "speed_up") == [1.0, None, 3.6]
        assert column(found, "efficiency") == [1.0, None, pytest.approx(0.9)]
        assert shown(found, "expansion") == ["100%", EMPTY, "90%"] and shown(found, "status")[1] == "NaN"

    def test_nothing_to_compare_with_is_a_dash(self):
        found = scaling_table(runs(PRETRAINED, replace(PRETRAINED, backend="byteps", hosts=None)))
        assert shown(found, "speed-up") == [EMPTY, EMPTY] and shown(found, "nodes") == ["1", EMPTY]
        assert shown(found, "epochs") == [EMPTY, EMPTY] and shown(found, "batch") == ["64", "64"]
        missing = scaling_table(runs(replace(PRETRAINED, world_size=16, speed=Speed()), PRETRAINED))
        assert shown(missing, "speed-up") == [EMPTY, EMPTY] and shown(missing, "s/step")[1] == EMPTY

    def test_stages_are_rows_of_their_own(self):
        first = Stage(1, 128, 64, 90, 90, speed(100.0, 50.0), 6.0)
        second = Stage(2, 512, 16, 10, 4, speed(20.0, 30.0), 5.0)
        both = replace(PRETRAINED, stages=(first, second), status=UNFINISHED)
        assert [each.status for each in parts_of(both)] == [FINISHED, UNFINISHED]
        found = scaling_table(runs(both))
        assert column(found, "max_seq_length") == [128, 512] and column(found, "steps") == [90, 4]
        assert column(found, "loss") == [6.0, 5.0] and column(found, "train_s") == [50.0, 30.0]


def tuned(data: str, score: float, began_with: str | None, **changes: Any) -> Result:
    return replace(TUNED, data=data, scores={"f1": score}, began_with=began_with, **changes)


class TestPhases:
    def test_one_run_of_both_stages_with_its_scores(self):
        stages = (Stage(1, speed=speed(1.0, 7200.0)), Stage(2, speed=speed(1.0, 3600.0)))
        pretrained = replace(PRETRAINED, stages=stages, parameters="aa")
        found = phase_table(
            runs(
                pretrained,
                tuned("SQuAD 1.1", 88.0, "aa"), tuned("SQuAD 1.1", 89.0, "aa", seed=1),
                tuned("SQuAD 2.0", 76.0, "aa"), tuned("SQuAD 1.1", 50.0, "bb"), tuned("MRPC", 0.875, "aa"),
            )
        )  # fmt: skip
        assert shown(found, "phase 1") == ["2 h"] and shown(found, "total") == ["3 h"]
        assert shown(found, "SQuAD 1.1 F1") == ["88.50 ± 0.71"]
        assert shown(found, "SQuAD 2.0 F1") == ["76.00"] and shown(found, "MRPC F1") == ["0.8750"]

    def test_two_runs_joined_by_their_parameters(self):
        first = replace(PRETRAINED, parameters="aa", speed=speed(1.0, 600.0))
        changes = {"parameters": "bb", "began_with": "aa", "max_seq_length": 512, "speed": speed(1.0, 60.0)}
        second = replace(PRETRAINED, **changes)
        found = phase_table(runs(second, tuned("SQuAD 2.0", 76.0, "bb"), first))
        assert shown(found, "run") == ["run2 -> run0"]
        assert shown(found, "phase 1") == ["10 min"] and shown(found, "phase 2") == ["1 min"]
        assert shown(found, "total") == ["11 min"] and shown(found, "SQuAD 2.0 F1") == ["76.00"]

    def test_what_is_missing_is_a_dash(self):
        found = phase_table(runs(PRETRAINED, replace(PRETRAINED, parameters=None, speed=speed(1.0, None))))
        assert shown(found, "phase 1") == ["1 min 4 s", EMPTY] and shown(found, "phase 2") == [EMPTY, EMPTY]
        assert shown(found, "total") == ["1 min 4 s", EMPTY]
        assert shown(found, "SQuAD 1.1 F1") == [EMPTY, EMPTY], "no parameters are nobody's beginning"
        assert not phase_table(runs(TUNED)).rows

    def test_settings_are_not_averaged(self):
        found = phase_table(
            runs(
                PRETRAINED,
                tuned("SQuAD 1.1", 88.0, "aa"),
                tuned("SQuAD 1.1", 80.0, "aa", options={"lr": 9}),
                tuned("SQuAD 2.0", 76.0, "aa", status=NOT_FINITE),
            )
        )
        assert shown(found, "SQuAD 1.1 F1") == ["88.00", "80.00"]
        assert shown(found, "SQuAD 2.0 F1") == [EMPTY, EMPTY]


def test_the_tables_of_these_runs():
    assert [each.kind for each in tables_of(runs(PRETRAINED, TUNED), None)] == list(TABLES)[1:]
    unfinished = runs(replace(TUNED, status=UNFINISHED, reason="x"))
    for given, kinds, found in (
        (unfinished, None, "runs instances strategies scaling"),
        (runs(TUNED), ["scaling", "phases", "runs"], "scaling runs"),
        ([Run("x", None)], None, "runs"),
    ):
        assert [each.kind for each in tables_of(given, kinds)] == found.split()


def test_every_table_has_a_value_or_a_dash_in_every_cell():
    """Nothing of a result that knows little raises, and None never shows."""
    bare = Result("squad", "bert", "local", 1, None, "cpu", "float32")
    for values in tables_of([*runs(bare, PRETRAINED, TUNED), Run("x", None)], None):
        assert "None" not in terminal(values.table()), values.kind
        assert all(set(row) >= set(values.columns) for row in values.rows)
