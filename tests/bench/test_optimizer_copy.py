"""The loops of bench.optimizer that move bytes and compute nothing."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from bench import optimizer_copy
from bench.optimizer_copy import LEAST, SameBytes


@pytest.mark.parametrize("moments", ["float32", "uint8"])
def test_every_byte_of_large_tensors_passes_and_stays_as_it_is(moments, monkeypatch):
    rng = np.random.default_rng(0)
    shapes, passed = [(3, LEAST), (LEAST - 1,), (2 * LEAST + 3,)], []
    move = optimizer_copy._move
    monkeypatch.setattr(optimizer_copy, "_move", lambda part: (passed.append(part), move(part)))
    tensors = []
    for shape in shapes:
        values = [rng.normal(0, 1, shape).astype("float32") for _ in range(4)]
        if moments == "uint8":
            values[2:] = [rng.integers(0, 256, (*shape, 2)).astype("uint8") for _ in range(2)]
        tensors.append([mx.nd.array(value, dtype=value.dtype) for value in values])
    before = [[array.asnumpy() for array in tensor] for tensor in tensors]

    assert SameBytes(tensors, threads=3).seconds() > 0

    for tensor, values in zip(tensors, before):
        for array, value in zip(tensor, values):
            assert array.asnumpy().tobytes() == value.tobytes()
    assert len(passed) == 3
    counted = [sum(part[i][kind].nbytes for part in passed for i in range(2)) for kind in range(4)]
    assert counted == [sum(before[i][kind].nbytes // 4 * 4 for i in (0, 2)) for kind in range(4)]
