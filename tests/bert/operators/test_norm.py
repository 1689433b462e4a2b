"""bert_layer_norm and bert_add_norm at their limits; test_every_operator.py has values and gradients."""

from __future__ import annotations

from functools import partial

import mxnet as mx
import numpy as np
import pytest

from tests.bert.operators.checking import EPS, TRAIN, run

# Rows of one, sizes below, between and above the vectors' widths, one axis, three axes.
SHAPES = [(1, 3), (3, 5), (17,), (2, 3, 16), (5, 31), (1, 129), (2, 33, 64)]


def layer_norm(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, eps: float = EPS) -> np.ndarray:
    x = x.astype("float64")
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps) * gamma + beta


def norm_backward(x: np.ndarray, gamma: np.ndarray, dy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of a layer norm in float64: its numbers before gamma and beta, and the gradient of x."""
    spread = np.sqrt(x.var(axis=-1, keepdims=True) + EPS)
    normal = (x - x.mean(axis=-1, keepdims=True)) / spread
    d_normal = dy.astype("float64") * gamma
    centred = d_normal - d_normal.mean(axis=-1, keepdims=True)
    return normal, (centred - normal * (d_normal * normal).mean(axis=-1, keepdims=True)) / spread


def add_norm(x, bias, residual, gamma, beta, factors=1.0):
    return layer_norm(residual + (x + bias) * factors, gamma, beta)


def random_inputs(shape: tuple, rng: np.random.Generator) -> list[np.ndarray]:
    """x, bias, residual, gamma, beta."""
    shapes = (shape, shape[-1:], shape, shape[-1:], shape[-1:])
    return [rng.standard_normal(s).astype("float32") for s in shapes]


@pytest.mark.parametrize("mean, spread", [(1e3, 1.0), (1e3, 1e-2), (-1e4, 0.1), (1e-20, 1e-12), (0.0, 1e4)])
def test_large_means_and_small_spreads(mean, spread):
    """The variance does not come from a difference of large numbers."""
    rng = np.random.default_rng(3)
    x = (mean + spread * rng.standard_normal((8, 768))).astype("float32")
    dy = rng.standard_normal(x.shape).astype("float32")
    gamma, beta = np.ones(768, "float32"), np.zeros(768, "float32")
    output, (dx,) = run(partial(mx.nd.bert_layer_norm, eps=EPS), [x, gamma, beta], dy, (0,))
    np.testing.assert_allclose(output, layer_norm(x, gamma, beta), atol=2e-6)

    wide = x.astype("float64")
    deviation = np.sqrt(wide.var(axis=-1, keepdims=True) + EPS)
    _, expected = norm_backward(wide, gamma, dy)
    np.testing.assert_allclose(dx * deviation, expected * deviation, atol=5e-6)


def test_nan_stays_in_its_row():
    x = np.random.default_rng(4).standard_normal((3, 40)).astype("float32")
    x[1, 7] = np.nan
    output, _ = run(partial(mx.nd.bert_layer_norm, eps=EPS), [x, np.ones(40, "f"), np.zeros(40, "f")])
    assert np.isnan(output).all(axis=1).tolist() == [False, True, False]
    assert not np.isnan(output[[0, 2]]).any()


def test_outputs_may_be_inputs():
    rng = np.random.default_rng(7)
    x, bias, residual, gamma, beta = map(mx.nd.array, random_inputs((37, 29), rng))
    mode, key, attributes = mx.nd.array([TRAIN]), mx.nd.zeros((2,)), {"dropout": 0, "eps": EPS}
    expected = mx.nd.bert_add_norm(x, bias, residual, gamma, beta, mode, **attributes)[0].asnumpy()
    mx.nd.bert_add_norm(x, bias, residual, gamma, beta, mode, **attributes, out=[residual, key])
    np.testing.assert_array_equal(residual.asnumpy(), expected)
    expected = mx.nd.bert_layer_norm(x, gamma, beta, eps=EPS).asnumpy()
    mx.nd.bert_layer_norm(x, gamma, beta, eps=EPS, out=x)
    np.testing.assert_array_equal(x.asnumpy(), expected)


@pytest.mark.parametrize(
    "attributes", [{"dropout": 1}, {"dropout": -0.1}, {"dropout": 0.1, "eps": -1}, {}], ids=str
)
def test_attributes_outside_their_range_are_errors(attributes):
    x, row, mode = mx.nd.ones((2, 3)), mx.nd.ones((3,)), mx.nd.ones((1,))
    with pytest.raises(mx.MXNetError):
        mx.nd.bert_add_norm(x, row, x, row, row, mode, **{"eps": EPS, **attributes})[0].wait_to_read()
