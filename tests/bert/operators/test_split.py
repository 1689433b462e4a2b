"""Products of dtype "bfloat16x3" against float64 in NumPy: each of three products of bfloat16 is needed, and
they give 16 bits. Numbers have two parts of 8 bits, so that of a b at most 3 x 2^-16 |a b| is lost."""

from __future__ import annotations

from functools import partial
from typing import Callable

import numpy as np
import pytest

from tests.bert.operators import test_feed_forward, test_self_attention
from tests.bert.operators.checking import TRAIN, run
from tests.bert.operators.test_dense import SHAPES, arrays, operator

DTYPE = "bfloat16x3"
PART = 2.0**-16
# Of errors over what they would be at PART of each of a sum's products, with signs of their own: 0.3 were
# measured, 0.02 in float32, 154 in bfloat16; 110 without either of the products with the rests.
TYPICAL = 0.6


def assert_split(found: np.ndarray, left: np.ndarray, right: np.ndarray) -> None:
    """Bounds of a product's errors: of the greatest in parts of |left| |right|, and of the typical one."""
    left, right = left.astype(np.float64), right.astype(np.float64)
    error = found - left @ right
    sums = len(right) * 2.0**-24 / PART  # what float32 sums may add
    assert (np.abs(error) / (np.abs(left) @ np.abs(right))).max() < (3 + sums) * PART
    if found.size > 100:
        scale = np.sqrt(np.square(left) @ np.square(right))
        assert 0.1 * PART < np.sqrt(np.square(error / scale).mean()) < TYPICAL * PART


@pytest.mark.parametrize("leading, outputs, inputs, bias", SHAPES)
def test_dense(leading, outputs, inputs, bias):
    rng = np.random.default_rng(1)
    x, *rest = given = arrays(rng, leading, outputs, inputs, bias)
    dy = rng.standard_normal((*leading, sum(outputs))).astype(np.float32)
    y, gradients = run(operator(len(outputs), bias, DTYPE), given, dy, range(len(given)))
    if bias:
        y = y - np.concatenate(rest[len(outputs) :]).astype(np.float64)
        assert np.abs(gradients[-1] - dy.reshape(-1, sum(outputs))[:, -outputs[-1] :].sum(0)).max() < 1e-4
    weight = np.concatenate(rest[: len(outputs)])
    rows, columns = x.reshape(-1, inputs), dy.reshape(-1, sum(outputs))
    if bias:  # its sum is float32
        np.testing.assert_allclose(y.reshape(columns.shape), rows.astype("d") @ weight.T, atol=2e-3)
    else:
        assert_split(y.reshape(columns.shape), rows, weight.T)
    assert_split(gradients[0].reshape(rows.shape), columns, weight)
    assert_split(np.concatenate(gradients[1 : 1 + len(outputs)]), columns.T, rows)


def compare(fused: Callable, given: list[np.ndarray], differentiable: list[int]) -> None:
    """An operator's output and gradients in bfloat16x3 and bfloat16 against float32: the former are at least
    50 times as near, and not the same."""
    dy = np.random.default_rng(5).standard_normal(given[0].shape).astype(np.float32)
    exact, split, low = (
        run(partial(fused, dtype=dtype), given, dy, differentiable)
        for dtype in ("float32", DTYPE, "bfloat16")
    )
    for index, (wanted, near, far) in enumerate(
        zip([exact[0], *exact[1]], [split[0], *split[1]], [low[0], *low[1]])
    ):
        scale = np.linalg.norm(wanted)
        distance, other = np.linalg.norm(near - wanted) / scale, np.linalg.norm(far - wanted) / scale
        if other > 1e-4:  # else no product has touched it
            assert 0 < distance < min(5e-5, other / 50), index


@pytest.mark.parametrize("leading, units, hidden", [*test_feed_forward.SHAPES[1:], test_feed_forward.DEEP])
def test_feed_forward_is_near_float32(leading, units, hidden):
    given = test_feed_forward.random_inputs(leading, units, hidden, np.random.default_rng(6))
    compare(test_feed_forward.fused, given, list(test_feed_forward.FLOATS))


@pytest.mark.parametrize("shape", test_self_attention.SHAPES[2:])
def test_self_attention_is_near_float32(shape):
    given = test_self_attention.random_inputs(shape, np.random.default_rng(7))
    # The gradient of the keys' bias is 0 but for rounding.
    floats = [index for index in test_self_attention.FLOATS if index != test_self_attention.KEY_BIAS]
    compare(partial(test_self_attention.fused, heads=shape[2], mode=TRAIN), given, floats)
