"""The rate of a large matrix product, against NumPy's on the same machine, and what a run makes of it."""

from __future__ import annotations

import json
import time

import mxnet as mx
import numpy as np
import pytest

from bert.operators import choose_operators
from tests.training import small_runs
from tests.training.small_runs import SANE, trained
from tests.training.staged import arrays_of
from training import utilisation
from training.utilisation import ROWS, matrix_peak


def numpys_rate() -> float:
    square = np.random.default_rng(1).standard_normal((ROWS, ROWS), dtype=np.float32)
    times = []
    for _ in range(3):
        begun = time.perf_counter()
        square @ square
        times.append(time.perf_counter() - begun)
    return 2 * ROWS**3 / min(times)


@pytest.mark.parametrize("operators", ["mxnet", "fused"])
def test_rate(operators):
    choose_operators(operators, "float32", mx.cpu())
    begun = time.process_time()
    found = matrix_peak("float32", [operators], mx.cpu(), 0.05)
    assert time.process_time() - begun < 20, "a start of a run waits for it"
    # Another library, perhaps on another number of threads; others may take the machine, not always.
    rates = (matrix_peak("float32", [operators], mx.cpu(), 0.05) / numpys_rate() for _ in range(20))
    assert found > 0 and any(1 / 16 < rate < 16 for rate in rates)


def test_what_is_drawn_afterwards_is_the_same():
    draws = []
    for measures in (False, True):
        mx.random.seed(5)
        np.random.seed(5)
        if measures:
            matrix_peak("float32", ["mxnet"], mx.cpu(), 0.0)
        draws.append((mx.nd.random.uniform(shape=(3,)).asnumpy().tolist(), np.random.random()))
    assert draws[0] == draws[1]


def test_a_peak_measured_beside_other_programs(tmp_path, monkeypatch, capsys):
    """Twice far too low: nothing above 100% is shown, it is measured again, and no bit depends on it."""
    trained(tmp_path / "given", *SANE)
    low, seconds = [1e3, 2e3], []

    def measured(*words):
        seconds.append(words[-1])
        return low[len(seconds) - 1] if len(seconds) <= len(low) else matrix_peak(*words)

    monkeypatch.setattr(utilisation, "matrix_peak", measured)
    monkeypatch.setattr(small_runs, "TINY", small_runs.TINY[:-2])  # without --peak_tflops
    capsys.readouterr()
    trained(tmp_path / "measured", *SANE)
    lines = (tmp_path / "measured" / "metrics.jsonl").read_text().splitlines()
    shares = [json.loads(line)["mfu"] for line in lines]
    assert len(shares) == 40 and shares[0] == 1 and all(0 < each < 1 for each in shares[1:])
    assert seconds[:3] == [utilisation.MEASURED, 0, 0] and len(seconds) < 20, "then seldom"
    assert capsys.readouterr().out.count("mfu is the share of ") >= 3
    assert arrays_of(tmp_path / "given", 40) == arrays_of(tmp_path / "measured", 40)
