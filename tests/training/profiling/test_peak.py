"""The rate of a large matrix product, against NumPy's on the same machine."""

from __future__ import annotations

import time

import mxnet as mx
import numpy as np
import pytest

from bert.configuration import named_config
from bert.operators import choose_operators
from training.profiling.peak import ROWS, matrix_peak


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
    choose_operators(operators, "float32", mx.cpu(), named_config("bert_2_32_2"))
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
