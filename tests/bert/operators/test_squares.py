"""Layers count the squares of their weights' gradients where the attribute `squares` says so."""

from __future__ import annotations

from functools import partial

import mxnet as mx
import numpy as np
import pytest

from tests.bert.operators import test_feed_forward, test_self_attention
from tests.bert.operators.checking import TRAIN

HEADS = 2
DTYPES = ["float32", "bfloat16", "bfloat16x3"]


attention = partial(test_self_attention.outputs, heads=HEADS, dropout=0.1)
feed_forward = partial(test_feed_forward.outputs, dropout=0.1)


def inputs(size: int) -> tuple[list, list]:
    """Arrays of both operators; the matrices among them get gradients."""
    rng = np.random.default_rng(1)
    of_attention = test_self_attention.random_inputs((2, 37, HEADS, size), rng)
    units = HEADS * size
    of_feed_forward = test_feed_forward.random_inputs((2, 37), units, 2 * units + 5, rng)
    found = []
    for arrays in (of_attention, of_feed_forward):
        found.append([mx.nd.array(array, dtype=array.dtype) for array in arrays])
        for array in found[-1]:
            if array.dtype == np.float32:
                array.attach_grad()
    return found[0], found[1]


def squares(arrays: list) -> float:
    return sum(float((array.grad.asnumpy().astype(float) ** 2).sum()) for array in arrays)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [20, 32, 48])
def test_the_mode_of_both_has_the_sum_as_its_gradient(size, dtype):
    of_attention, of_feed_forward = inputs(size)
    mode = mx.nd.array([TRAIN])
    mode.attach_grad()
    dy = mx.nd.random.normal(shape=of_attention[0].shape)
    with mx.autograd.record():
        y, *kept = attention(*of_attention, mode=mode, dtype=dtype, squares=1)
        between, last = mx.nd.bert_unread(mode, *kept, outputs=len(kept), copies=2)
        y = feed_forward(y, *of_feed_forward[1:], mode=between, dtype=dtype, squares=1)[0] + 3 * last
    y.backward(dy)
    expected = squares([*of_attention[2:5], of_attention[8], *of_feed_forward[1:4:2]])
    assert expected > 0
    expected += 3 * float(dy.asnumpy().sum(dtype=float))
    assert mode.grad.asscalar() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("options", [{}, {"squares": 0}])
def test_without_it_the_mode_has_none(options):
    of_attention, of_feed_forward = inputs(32)
    for operator, arrays in ((attention, of_attention), (feed_forward, of_feed_forward)):
        mode = mx.nd.array([TRAIN])
        mode.attach_grad()
        with mx.autograd.record():
            y = operator(*arrays, mode=mode, dtype="bfloat16", **options)[0]
        y.backward()
        assert mode.grad.asscalar() == 0
