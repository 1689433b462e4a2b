"""bert_feed_forward against float64 NumPy with factors rounded in the same places, and against the four
operators that it stands for."""

from __future__ import annotations

from functools import partial

import mxnet as mx
import numpy as np
import pytest

from tests.bert.operators.checking import EPS, PREDICT, TRAIN, assert_same, low, packed, run
from tests.bert.operators.test_gelu import reference as gelu
from tests.bert.operators.test_gelu import slope
from tests.bert.operators.test_norm import add_norm, norm_backward

# Shape of x without its last axis, units, hidden.
SHAPES = [((1,), 3, 5), ((2, 3), 17, 40), ((33,), 48, 100), ((5, 16), 96, 384), ((300,), 64, 320)]
DEEP = ((40,), 48, 1600)  # on tiles the products over `hidden` are summed up in parts
FLOATS = range(7)  # the inputs before mode


def random_inputs(leading, units: int, hidden: int, rng: np.random.Generator) -> list[np.ndarray]:
    """x, weight_1, bias_1, weight_2, bias_2, gamma, beta."""
    shapes = ((*leading, units), (hidden, units), (hidden,), (units, hidden), (units,), (units,), (units,))
    scales = (1, units**-0.5, 0.1, hidden**-0.5, 0.1, 1, 1)
    return [(rng.standard_normal(s) * scale).astype("float32") for s, scale in zip(shapes, scales)]


def outputs(*arrays, mode, dtype, form="erf", **options):
    """All of them; `mode` is an array."""
    copies = [packed(weight, dtype=dtype) for weight in arrays[1:4:2]]
    return mx.nd.bert_feed_forward(*arrays, mode, *copies, dtype=dtype, form=form, eps=EPS, **options)


def fused(*arrays, dtype="float32", form="erf", dropout=0.0, mode=TRAIN):
    return outputs(*arrays, mode=mx.nd.array([mode]), dtype=dtype, form=form, dropout=dropout)[0]


def one_by_one(*arrays, dtype="float32", form="erf", dropout=0.0, mode=TRAIN):
    x, weight_1, bias_1, weight_2, bias_2, gamma, beta = arrays

    def product(left, weight):
        attributes = {"num_weights": 1, "bias": 0, "dtype": dtype}
        return mx.nd.bert_dense(left, weight, packed(weight, dtype=dtype), **attributes)

    hidden = mx.nd.bert_bias_gelu(product(x, weight_1), bias_1, form=form)
    outer = product(hidden, weight_2)
    given = mx.nd.array([mode])
    return mx.nd.bert_add_norm(outer, bias_2, x, gamma, beta, given, dropout=dropout, eps=EPS)[0]


def inner_is_rounded(arrays) -> bool:
    """Whether products are on tiles: what goes into GELU is then kept for the backward pass as bfloat16."""
    arrays = [mx.nd.array(array) for array in arrays]
    inner = outputs(*arrays, mode=mx.nd.array([TRAIN]), dtype="bfloat16", dropout=0)[2]
    return inner.size != arrays[0].size // arrays[0].shape[-1] * arrays[1].shape[0]


def reference(x, weight_1, bias_1, weight_2, bias_2, gamma, beta, form="erf"):
    hidden = gelu(x @ weight_1.T, bias_1, form)
    return add_norm(hidden @ weight_2.T, bias_2, x, gamma, beta)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("form", ["erf", "tanh", "relu"])
@pytest.mark.parametrize("leading, units, hidden", [*SHAPES, DEEP])
def test_gradients_with_the_same_roundings(leading, units, hidden, form, dtype):
    rng = np.random.default_rng(5)
    arrays = random_inputs(leading, units, hidden, rng)
    dy = rng.standard_normal(arrays[0].shape).astype("float32")
    output, gradients = run(partial(fused, dtype=dtype, form=form), arrays, dy, FLOATS)
    near = low if dtype == "bfloat16" else np.asarray

    x, weight_1, bias_1, weight_2, bias_2, gamma, beta = (array.astype("float64") for array in arrays)
    x, dy = x.reshape(-1, units), dy.reshape(-1, units).astype("float64")
    inner = near(x) @ near(weight_1).T + bias_1
    summed = x + near(gelu(inner, 0, form)) @ near(weight_2).T + bias_2
    normal, d_summed = norm_backward(summed, gamma, dy)
    if dtype == "float32":
        np.testing.assert_allclose(output.reshape(x.shape), normal * gamma + beta, rtol=1e-6, atol=2e-5)
    kept = near(inner) if inner_is_rounded(arrays) else inner
    d_inner = near(d_summed) @ near(weight_2) * slope(kept, form)
    expected = [
        d_summed + near(d_inner) @ near(weight_1),
        near(d_inner).T @ near(x),
        d_inner.sum(axis=0),
        near(d_summed).T @ near(gelu(kept, 0, form)),
        d_summed.sum(axis=0),
        (dy * normal).sum(axis=0),
        dy.sum(axis=0),
    ]
    for index, (gradient, other) in enumerate(zip(gradients, expected)):
        difference, size = np.abs(gradient.reshape(other.shape) - other), np.abs(other).max()
        # A number near the middle of two bfloat16 may be rounded up here and down there: 2^-8 of it.
        assert difference.max() <= (8e-3 if dtype == "bfloat16" else 3e-5) * size, index
        assert np.median(difference) <= 2e-5 * size, index


@pytest.mark.parametrize("mode, form", [(TRAIN, "erf"), (PREDICT, "relu")])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("leading, units, hidden", [*SHAPES, DEEP])
def test_the_same_as_four_operators(leading, units, hidden, dtype, mode, form):
    arrays = random_inputs(leading, units, hidden, np.random.default_rng(3))
    tolerance = 8e-3 if dtype == "bfloat16" and inner_is_rounded(arrays) else 2e-5
    options = {"dtype": dtype, "dropout": 0.3, "mode": mode, "form": form}
    assert_same((fused, one_by_one), arrays, FLOATS, tolerance, {}, **options)
