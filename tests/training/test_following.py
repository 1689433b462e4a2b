"""The example of the guide for Weights & Biases, on a file that a run writes and a resumed one replaces."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time

import pytest

from tests.processes import LIMIT, ROOT, wait_for_file
from tests.training.test_report import evaluation, training
from tests.training.tiny import TASK
from training.report import METRICS_FILE, RunReporter, Span

GUIDE = ROOT / "docs" / "training.md"
# The package's interface, as far as the example uses it; what it is given becomes lines of a file.
WANDB = """
import json, os, sys

class Run:
    def log(self, values, step):
        with open(os.environ["LOGGED"], "a") as file:
            file.write(json.dumps([step, values]) + "\\n")

def init(project, id, resume):
    assert (project, id, resume) == ("bert", "own", "allow")
    return Run()
"""


def example(first_word: str) -> str:
    text = GUIDE.read_text("utf-8").split("\n## Weights & Biases, MLflow\n")[1]
    (block,) = [each for each in text.split("```text\n")[1:] if each.startswith(first_word)]
    return block.split("```")[0]


@pytest.fixture
def follower(tmp_path):
    """The guide's command, in a folder where a run leaves its files in runs/own, and no module of ours is."""
    (tmp_path / "wandb.py").write_text(WANDB)
    (tmp_path / "follow.py").write_text(example("# follow.py"))
    (tmp_path / "runs" / "own").mkdir(parents=True)
    command = example("tail ").strip().replace("python ", f"{shlex.quote(sys.executable)} ")
    environ = {**os.environ, "LOGGED": str(tmp_path / "logged"), "PYTHONPATH": str(tmp_path)}
    process = subprocess.Popen(
        command, shell=True, cwd=tmp_path, env=environ, stderr=subprocess.PIPE, start_new_session=True
    )
    yield tmp_path
    os.killpg(process.pid, signal.SIGTERM)
    process.communicate(timeout=LIMIT)


def test_every_line_arrives_once_though_a_resumed_run_writes_the_file_anew(follower):
    folder, logged = follower / "runs" / "own", follower / "logged"
    time.sleep(0.3)  # it may start before the run
    reporter = RunReporter(str(folder), TASK, Span(0, 40), "none")
    for step in (10, 20, 30):
        reporter.training(training(step, grad_norm=None))
    reporter.evaluation(evaluation(20))
    reporter.close()
    wait_for_file(logged, text='[20, {"eval')
    resumed = RunReporter(str(folder), TASK, Span(20, 40), "none")  # step 30 is lost and run again
    assert len((folder / METRICS_FILE).read_text().splitlines()) == 3
    for step in (30, 40):
        resumed.training(training(step, resumed=1))
    resumed.evaluation(evaluation(40))
    wait_for_file(logged, text='[40, {"eval')
    resumed.close()
    found = [json.loads(line) for line in logged.read_text().splitlines()]
    assert [(step, "eval_s" in values) for step, values in found] == [
        (10, False), (20, False), (30, False), (20, True), (40, False), (40, True)
    ]  # fmt: skip
    for _, values in found:
        assert "step" not in values and all(isinstance(value, (int, float)) for value in values.values())
    assert found[0][1] == {n: v for n, v in training(10).items() if n not in ("step", "grad_norm")}
