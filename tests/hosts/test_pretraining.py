"""A plan as the job of a training script: its lines, and what the user's own options replace."""

from __future__ import annotations

import pytest

import lamb_paper
from base.errors import InputError
from hosts.pretraining import COMPUTED, DATA, pretraining_job

BOTH = lamb_paper.plan(256, 8192, 2)
SCRIPT = "run_pretraining_hvd.py"


def words_of(job):
    return [word for line in job.options for word in line]


def test_a_run_of_both_stages():
    job = pretraining_job(BOTH, SCRIPT, (), any_dtype=False)
    assert job.script == SCRIPT
    assert job.header() == (
        "# both stages: 14063 steps of 32768 sequences of 128, then 6250 of 8192 sequences of 512"
    )
    defaults = ["--model", "bert_24_1024_16", "--dtype", "float16", "--optimizer", "lamb"]
    computed = BOTH.options().split()
    assert words_of(job) == [*defaults, *computed, "--raw", "--data", DATA, "--ckpt_dir", "ckpt_dir"]


@pytest.mark.parametrize("stage", [1, 2])
def test_runs_of_one_stage_are_over_the_same_checkpoints(stage):
    plan = lamb_paper.plan(256, 8192, 2, lamb_paper.Recipe((stage,)))
    job = pretraining_job(plan, SCRIPT, (), any_dtype=True)
    assert job.header().startswith(f"# stage {stage}: {plan.stages[0].num_steps} steps of ")
    assert plan.options() in " ".join(map(str, words_of(job)))
    assert words_of(job)[-2:] == ["--ckpt_dir", "ckpt_dir"]
    assert "--dtype" not in words_of(job)


def test_a_batch_that_is_an_average_is_printed_short():
    job = pretraining_job(lamb_paper.plan(3, 1000), SCRIPT, (), any_dtype=False)
    assert "steps of 23.4375 sequences of 128, then " in job.header()


@pytest.mark.parametrize("form", ["{}", "{}=1"])
@pytest.mark.parametrize("name", COMPUTED)
def test_computed_options_are_not_the_users(name, form):
    with pytest.raises(InputError, match=f"^{name} after --: ") as raised:
        pretraining_job(BOTH, SCRIPT, [form.format(name), "1"], any_dtype=False)
    assert "\n" not in str(raised.value)


def test_every_value_of_the_plan_is_computed():
    names = [word for word in BOTH.options().split() if word.startswith("--")]
    assert sorted(names) == sorted(COMPUTED)


@pytest.mark.parametrize(
    ("own", "gone"),
    [
        (["--model=bert_12_768_12"], ["bert_24_1024_16"]),
        (["--dtype", "bfloat16"], ["float16"]),
        (["--optimizer", "adamw"], ["lamb"]),
        (["--ckpt_dir", "runs/a"], ["ckpt_dir"]),
        (["--data", "x.txt"], [DATA]),
        (["--data=a.npz"], [DATA, "--raw"]),
        (["--dummy_data_len", "128,512"], [DATA, "--raw", "--data"]),
    ],
)
def test_own_options_replace_defaults(own, gone):
    words = words_of(pretraining_job(BOTH, SCRIPT, own, any_dtype=False))
    start = words.index(own[0])
    assert words[start : start + len(own)] == own and words.count(own[0]) == 1
    usual = words_of(pretraining_job(BOTH, SCRIPT, (), any_dtype=False))
    assert set(gone) <= set(usual) and not set(gone) & set(words)
