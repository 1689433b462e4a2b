"""The options of `make pretrain HOURS=…`, and what make would do with them."""

from __future__ import annotations

import shutil
import sys

import pytest

from tests.processes import ROOT, run_command
from training.hours import LENGTH, MASKED, RECIPES, main, options, recipe
from training.options import parse_options, stage_config, stage_options

# Of a `make test` that this test runs in.
FOREIGN = dict.fromkeys(("MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "ARGS", "BACKEND", "NP"))


def make(*words):
    command = ["make", "--dry-run", "-o", "setup", f"PY={sys.executable}", *words]
    return run_command(command, env=FOREIGN, cwd=ROOT)


def test_the_table_begins_at_nothing_and_rises():
    hours = [each.hours for each in RECIPES]
    assert hours[0] == 0 and hours == sorted(set(hours))
    for before, after in zip(RECIPES, RECIPES[1:]):
        assert recipe(after.hours - 0.001) == before and recipe(after.hours) == after


@pytest.mark.parametrize("hours", [0.1, 0.5, *(each.hours for each in RECIPES if each.hours), 24])
def test_the_pretraining_scripts_take_the_options(hours):
    words = [*options(hours, bfloat16=True), "--raw", "--data", "text", "--vocab", "v", "--ckpt_dir", "r"]
    first, second = map(stage_config, stage_options(parse_options(words, "")))
    chosen = recipe(hours)
    budgets = [each.optimization.budget_hours for each in (first, second)]
    assert sum(budgets) == pytest.approx(hours, rel=1e-4)
    # One decay, in which nothing jumps where the share of masked tokens does.
    assert first.optimization.lr == chosen.lr and first.optimization.end_lr == second.optimization.lr
    assert second.optimization.warmup_ratio == second.optimization.end_lr == 0
    assert second.start.keep_optimizer_state
    for config, share in zip((first, second), MASKED):
        assert config.model.name == chosen.model and config.model.dtype == "bfloat16"
        masking = config.data.masking
        assert masking.max_seq_length == LENGTH and masking.masked_lm_prob == share
        # Room for every masked token of the longest sequence: the share is what is asked for.
        assert abs(masking.max_predictions_per_seq - share * LENGTH) <= 0.5
    assert 5 <= hours * 3600 / chosen.step_s / first.checkpoint.ckpt_interval <= 40


def test_without_products_of_bfloat16_it_is_float32():
    words = options(3, bfloat16=False)
    assert words[words.index("--dtype") + 1] == "float32"


def test_the_command_prints_them_and_bad_hours_are_one_line(capsys):
    assert main(["3"]) == 0
    assert capsys.readouterr().out.split()[:2] == ["--model", recipe(3).model]
    for bad in ("x", "0", "-1", "nan"):
        assert main([bad]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: HOURS: ") and bad in line


@pytest.mark.skipif(not shutil.which("make"), reason="there is no make")
@pytest.mark.parametrize("backend, folder", [("hvd", "runs/hours_3"), ("byteps", "runs/hours_3_byteps")])
def test_make_trains_on_the_corpus_of_packages(backend, folder):
    output = make("pretrain", "HOURS=3", f"BACKEND={backend}").check().stdout
    lines = output.splitlines()
    begun = [line.split()[2] if line.split()[1] == "-m" else line for line in lines[:2]]
    assert begun == ["training.hours", "data.build_corpus"]
    (training,) = [line for line in lines if f"run_pretraining_{backend}.py" in line]
    text = "--data 'runs/corpus/corpus/train-*.txt'"
    for part in (text, "--vocab runs/corpus/vocab.txt", "training.hours 3)"):
        assert part in training
    assert training.endswith(f"--ckpt_dir {folder}/ckpt") and "data.embedded" not in output


@pytest.mark.skipif(not shutil.which("make"), reason="there is no make")
def test_make_takes_text_of_your_own_and_says_where_variables_belong():
    assert "data.embedded" in make("pretrain").check().stdout
    output = make("pretrain", "HOURS=0.5", "TEXT=own/*.txt").check().stdout
    assert "--output runs/corpus_own --text 'own/*.txt'" in output
    assert "--ckpt_dir runs/hours_0.5_own/ckpt" in output
    assert "--packages 'dict-gcide'" in make("corpus", "PACKAGES=dict-gcide").check().stdout
    for words, message in (
        (["pretrain", "TEXT=x"], "TEXT= and PACKAGES= are for make corpus"),
        (["finetune", "HOURS=3"], "make finetune INIT=runs/hours_3/ckpt"),
    ):
        result = make(*words)
        assert result.returncode != 0 and message in result.stderr
