"""bert_pack and bert_dense against float64 products in NumPy, with factors rounded in the same places."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from tests.bert.operators.checking import assert_close, low, packed, run

# Shape of x without its last axis, outputs of each weight, inputs, bias.
SHAPES = [
    ((5,), [3], 1, 1),
    ((1,), [7], 5, 0),
    ((1,), [1], 1, 1),
    ((2, 3), [8, 5, 1], 17, 1),
    ((4, 16), [48, 48, 48], 96, 1),
    ((33,), [130, 2], 100, 0),
    ((2, 64), [256], 128, 1),
    ((70,), [272, 48], 800, 1),  # on tiles several steps and blocks, with an odd tile at each end
    ((1100,), [40], 800, 0),
    ((70,), [2100], 1600, 0),  # a depth in parts, and more than a strip of columns for each of two threads
    ((1700,), [40], 72, 1),
]


def factor(array: np.ndarray, dtype: str) -> np.ndarray:
    return low(array) if dtype == "bfloat16" else array.astype(np.float64)


def operator(weights: int, bias: int, dtype: str):
    """bert_dense as a function of (x, weights, biases): packs the weights without recording it."""

    def apply(*inputs: mx.nd.NDArray) -> mx.nd.NDArray:
        copy = packed(*inputs[1 : 1 + weights], dtype=dtype)
        return mx.nd.bert_dense(*inputs, copy, num_weights=weights, bias=bias, dtype=dtype)

    return apply


def arrays(rng: np.random.Generator, leading, outputs, inputs: int, bias: int) -> list[np.ndarray]:
    shapes = [(*leading, inputs), *((n, inputs) for n in outputs), *((n,) for n in outputs if bias)]
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("leading, outputs, inputs, bias", SHAPES)
def test_products(leading, outputs, inputs, bias, dtype):
    rng = np.random.default_rng(1)
    x, *rest = given = arrays(rng, leading, outputs, inputs, bias)
    dy = rng.standard_normal((*leading, sum(outputs))).astype(np.float32)
    y, gradients = run(operator(len(outputs), bias, dtype), given, dy, range(len(given)))

    weight = factor(np.concatenate(rest[: len(outputs)]), dtype)
    rows, columns = factor(x, dtype).reshape(-1, inputs), factor(dy, dtype).reshape(-1, sum(outputs))
    expected = rows @ weight.T + (np.concatenate(rest[len(outputs) :]) if bias else 0)
    assert_close(y, expected.reshape(dy.shape))
    assert_close(gradients[0], (columns @ weight).reshape(x.shape))
    parts = np.split(columns.T @ rows, np.cumsum(outputs)[:-1])
    for gradient, part in zip(gradients[1:], parts):
        assert_close(gradient, part, 5e-6)
    sums = np.split(dy.reshape(columns.shape).astype(np.float64).sum(0), np.cumsum(outputs)[:-1])
    for gradient, part in zip(gradients[1 + len(outputs) :], sums):
        assert_close(gradient, part)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_packing_again_uses_the_same_memory_and_the_new_weights(dtype):
    rng = np.random.default_rng(3)
    x, *weights = (mx.nd.array(a) for a in arrays(rng, (8,), [16, 4], 32, 0))
    attributes = {"num_weights": 2, "dtype": dtype}
    copy = mx.nd.bert_pack(*weights, **attributes)
    view = copy.reshape((-1,))  # shares the memory
    before = view.asnumpy()
    for weight in weights:
        weight *= -1
    x.attach_grad()
    mx.nd.bert_pack(*weights, out=copy, **attributes)
    if dtype == "bfloat16":  # in float32 nothing is packed
        assert (view.asnumpy() != before).any()
    with mx.autograd.record():
        y = mx.nd.bert_dense(x, *weights, copy, bias=0, **attributes)
    dy = rng.standard_normal(y.shape).astype(np.float32)
    y.backward(mx.nd.array(dy))
    weight = factor(np.concatenate([w.asnumpy() for w in weights]), dtype)
    assert_close(y.asnumpy(), factor(x.asnumpy(), dtype) @ weight.T)
    assert_close(x.grad.asnumpy(), factor(dy, dtype) @ weight)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bfloat16x3"])
def test_what_is_no_number_stays_so(dtype):
    for value in (np.nan, np.inf):
        x, weight = np.ones((2, 3), np.float32), np.ones((4, 3), np.float32)
        weight[1, 2] = value
        y, gradients = run(operator(1, 0, dtype), [x, weight], np.ones((2, 4), np.float32), [0])
        assert (np.isfinite(y) == [True, False, True, True]).all()
        assert (np.isfinite(gradients[0]) == [True, True, False]).all()


def test_wrong_shapes_and_attributes_are_errors():
    x, weight = mx.nd.ones((2, 3)), mx.nd.ones((4, 3))
    copy = packed(weight, dtype="float32")
    for given, dtype in ((mx.nd.ones((2, 5)), "float32"), (x, "float16")):
        with pytest.raises(mx.MXNetError):
            mx.nd.bert_dense(given, weight, copy, num_weights=1, bias=0, dtype=dtype).wait_to_read()
    with pytest.raises(mx.MXNetError):
        mx.nd.bert_pack(weight, mx.nd.ones((4, 2)), num_weights=2, dtype="float32").wait_to_read()
