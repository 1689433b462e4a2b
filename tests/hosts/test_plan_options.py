"""Options of a plan: the commands that write a cluster's job give a run the options that hparams.py does."""

from __future__ import annotations

import json
import re
import shlex

import pytest

import hparams
from hosts import kubernetes, sagemaker, slurm

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
    monkeypatch.setattr("hosts.batch.cluster_job.check_script", lambda words: None)
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
