"""bert_self_attention against float64 NumPy and the four operators that it stands for; bert_unread."""

from __future__ import annotations

from functools import partial
from typing import Any

import mxnet as mx
import numpy as np
import pytest

from bert.fused import places_of
from tests.bert.operators import test_attention
from tests.bert.operators.checking import EPS, PREDICT, TRAIN, assert_same, low, packed, run
from tests.bert.operators.test_norm import add_norm, norm_backward

# Batch, length, heads, head size: as in test_attention.py, and sizes that fill no tile.
SHAPES = [(1, 1, 1, 1), (3, 7, 2, 5), (2, 33, 3, 8), (1, 130, 2, 24), (5, 64, 2, 64), (1, 300, 1, 16)]
# Heads that are whole steps of a packed factor: what lies between the products is then bfloat16 on tiles.
SHAPES += [(3, 21, 2, 32), (1, 150, 1, 64), (2, 5, 3, 96), (1, 600, 1, 32)]
X, LENGTHS = 0, 1
FLOATS = [X, *range(2, 12)]  # the inputs before mode but for the lengths
KEY_WEIGHT, QUERY_BIAS, KEY_BIAS = 3, 5, 6


def random_inputs(shape: tuple, rng: np.random.Generator) -> list[np.ndarray]:
    """x, lengths, three weights, their biases, the projection's weight and bias, gamma, beta."""
    batch, length, heads, size = shape
    units = heads * size
    scale = units**-0.5
    lengths = rng.integers(1, length + 1, batch).astype(np.int32)
    lengths[0] = length

    def normal(shape: tuple, scale: float) -> np.ndarray:
        return (rng.standard_normal(shape) * scale).astype(np.float32)

    return [
        normal((batch, length, units), 1), lengths, *(normal((units, units), scale) for _ in range(3)),
        *(normal((units,), 0.1) for _ in range(3)), normal((units, units), scale), normal((units,), 0.1),
        normal((units,), 1), normal((units,), 1),
    ]  # fmt: skip


def outputs(*arrays, mode, dtype, **options):
    """All of them; `mode` is an array."""
    copies = [packed(*group, dtype=dtype) for group in (arrays[2:5], arrays[8:9])]
    return mx.nd.bert_self_attention(*arrays, mode, *copies, dtype=dtype, eps=EPS, **options)


def fused(*arrays, heads, dtype="float32", dropout=0.0, mode=TRAIN):
    options = {"heads": heads, "dtype": dtype, "dropout": dropout}
    return outputs(*arrays, mode=mx.nd.array([mode]), **options)[0]


def one_by_one(*arrays, heads, dtype="float32", dropout=0.0, mode=TRAIN):
    x, lengths, projection, bias, gamma, beta = *arrays[:2], *arrays[8:]
    given = mx.nd.array([mode])
    qkv = mx.nd.bert_dense(
        x, *arrays[2:8], packed(*arrays[2:5], dtype=dtype), num_weights=3, bias=1, dtype=dtype
    )
    context = mx.nd.bert_attention(qkv, lengths, given, heads=heads, dtype=dtype, dropout=dropout)[0]
    outer = mx.nd.bert_dense(
        context, projection, packed(projection, dtype=dtype), num_weights=1, bias=0, dtype=dtype
    )
    return mx.nd.bert_add_norm(outer, bias, x, gamma, beta, given, dropout=dropout, eps=EPS)[0]


def is_packed(arrays, heads: int) -> bool:
    """Whether queries, keys, values and context are kept as bfloat16."""
    arrays = [mx.nd.array(array, dtype=array.dtype) for array in arrays]
    options = {"heads": heads, "dtype": "bfloat16", "dropout": 0}
    _, _, _, _, qkv, *_ = outputs(*arrays, mode=mx.nd.array([TRAIN]), **options)
    return len(qkv.shape) == 1


def reference(*arrays, heads):
    x, lengths, projection, bias, gamma, beta = *arrays[:2], *arrays[8:]
    qkv = np.concatenate([x @ w.T + b for w, b in zip(arrays[2:5], arrays[5:8])], axis=-1)
    context = test_attention.reference(qkv, lengths, heads)
    return add_norm(context @ projection.T, bias, x, gamma, beta)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES[1:])
def test_gradients_with_the_same_roundings(shape, dtype):
    heads = shape[2]
    rng = np.random.default_rng(10)
    arrays = random_inputs(shape, rng)
    if shape[0] > 2:
        arrays[LENGTHS][-1] = 0
    dy = rng.standard_normal(arrays[X].shape).astype("float32")
    output, gradients = run(partial(fused, heads=heads, dtype=dtype), arrays, dy, FLOATS)
    near = low if dtype == "bfloat16" else np.asarray
    kept = near if is_packed(arrays, heads) else np.asarray

    x, lengths, *others = (array.astype("float64") for array in arrays)
    weights, biases, projection, bias, gamma, beta = others[:3], others[3:6], *others[6:]
    qkv = np.concatenate([near(x) @ near(w).T + b for w, b in zip(weights, biases)], axis=-1)
    context, backward = test_attention.rounded_reference(qkv, lengths, heads, near=near, kept=kept)
    summed = x + near(context) @ near(projection).T + bias
    normal, d_summed = norm_backward(summed, gamma, dy)
    if dtype == "float32":
        np.testing.assert_allclose(output, normal * gamma + beta, rtol=1e-6, atol=3e-5)

    d_parts = [kept(part) for part in np.split(backward(near(d_summed) @ near(projection)), 3, axis=-1)]
    rows = {"axis": (0, 1)}

    def over_rows(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a.reshape(-1, a.shape[-1]).T @ b.reshape(-1, b.shape[-1])

    expected = [
        d_summed + sum(near(part) @ near(w) for part, w in zip(d_parts, weights)),
        *(over_rows(near(part), near(x)) for part in d_parts),
        *(part.sum(**rows) for part in d_parts),
        over_rows(near(d_summed), near(context)),
        d_summed.sum(**rows),
        (dy * normal).sum(**rows),
        dy.sum(**rows),
    ]
    sizes = {index: np.abs(other).max() for index, other in zip(FLOATS, expected)}
    sizes[KEY_BIAS] = sizes[QUERY_BIAS]  # its own is what rounding leaves of 0
    for index, gradient, other in zip(FLOATS, gradients, expected):
        difference = np.abs(gradient - other)
        # A number near the middle of two bfloat16 may be rounded up here and down there: 2^-8 of it.
        assert difference.max() <= (8e-3 if dtype == "bfloat16" else 3e-5) * sizes[index] + 1e-6, index
        # Of a sum over all rows that cancel for the most part, each has its share.
        assert np.median(difference) <= (1e-4 if other.ndim > 1 else 5e-4) * sizes[index] + 1e-7, index


def check_both(arrays: list[np.ndarray], dtype: str, heads: int, **options: Any) -> None:
    # 2^-8 of a number where one of them rounds what lies between the products.
    tolerance = 8e-3 if dtype == "bfloat16" and is_packed(arrays, heads) else 2e-5
    options = {"heads": heads, "dtype": dtype, **options}
    # The gradient of the keys' bias is 0 but for rounding. Its size is that of the weights' beside it: of the
    # same rows, each times a normal number in place of 1. With few rows the queries' bias can be far smaller.
    assert_same((fused, one_by_one), arrays, FLOATS, tolerance, {KEY_BIAS: KEY_WEIGHT}, **options)


@pytest.mark.parametrize("mode", [TRAIN, PREDICT])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_same_as_four_operators(shape, dtype, mode):
    arrays = random_inputs(shape, np.random.default_rng(3))
    if shape[0] > 2:
        arrays[LENGTHS][-1] = 0
    check_both(arrays, dtype, shape[2], dropout=0.3, mode=mode)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("multiple", [1, 16])
@pytest.mark.parametrize("size", [24, 32])
def test_sequences_end_to_end(multiple, dtype, size):
    rng = np.random.default_rng(4)
    arrays = random_inputs((1, 1, 2, size), rng)
    arrays[LENGTHS] = places_of(np.array([70, 1, 33], np.int32), 70, multiple)
    arrays[X] = rng.standard_normal((len(arrays[LENGTHS]), 2 * size)).astype("float32")
    check_both(arrays, dtype, 2, dropout=0.2)


@pytest.mark.parametrize("dtype, size", [("float32", 16), ("bfloat16", 16), ("bfloat16", 32)])
def test_outputs_for_the_backward_pass_alone_have_no_gradient(dtype, size):
    """Two layers with bert_unread between them, in a graph: what MXNet leaves in gradients that nobody
    writes must not be read."""
    rng = np.random.default_rng(5)
    heads = 2
    arrays = random_inputs((2, 40, heads, size), rng)

    class TwoLayers(mx.gluon.HybridBlock):
        def __init__(self, unread: bool):
            super().__init__()
            self.unread = unread

        def hybrid_forward(self, F, mode, pack, pack_2, x, lengths, *others):  # noqa: N803
            def layer(x, mode):
                return F.bert_self_attention(
                    x, lengths, *others, mode, pack, pack_2, heads=heads, dtype=dtype, dropout=0.1, eps=EPS
                )

            y, *kept = layer(x, mode)
            between = F.bert_unread(mode, *kept, outputs=len(kept)) if self.unread else mode
            return layer(y, between)[0]

    found = []
    for unread in (True, False):
        network = TwoLayers(unread)
        network.hybridize()
        inputs = [mx.nd.array(array, dtype=array.dtype) for array in arrays]
        packs = [packed(*inputs[2:5], dtype=dtype), packed(inputs[8], dtype=dtype)]
        for index in FLOATS:
            inputs[index].attach_grad()
        for _ in range(2):  # the second pass has memory that the first has written to
            junk = mx.nd.full((1 << 16,), np.nan)
            junk.wait_to_read()
            del junk
            mx.random.seed(9)
            with mx.autograd.record():
                y = network(mx.nd.array([TRAIN]), *packs, *inputs)
            y.backward()
        found.append([y.asnumpy(), *(inputs[index].grad.asnumpy() for index in FLOATS)])
    for one, other in zip(*found):
        assert np.isfinite(one).all()
        np.testing.assert_array_equal(one, other)
