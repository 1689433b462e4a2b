"""bert_self_attention against float64 NumPy and the four operators that it stands for; bert_unread."""

from __future__ import annotations

from functools import partial

import mxnet as mx
import numpy as np
import pytest

from bert.fused import places_of
from bert.operators import load_operators
from tests.bert.operators import test_attention
from tests.bert.operators.checking import assert_gradients_match, run
from tests.bert.operators.test_dense import factor
from tests.bert.operators.test_norm import EPS, PREDICT, TRAIN, add_norm

if not load_operators():
    pytest.skip("the operators are not built", allow_module_level=True)

# Batch, length, heads, head size: as in test_attention.py, and sizes that fill no tile.
SHAPES = [(1, 1, 1, 1), (3, 7, 2, 5), (2, 33, 3, 8), (1, 130, 2, 24), (5, 64, 2, 64), (1, 300, 1, 16)]
X, LENGTHS = 0, 1
FLOATS = [X, *range(2, 12)]  # the inputs before mode but for the lengths
QUERY_BIAS, KEY_BIAS = 5, 6


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


def packed(*weights: mx.nd.NDArray, dtype: str) -> mx.nd.NDArray:
    with mx.autograd.pause():
        return mx.nd.bert_pack(*weights, num_weights=len(weights), dtype=dtype)


def fused(*arrays, heads, dtype="float32", dropout=0.0, mode=TRAIN):
    return mx.nd.bert_self_attention(
        *arrays, mx.nd.array([mode]), packed(*arrays[2:5], dtype=dtype), packed(arrays[8], dtype=dtype),
        heads=heads, dtype=dtype, dropout=dropout, eps=EPS,
    )[0]  # fmt: skip


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


def reference(*arrays, heads):
    x, lengths, projection, bias, gamma, beta = *arrays[:2], *arrays[8:]
    qkv = np.concatenate([x @ w.T + b for w, b in zip(arrays[2:5], arrays[5:8])], axis=-1)
    context = test_attention.reference(qkv, lengths, heads)
    return add_norm(context @ projection.T, bias, x, gamma, beta)


@pytest.mark.parametrize("shape", SHAPES[1:])
def test_float32_against_float64(shape):
    rng = np.random.default_rng(1)
    arrays = random_inputs(shape, rng)
    dy = rng.standard_normal(arrays[X].shape).astype("float32")
    output, gradients = run(partial(fused, heads=shape[2]), arrays, dy, FLOATS)
    expected = partial(reference, heads=shape[2])
    doubles = [a.astype("float64") if a.dtype.kind == "f" else a for a in arrays]
    np.testing.assert_allclose(output, expected(*doubles), atol=3e-5)
    found = dict(zip(FLOATS, gradients))
    # What is added to all keys adds the same to all scores of a row, which the softmax takes away again.
    bias_of_keys = found.pop(KEY_BIAS)
    assert np.abs(bias_of_keys).max() <= 1e-4 * max(1, np.abs(found[QUERY_BIAS]).max())
    assert_gradients_match(expected, arrays, list(found.values()), list(found), dy, rng, 5e-4)


@pytest.mark.parametrize("shape", SHAPES[1:])
def test_bfloat16_rounds_the_factors_and_nothing_else(shape):
    rng = np.random.default_rng(2)
    arrays = random_inputs(shape, rng)
    x, lengths, projection, bias, gamma, beta = *arrays[:2], *arrays[8:]
    output, _ = run(partial(fused, heads=shape[2], dtype="bfloat16"), arrays)
    qkv = np.concatenate(
        [factor(x, "bfloat16") @ factor(w, "bfloat16").T + b for w, b in zip(arrays[2:5], arrays[5:8])], -1
    ).astype("float32")
    gradient = np.zeros(x.shape, "float32")
    context, _ = test_attention.low_reference(qkv, lengths, shape[2], gradient, 1.0)
    outer = factor(context.astype("float32"), "bfloat16") @ factor(projection, "bfloat16").T
    test_attention.assert_close_but_for_rounding(output, add_norm(outer, bias, x, gamma, beta))


def assert_same(results: list[tuple]) -> None:
    (output, gradients), (expected, expected_gradients) = results
    np.testing.assert_allclose(output, expected, atol=1e-5)
    for index, (gradient, other) in enumerate(zip(gradients, expected_gradients)):
        assert gradient.shape == other.shape
        assert np.abs(gradient - other).max() <= 2e-5 * max(np.abs(other).max(), 1e-3), FLOATS[index]


@pytest.mark.parametrize("mode, dropout", [(TRAIN, 0.0), (TRAIN, 0.3), (PREDICT, 0.3)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_same_as_four_operators(shape, dtype, mode, dropout):
    rng = np.random.default_rng(3)
    arrays = random_inputs(shape, rng)
    if shape[0] > 2:
        arrays[LENGTHS][-1] = 0
    dy = rng.standard_normal(arrays[X].shape).astype("float32")
    results = []
    for operator in (fused, one_by_one):
        mx.random.seed(7)
        options = {"heads": shape[2], "dtype": dtype, "dropout": dropout, "mode": mode}
        results.append(run(partial(operator, **options), arrays, dy, FLOATS))
    assert_same(results)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("multiple", [1, 16])
def test_sequences_end_to_end(multiple, dtype):
    rng = np.random.default_rng(4)
    arrays = random_inputs((1, 1, 2, 24), rng)
    arrays[LENGTHS] = places_of(np.array([70, 1, 33], np.int32), 70, multiple)
    arrays[X] = rng.standard_normal((len(arrays[LENGTHS]), 48)).astype("float32")
    dy = rng.standard_normal(arrays[X].shape).astype("float32")
    results = []
    for operator in (fused, one_by_one):
        mx.random.seed(8)
        options = {"heads": 2, "dtype": dtype, "dropout": 0.2}
        results.append(run(partial(operator, **options), arrays, dy, FLOATS))
    assert_same(results)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_outputs_for_the_backward_pass_alone_have_no_gradient(dtype):
    """Two layers with bert_unread between them, in a graph: what MXNet leaves in gradients that nobody
    writes must not be read."""
    rng = np.random.default_rng(5)
    heads = 2
    arrays = random_inputs((2, 40, heads, 16), rng)
    packs = {
        "packed": partial(mx.nd.bert_pack, num_weights=3),
        "packed_2": partial(mx.nd.bert_pack, num_weights=1),
    }

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
        given = [
            mx.nd.array([TRAIN]),
            packs["packed"](*inputs[2:5], dtype=dtype),
            packs["packed_2"](inputs[8], dtype=dtype),
        ]
        for index in FLOATS:
            inputs[index].attach_grad()
        for _ in range(2):  # the second pass has memory that the first has written to
            junk = mx.nd.full((1 << 16,), np.nan)
            junk.wait_to_read()
            del junk
            mx.random.seed(9)
            with mx.autograd.record():
                y = network(*given, *inputs)
            y.backward()
        found.append([y.asnumpy(), *(inputs[index].grad.asnumpy() for index in FLOATS)])
    for one, other in zip(*found):
        assert np.isfinite(one).all()
        np.testing.assert_array_equal(one, other)


def test_wrong_shapes_are_errors():
    arrays = random_inputs((2, 4, 2, 4), np.random.default_rng(6))
    arrays[8] = arrays[8][:, :5].copy()
    with pytest.raises(mx.MXNetError):
        run(partial(fused, heads=2), arrays)
    with pytest.raises(mx.MXNetError):
        run(partial(fused, heads=3), random_inputs((2, 4, 2, 4), np.random.default_rng(6)))
