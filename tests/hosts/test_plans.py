"""Plans of the LAMB paper: as the job of a training script, and as the run of a cluster's job, which has the
options that hparams.py gives it. Whole jobs are in docs/hparams.md, which tests/test_readme.py compares."""

from __future__ import annotations

import json
import re
import shlex

import pytest

import hparams
import lamb_paper
from base.errors import InputError
from hosts import kubernetes, sagemaker, slurm
from hosts.plans import DATA, pretraining_job

BOTH = lamb_paper.plan(256, 8192, 2)
SCRIPT = "run_pretraining_hvd.py"


def words_of(job):
    return [word for line in job.options for word in line]


def test_a_batch_that_is_an_average_is_printed_short():
    job = pretraining_job(lamb_paper.plan(3, 1000), SCRIPT, (), any_dtype=False)
    assert "steps of 23.4375 sequences of 128, then " in job.header()


def test_computed_options_are_not_the_users():
    names = [word for word in BOTH.options().split() if word.startswith("--")]
    for own in [*([name, "1"] for name in names), [f"{names[0]}=1"]]:
        with pytest.raises(InputError, match=f"^{own[0].partition('=')[0]} after --: [^\n]*$"):
            pretraining_job(BOTH, SCRIPT, own, any_dtype=False)


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


# -------------------------------------------------------------------------------------- a cluster's job

OWN = ["--", "--data", "/c/*.txt", "--vocab", "/v.txt", "--ckpt_dir", "/opt/ml/checkpoints"]
COMMANDS = {
    "slurm": (slurm.main, ["--backend", "hvd", "--nodes", "4", "--tasks_per_node", "8"]),
    "kubernetes": (
        kubernetes.main,
        ["--backend", "hvd", "--name", "b", "--image", "i", "--workers", "4", "--slots", "8"],
    ),
    "sagemaker": (
        sagemaker.main,
        ["--image", "1.dkr.ecr.eu-west-1.amazonaws.com/b:1", "--role", "arn:aws:iam::1:role/R", "--instances"]
        + ["4", "--instance_type", "ml.p3dn.24xlarge", "--slots", "8"],
    ),
}
PLANS = [
    ["--tokens_per_gpu", "8192", "--accumulate", "2,4"],
    ["--tokens_per_gpu", "8192", "--target_batch_size", "32768"],
    ["--tokens_per_gpu", "8192", "--target_batch_size", "65536", "--target_batch_size_2", "32768"],
    ["--tokens_per_gpu", "8192", "--mixed_batch"],
    ["--tokens_per_gpu", "8192", "--pipeline_stages", "2", "--stage", "1", "--max_seq_length_1", "64"],
    ["--tokens_per_gpu", "8192", "--baseline_batch_size", "256", "--baseline_steps_1", "1000000"],
]


def options_of(name, text):
    """Options of the script in a command's output."""
    if name == "sagemaker":
        block = text.partition("hyperparameters={")[2].partition("    },")[0]
        pairs = dict(re.findall(r'"([^"]+)": "([^"]*)"', block))
        return {f"--{key}": "" if value == "true" else value for key, value in pairs.items()}
    if name == "kubernetes":
        items = [line.strip()[2:] for line in text.splitlines() if line.strip().startswith("- ")]
        words = [json.loads(each) if each.startswith('"') else each for each in items]
    else:
        words = shlex.split(
            text.replace("\\\n", " ").partition("run_pretraining_hvd.py")[2].partition(" &\n")[0]
        )
    found = {}
    for word, follows in zip(words, [*words[1:], "--"]):
        if word.startswith("--"):
            found[word] = "" if follows.startswith("--") else follows
    return found


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan[2][2:])
@pytest.mark.parametrize("name", COMMANDS)
def test_the_run_is_that_of_hparams(name, plan, capsys, monkeypatch):
    # Tested elsewhere, 0.3 s each.
    monkeypatch.setattr("hosts.plans.check_script", lambda words: None)
    main, words = COMMANDS[name]
    assert main([*words, *plan, *OWN]) == 0
    written = options_of(name, capsys.readouterr().out)
    assert hparams.main(["--num_gpus", "32", *plan, "--json"]) == 0
    wanted = shlex.split(json.loads(capsys.readouterr().out)["options"])
    for word, follows in zip(wanted, [*wanted[1:], "--"]):
        if word.startswith("--"):
            value = "" if follows.startswith("--") else follows
            assert written[word] == value, word


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("words", [["--target_batch_size", "32768"], ["--mixed_batch"], ["--stage", "1"]])
def test_a_plan_needs_its_tokens(name, words, capsys):
    main, own = COMMANDS[name]
    assert main([*own, *words, "--", "run_pretraining_hvd.py"]) == 2
    said = capsys.readouterr().err
    assert said == f"{name}: {words[0]}: goes with --tokens_per_gpu only; or write it behind the script\n"
