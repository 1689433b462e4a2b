"""--seeds and --search of the fine-tuning scripts: real members, resumed, and bad input before any work."""

from __future__ import annotations

from pathlib import Path

import pytest

import finetune_classifier
import results
from base.errors import InputError
from tests.finetuned import classifier, write_data
from tests.processes import ROOT, start_ranks
from training.results.members import read_plan
from training.results.record import FINISHED, NOT_FINITE, UNFINISHED, has_result, read_result
from training.results.summary import read_members

SCRIPT, ENV = ROOT / "finetune_classifier.py", {"OMP_NUM_THREADS": "1"}
SEARCH = ["--seeds", "2", "--search", "lr=3e-3,1e-4"]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_data(folder)
    return folder


def command(data: Path, output: Path, *more: str) -> list[str]:
    return [*classifier(data, output, epochs=1, num_data_workers=0, progress="none"), *more]


@pytest.fixture(scope="module")
def searched(data, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("out") / "search"
    assert finetune_classifier.main(command(data, output, *SEARCH)) == 0
    return output


def test_every_member_is_a_finished_run_with_its_options(searched):
    members = read_plan(str(searched)).members
    assert [each.name for each in members] == [
        f"lr_{lr}-seed_{seed}" for lr in ("3e-3", "1e-4") for seed in (3, 4)
    ]
    for member in members:
        found = read_result(str(searched / member.name))
        assert (found.status, found.seed) == (FINISHED, member.seed)
        assert found.options["lr"] == float(member.setting["lr"]) and found.options["seeds"] is None
        assert found.main_score in found.scores
        repeats = (searched / member.name / "run.yaml").read_text()
        assert "seeds: null" in repeats and "search: null" in repeats


def test_a_member_is_the_run_that_it_would_be_alone(data, searched, tmp_path):
    member = read_plan(str(searched)).members[3]
    assert finetune_classifier.main(command(data, tmp_path, *member.words)) == 0
    assert read_result(str(tmp_path)).parameters == read_result(str(searched / member.name)).parameters


def test_the_table_and_the_best_on_the_dev_split(searched, capsys):
    members = read_members(str(searched))
    means = {each.values["lr"]: each.of(members.main_score).mean for each in members.settings}
    assert means[members.best().values["lr"]] == max(means.values())
    assert results.main([str(searched)]) == 0
    shown = capsys.readouterr().out
    assert "2 settings by" in shown and "Fine-tuning by machine" in shown


def test_resume_runs_what_has_not_ended(data, searched, capsys):
    members = read_plan(str(searched)).members
    (searched / members[2].name / "results.json").unlink()
    kept = (searched / members[0].name / "results.json").stat().st_mtime_ns
    before = read_result(str(searched / members[1].name))
    assert finetune_classifier.main(command(data, searched, *SEARCH, "--resume")) == 0
    shown = capsys.readouterr().out
    assert "3 of 4 runs have ended before" in shown and "run 3 of 4: lr_1e-4-seed_3" in shown
    assert (searched / members[0].name / "results.json").stat().st_mtime_ns == kept
    assert read_result(str(searched / members[1].name)) == before
    assert read_result(str(searched / members[2].name)).status == FINISHED


def test_a_member_whose_outputs_are_not_finite_has_ended(data, tmp_path):
    """Before 20 steps were skipped, which end it elsewhere; the others follow."""
    words = command(data, tmp_path / "out", "--search", "lr=1e30,1e-4", "--training_steps", "5")
    assert finetune_classifier.main([*words, "--warmup_ratio", "0"]) == 0
    statuses = [read_result(str(tmp_path / "out" / f"lr_{lr}")).status for lr in ("1e30", "1e-4")]
    assert statuses == [NOT_FINITE, FINISHED]


def test_bad_options_come_before_any_work(data, tmp_path):
    with pytest.raises(InputError, match="--search: argument --lr"):
        finetune_classifier.main(command(data, tmp_path / "out", "--search", "lr=0,1"))
    with pytest.raises(InputError, match="--search epochs: with --training_steps"):
        words = ["--search", "epochs=1,2", "--training_steps", "2"]
        finetune_classifier.main(command(data, tmp_path / "out", *words))
    assert not (tmp_path / "out").exists()


def test_a_folder_with_other_runs_is_left_alone(data, searched):
    with pytest.raises(InputError, match="holds 4 runs .* --resume goes on"):
        finetune_classifier.main(command(data, searched, *SEARCH))
    with pytest.raises(InputError, match="--clip_norm 2.0: the runs in .* have 1.0"):
        finetune_classifier.main(command(data, searched, *SEARCH, "--resume", "--clip_norm", "2"))
    with pytest.raises(InputError, match="holds a run without --seeds"):
        member = searched / "lr_3e-3-seed_3"
        finetune_classifier.main(command(data, member, *SEARCH, "--resume"))


def test_two_ranks_are_killed_in_the_second_member_and_resumed(data, tmp_path):
    folder = tmp_path / "members"
    given = {"seed": None, "seeds": 3, "num_steps": 18, "ckpt_interval": 3, "resume": True}
    words = classifier(data, folder, **given)
    second = folder / "seed_1"
    with start_ranks(SCRIPT, 2, "mpirun", args=words, env=ENV) as run:
        run.kill_when((second / "0000003.json").exists)
    first = (folder / "seed_0" / "results.json").read_bytes()
    assert read_result(str(second)).status == UNFINISHED and not has_result(str(folder / "seed_2"))

    with start_ranks(SCRIPT, 2, "mpirun", args=words, env=ENV) as run:
        said = run.wait().check().ranks
    assert "1 of 3 runs have ended before\nrun 2 of 3: seed_1\n" in said[0].stdout
    assert "continuing after step " in said[0].stdout and "run " not in said[1].stdout
    assert (folder / "seed_0" / "results.json").read_bytes() == first
    for number in (0, 1, 2):
        found = read_result(str(folder / f"seed_{number}"))
        assert (found.status, found.steps, found.seed) == (FINISHED, 18, number)
        assert (found.backend, found.world_size, found.hosts) == ("horovod", 2, 1)
    assert len({read_result(str(path)).parameters for path in folder.glob("seed_*")}) == 3
