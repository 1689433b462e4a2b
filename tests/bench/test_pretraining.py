"""bench/pretraining.py: a small run of it, and its comparison on curves made by hand."""

from __future__ import annotations

import json
import os
import sys

import pytest

from bench.harness import NOTICE, VOCAB_SIZE
from bench.pretraining import OURS, TOLERANCE, TORCH, Training, compare, lines_of
from bench.trainings import Settings
from bench.workers import find_torch_python
from tests.embedded import built_once
from tests.processes import ROOT, run_command


def test_quick(tmp_path, tmp_path_factory):
    """Two seeds of ours learn; where there is PyTorch, it takes the same steps."""
    figures, picture = tmp_path / "figures.json", tmp_path / "curves.png"
    words = ["-m", "bench.pretraining", "--quick", "--json", str(figures), "--plot", str(picture)]
    text = {"BENCH_TEXT": str(built_once(tmp_path_factory, VOCAB_SIZE))}
    result = run_command([sys.executable, *words], env=text, cwd=ROOT).check()
    assert result.stdout.rstrip().endswith(NOTICE)
    found = json.loads(figures.read_text())
    for curve in found["trainings"][OURS].values():
        assert len(curve["losses"]) == 40 and len(curve["held_out"]) == len(curve["seconds"]) + 1 == 5
        assert curve["held_out"][-1] < curve["held_out"][0] - 1
    assert picture.read_bytes().startswith(b"\x89PNG")
    if find_torch_python(None, os.environ) is None:
        assert "PyTorch was left out" in result.stdout and TORCH not in found["trainings"]
    else:
        assert found["first"]["largest"] < TOLERANCE
        assert found["trainings"][TORCH]["0"]["held_out"] == pytest.approx(
            found["trainings"][OURS]["0"]["held_out"], rel=1e-4
        )


def test_comparison():
    ours = {
        0: Training([8.0, 7.0], [8.0, 6.0, 4.0], [1.0, 3.0]),
        1: Training([8.0, 7.0], [8.2, 6.3, 4.4], [1.0, 3.0]),
    }
    torch = {0: Training([8.0, 7.0007], [8.0, 6.1, 4.1], [4.0, 8.0])}
    figures = compare({OURS: ours, TORCH: torch}, 1)
    assert figures["first"] == {"steps": 2, "largest": pytest.approx(1e-4, rel=1e-3), "step": 2}
    assert figures["curve"]["difference"] == pytest.approx([0.0, 0.1, 0.1])
    assert figures["curve"]["deviation"] == pytest.approx([0.2 / 2**0.5, 0.3 / 2**0.5, 0.4 / 2**0.5])
    # Of 4.1, the last goal, ours is 95% of the way from 6.0 to 4.0.
    last = figures["seconds"][-1]
    assert last["held_out_loss"] == pytest.approx(4.1)
    assert list(last["seconds"].values()) == pytest.approx([1.0 + 0.95 * 3.0, 12.0])
    within, beyond = lines_of(figures), lines_of({**figures, "first": {**figures["first"], "largest": 2e-4}})
    assert "beyond 0.0001" in beyond[0] and "within the spread" in within[1]
    assert "ours 3.9 s, PyTorch 12.0 s, 3.12 times as long" in within[-1]


def test_a_loss_that_was_never_reached():
    assert Training([], [8.0, 6.0], [1.0]).seconds_to(5.0) is None


def test_rates():
    settings = Settings(num_steps=100, seeds=[0], lr=0.01)
    assert settings.rates(0, 10)[::9] == pytest.approx([0.001, 0.01])
    assert settings.rates(54, 46)[::45] == pytest.approx([0.005, 0.0])
