"""`make finetune`: what it would run, and all of it in small."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from bench.finetune import random_weights
from bert.weights.exporting import export
from tests.embedded import built_once
from tests.processes import ROOT, RunResult, run_command
from training.results.summary import read_members

# Of a `make test` that this test runs in.
FOREIGN = dict.fromkeys(
    ("MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "BENCH", "ARGS", "BACKEND", "NP")
)
pytestmark = pytest.mark.skipif(not shutil.which("make"), reason="there is no make")


def make(*words: str) -> RunResult:
    command = ["make", "-o", "setup", f"PY={sys.executable}", "finetune", *words]
    return run_command(command, env=FOREIGN, cwd=ROOT)


def finetunings(output: str) -> list[list[str]]:
    """The options of each fine-tuning among commands."""
    lines = output.replace("\\\n", " ").splitlines()
    return [line.split("finetune_squad.py", 1)[1].split() for line in lines if "finetune_squad.py" in line]


def test_both_runs_differ_in_where_they_begin_alone():
    first, second = finetunings(make("--dry-run").check().stdout)
    folder, begin = first.index("--ckpt_dir"), first.index("--init_from")
    assert first[:folder] == second[:folder] and "--seeds" in first and begin == folder + 2
    assert first[folder:][:4] == [
        "--ckpt_dir",
        "runs/embedded/finetuned",
        "--init_from",
        "runs/embedded/ckpt",
    ]
    assert second[folder:][:3] == ["--ckpt_dir", "runs/embedded/from_random", "--model"]


def test_both_backends_take_steps_of_as_many_examples():
    """One process each, on one core; over BytePS the two workers of hosts/2x_local."""
    for backend, processes in (("hvd", 1), ("byteps", 2)):
        output = make("--dry-run", f"BACKEND={backend}").check().stdout
        batches = [int(words[words.index("--batch_size") + 1]) for words in finetunings(output)]
        assert [batch * processes for batch in batches] == [4, 4]
        assert output.count("launch.py") == (3 if backend == "byteps" else 0)


@pytest.mark.parametrize("backend, launcher", [("hvd", "mpirun"), ("byteps", "launch.py")])
def test_real_files_take_the_usual_settings(tmp_path, backend, launcher):
    output = make("--dry-run", "SQUAD=a.json,b.json", f"BACKEND={backend}", "ARGS=--version_2").check().stdout
    (words,) = finetunings(output)
    assert launcher in output and "data.questions.cloze" not in output
    assert words[words.index("--train_file") + 1] == "a.json" and words[-1] == "--version_2"
    assert words[words.index("--dev_file") + 1] == "b.json"
    options = {word for word in words if word.startswith("--")}
    usual = {"--resume", "--init_from", "--train_file", "--dev_file", "--ckpt_dir", "--version_2"}
    assert options == usual


def test_one_file_is_an_error():
    result = make("--dry-run", "SQUAD=a.json")
    assert result.returncode and "SQUAD=a.json: give the file to train on, a comma" in result.stderr


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A folder with a corpus, and weights to begin with."""
    folder = tmp_path_factory.mktemp("make")
    text = built_once(tmp_path_factory, 4096)
    for name in os.listdir(text):
        (shutil.copytree if (text / name).is_dir() else shutil.copy)(text / name, folder / name)
    (folder / "weights").mkdir()
    tokens = (folder / "vocab.txt").read_text("utf-8").splitlines()
    export(random_weights("bert_2_128_2", tokens), str(folder / "weights"), "huggingface")
    return folder


def test_all_of_it_in_small(run):
    words = [f"RUN_DIR={run}", f"INIT={run / 'weights'}", "SEEDS=2", "QUESTIONS=200", "STEPS=3"]
    output = make(*words).check().stdout
    unanswerable = int(re.search(r"to train on 200 questions \((\d+) unanswerable\)", output)[1])
    assert 20 <= unanswerable <= 60, "a fifth of them"
    for name in ("finetuned", "from_random"):
        members = read_members(str(run / name))
        assert members.main_score == "f1" and not members.settings[0].missing
        assert sorted(members.settings[0].scores["f1"]) == [0, 1]
        assert str(run / name) in "\n".join(output.splitlines()[-10:])
    for name in ("from-pretrained", "from-random"):
        assert f"{name}: saved " in output


def test_a_run_that_fails_ends_the_comparison(run):
    words = [f"RUN_DIR={run}", f"INIT={run / 'nothing'}", "SEEDS=2", "QUESTIONS=200", "STEPS=3"]
    result = make(*words)
    assert result.returncode and "from-pretrained: " in result.stdout and "f1 over seeds" not in result.stdout
    assert "run_pretraining" not in result.stdout, "weights that are named take the place of pretraining"
