"""Real runs' results.json, compared with metrics.jsonl and the checkpoints beside it."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import results
from base.errors import InputError, NotFiniteError
from base.files import sha256_of
from tests.training import small_runs
from tests.training.small_runs import Stopping
from tests.training.test_checkpoint_facts import signed
from training.checkpoint import list_steps, params_path, read_manifest
from training.report import read_metrics
from training.results.record import FINISHED, NOT_FINITE, UNFINISHED, Result, has_result, read_result


def trained(folder: Path, *words: str, communicator: Any = None) -> int:
    steps = ("--num_steps", 6, "--log_interval", 2, "--ckpt_interval", 3)
    return small_runs.trained(folder, *steps, *words, communicator=communicator)


BOTH = ["--stages", "both", "--max_seq_length", "8,16", "--dummy_data_len", "8,16", "--num_steps", "6,3"]


@pytest.fixture(scope="module")
def both(tmp_path_factory) -> Path:
    """A run of both stages."""
    folder = tmp_path_factory.mktemp("both")
    assert trained(folder, *BOTH) == 0
    return folder


@pytest.fixture(scope="module")
def diverged(tmp_path_factory) -> Path:
    """A run whose gradients stay non-finite."""
    folder = tmp_path_factory.mktemp("diverged")
    with pytest.raises(NotFiniteError):
        trained(folder, "--lr", "1e38", "--num_steps", "30", "--clip_norm", "0", "--ckpt_interval", "30")
    return folder


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory) -> tuple[Path, Result]:
    """A run that a signal has stopped after step 4, its results then, and the run resumed to its end."""
    folder = tmp_path_factory.mktemp("interrupted")
    assert trained(folder, communicator=Stopping(3, True)) == 143
    before = read_result(str(folder))
    assert trained(folder, "--resume") == 0
    return folder, before


class TestBothStages:
    def test_figures_are_those_of_the_metrics(self, both):
        found, lines = read_result(str(both)), read_metrics(str(both))
        assert (found.status, found.reason, found.steps) == (FINISHED, None, 9)
        for stage, number in zip(found.stages, (1, 2)):
            of_stage = [line for line in lines if line.get("stage") == number and "lr" in line]
            assert stage.stage == number and stage.loss == of_stage[-1]["mlm_loss"]
            assert stage.speed.step_s == statistics.median(line["step_s"] for line in of_stage)
            assert stage.speed.train_s == of_stage[-1]["training_s"]
        plans = [(each.steps, each.num_steps, each.max_seq_length) for each in found.stages]
        assert plans == [(6, 6, 8), (3, 3, 16)] and found.batch_size == found.stages[0].batch_size == 2
        seconds = sum(each.speed.train_s for each in found.stages)
        assert found.speed == replace(found.stages[1].speed, train_s=seconds)
        assert found.wall_s > found.speed.train_s and found.loss == found.stages[1].loss

    def test_setting(self, both):
        found = read_result(str(both))
        assert found.model == "bert_1_16_2 (feed-forward layers of 32 units, 16 positions)"
        assert (found.task, found.backend, found.device) == ("pretraining", "local", "cpu")
        assert (found.world_size, found.hosts, found.dtype, found.seed) == (1, 1, "float32", 0)
        assert found.options["num_steps"] == [6, 3] and found.options["lr"] == 0.01
        assert found.versions["mxnet"] and found.machine["cores"] >= 1 and found.machine["cpu"]

    def test_the_parameters_are_those_of_the_last_checkpoint(self, both):
        assert list_steps(str(both))[-1] == 9
        assert read_result(str(both)).parameters == sha256_of(params_path(str(both), 9))

    def test_a_run_that_begins_with_them_is_joined_by_them(self, both, tmp_path, capsys):
        assert trained(tmp_path / "next", "--init_from", str(both)) == 0
        found = read_result(str(tmp_path / "next"))
        assert found.began_with == read_result(str(both)).parameters
        assert found.init_from == str(both) and found.steps == 6
        capsys.readouterr()
        assert results.main(["--json", "--table", "phases", str(both), str(tmp_path / "next")]) == 0
        (row,) = json.loads(capsys.readouterr().out)["tables"]["phases"]["rows"]
        assert row["run"] == f"{both} -> {tmp_path / 'next'}"

    def test_a_call_after_the_end_changes_nothing(self, both):
        before = read_result(str(both))
        assert trained(both, *BOTH, "--resume") == 0
        assert read_result(str(both)) == before


class TestEnds:
    def test_not_finite(self, diverged):
        found = read_result(str(diverged))
        assert found.status == NOT_FINITE and "not finite for the 20th time" in found.reason
        assert found.speed.step_s > 0 and found.parameters is None

    def test_stopped_by_a_signal_and_resumed(self, interrupted):
        folder, before = interrupted
        assert (before.status, before.steps) == (UNFINISHED, 4)
        assert before.parameters == read_manifest(str(folder), 4)["files"][".params"]["sha256"]
        after = read_result(str(folder))
        manifest = read_manifest(str(folder), 6)
        assert (after.status, after.steps) == (FINISHED, 6)
        # Two readings of one clock; counted from the resumption only, or twice, it would be off by half.
        assert after.speed.train_s == pytest.approx(manifest["training_s"], rel=0.2, abs=0.1)
        assert after.speed.train_s > before.speed.train_s
        assert after.wall_s >= manifest["wall_s"] > read_manifest(str(folder), 4)["wall_s"]

    def test_a_checkpoint_without_whole_time_makes_it_unknown(self, interrupted, tmp_path):
        """As those of an older version."""
        folder, _ = interrupted
        for path in folder.glob("0000006*"):
            (tmp_path / path.name).write_bytes(path.read_bytes())
        manifest = read_manifest(str(tmp_path), 6)
        del manifest["wall_s"]
        signed(tmp_path / "0000006.json", manifest)
        assert trained(tmp_path, "--resume", "--num_steps", "7") == 0
        found = read_result(str(tmp_path))
        assert (found.status, found.steps, found.wall_s) == (FINISHED, 7, None)

    def test_bad_input_leaves_nothing(self, tmp_path):
        with pytest.raises(InputError):
            trained(tmp_path, "--end_lr", "5")
        assert not has_result(str(tmp_path))


class TestTheCommand:
    def test_tables_of_real_runs(self, both, diverged, interrupted, capsys):
        folders = [str(both), str(diverged), str(interrupted[0])]
        assert results.main(folders) == 0
        shown = capsys.readouterr().out
        assert "Runs\n" in shown and "NaN" in shown and "SQuAD 2.0 F1" in shown
        assert results.main([*folders, "--markdown", "--table", "scaling"]) == 0
        assert capsys.readouterr().out.startswith("### Scaling\n\n| task |")
        assert results.main([*folders, "--json"]) == 0
        content = json.loads(capsys.readouterr().out)
        assert [each["status"] for each in content["runs"]] == [FINISHED, NOT_FINITE, FINISHED]

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["x", "--table", "speed"], "--table speed"), (["x", "--json", "--markdown"], "exclude"),
            (["x", "--compare"], "two folders"), (["x", "y", "--compare", "--partial"], "one table"),
            (["x", "--score", "f1"], "--score is for --compare"), (["nowhere"], "no such folder: nowhere"),
            ([], "RUN"),
        ],
    )  # fmt: skip
    def test_bad_options(self, words, message):
        with pytest.raises(InputError, match=message):
            results.main(words)
