"""bert_attention against float64 NumPy; test_every_operator.py has its gradients by finite differences."""

from __future__ import annotations

from typing import Callable

import mxnet as mx
import numpy as np
import pytest

from tests.bert.operators.checking import PREDICT, TRAIN, assert_gradients_match, kept_scale, low, run

# batch, length, heads, head size: typical ones, sizes of 1, below, between and above the vectors' widths.
SHAPES = [
    (2, 128, 2, 64),
    (1, 1, 1, 1),
    (3, 7, 2, 5),
    (2, 33, 3, 8),
    (2, 50, 1, 32),
    (1, 130, 2, 80),
    (1, 70, 1, 17),
    (1, 65, 1, 130),
    (1, 600, 1, 16),
]


def split(qkv: np.ndarray, heads: int) -> list[np.ndarray]:
    """Queries, keys and values, each (batch, heads, length, size)."""
    batch, length, columns = qkv.shape
    return list(qkv.reshape(batch, length, 3, heads, columns // 3 // heads).transpose(2, 0, 3, 1, 4))


def reference(
    qkv: np.ndarray, lengths: np.ndarray, heads: int, factors: np.ndarray | float = 1.0
) -> np.ndarray:
    """Attention in NumPy; `factors` are dropout's, broadcast to (batch, heads, length, length)."""
    query, key, value = split(qkv, heads)
    exists = (np.arange(qkv.shape[1]) < lengths[:, None])[:, None, None, :]
    scores = np.where(exists, query @ key.swapaxes(2, 3) / np.sqrt(query.shape[-1]), -1e30)
    numerators = np.exp(scores - scores.max(axis=-1, keepdims=True)) * exists
    denominators = numerators.sum(axis=-1, keepdims=True)
    context = (factors * numerators / np.where(denominators == 0, 1, denominators)) @ value
    return context.transpose(0, 2, 1, 3).reshape(qkv.shape[0], qkv.shape[1], -1)


def attend(
    qkv: mx.nd.NDArray,
    lengths: mx.nd.NDArray,
    heads: int,
    dropout: float = 0.0,
    mode: int = TRAIN,
    dtype: str = "float32",
):
    return mx.nd.bert_attention(qkv, lengths, mx.nd.array([mode]), heads=heads, dropout=dropout, dtype=dtype)


def random_inputs(shape: tuple, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """(qkv, lengths); the first sequence has full length and, if there are three, the last has none."""
    batch, length, heads, size = shape
    lengths = rng.integers(1, length + 1, batch).astype(np.int32)
    lengths[0] = length
    if batch > 2:
        lengths[-1] = 0
    return rng.standard_normal((batch, length, 3 * heads * size)).astype(np.float32), lengths


@pytest.mark.parametrize(
    "dtype, value, first, end",
    [("float32", 1e4, 0, 17), ("bfloat16", np.nan, 24, 40)],  # the latter in keys and values, not queries
)
def test_what_stands_behind_the_length_does_not_matter(dtype, value, first, end):
    rng = np.random.default_rng(3)
    qkv, _ = random_inputs((2, 40, 2, 12), rng)
    lengths = np.array([17, 40], np.int32)
    spoiled = qkv.copy()
    spoiled[0, 17:, first:] = value
    gradient = rng.standard_normal((2, 40, 24)).astype(np.float32)
    gradient[0, end:] = 0
    (one, (one_gradient,)), (two, (two_gradient,)) = (
        run(lambda q, n: attend(q, n, 2, dtype=dtype), [array, lengths], gradient, [0])
        for array in (qkv, spoiled)
    )
    np.testing.assert_array_equal(one[0, :end], two[0, :end])
    np.testing.assert_array_equal(one_gradient[0, :end], two_gradient[0, :end])
    assert np.isfinite(two).all() and np.isfinite(two_gradient).all()


def test_large_scores_do_not_overflow():
    qkv = np.random.default_rng(4).standard_normal((1, 20, 3 * 16)).astype(np.float32) * 100
    lengths, output_gradient = np.array([20], np.int32), np.ones((1, 20, 16), np.float32)
    context, (gradient,) = run(lambda q, n: attend(q, n, 1), [qkv, lengths], output_gradient, [0])
    np.testing.assert_allclose(context, reference(qkv.astype(np.float64), lengths, 1), rtol=0, atol=0.2)
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_nan_is_not_hidden(dtype):
    rng = np.random.default_rng(12)
    for column in (0, 24, 48):  # of queries, keys, values
        qkv, lengths = random_inputs((2, 40, 2, 12), rng)
        qkv[0, 3, column] = np.nan
        gradient = rng.standard_normal((2, 40, 24)).astype(np.float32)
        context, (found,) = run(lambda q, n: attend(q, n, 2, dtype=dtype), [qkv, lengths], gradient, [0])
        assert np.isnan(context[0, 3, : 1 if column == 48 else 12]).all() and np.isnan(found).any()


def unit_values(batch: int, length: int, heads: int, rng: np.random.Generator) -> np.ndarray:
    """qkv (batch, length, 3 * heads * length) whose values are unit vectors: context = probabilities."""
    qkv = rng.standard_normal((batch, length, 3, heads, length)).astype(np.float32)
    qkv[:, :, :2] *= 0.5
    qkv[:, :, 2] = np.eye(length)[None, :, None]
    return qkv.reshape(batch, length, -1)


def factors_of(qkv: np.ndarray, lengths: np.ndarray, heads: int, context: np.ndarray) -> np.ndarray:
    """Dropout's factors (batch, heads, length, length), from unit_values() and their context."""
    batch, length = qkv.shape[:2]
    kept = context.reshape(batch, length, heads, length)
    plain = reference(qkv.astype(np.float64), lengths, heads).reshape(kept.shape)
    return np.divide(kept, plain, out=np.zeros(kept.shape), where=plain > 0).transpose(0, 2, 1, 3)


def assert_dropped_independently(kept: np.ndarray, rate: float, pairs: np.ndarray) -> None:
    """Of the pairs that there are, each at the rate, and any two rows, columns, heads and sequences both at
    its square."""
    assert abs((~kept[pairs]).mean() - rate) < 4.5 * np.sqrt(rate * (1 - rate) / pairs.sum())
    for axis in range(4):
        both = (~kept & ~np.roll(kept, 1, axis=axis))[pairs & np.roll(pairs, 1, axis=axis)]
        assert abs(both.mean() - rate**2) < 4.5 * rate / np.sqrt(len(both))


def test_dropout_drops_at_its_rate_the_same_in_both_passes_and_keeps_the_mean():
    rng = np.random.default_rng(6)
    batch, length, heads, rate = 4, 96, 3, 0.1
    qkv, lengths = unit_values(batch, length, heads, rng), np.full(batch, length, np.int32)
    inputs = mx.nd.array(qkv), mx.nd.array(lengths, dtype="int32")

    def mask(seed: int | None) -> np.ndarray:
        if seed is not None:
            mx.random.seed(seed)
        return factors_of(qkv, lengths, heads, attend(*inputs, heads, rate)[0].asnumpy())

    one = mask(1)
    kept = one > 0.5
    np.testing.assert_allclose(one[kept], kept_scale(rate), rtol=2e-5)
    assert (one[~kept] == 0).all()
    assert_dropped_independently(kept, rate, np.ones(kept.shape, bool))
    second = mask(None) > 0.5  # of the next step
    assert abs((~kept & ~second).mean() - rate**2) < 4.5 * rate / np.sqrt(kept.size)
    np.testing.assert_array_equal(mask(1), one)
    assert (mask(2) > 0.5).tobytes() not in (kept.tobytes(), second.tobytes())
    output_gradient = rng.standard_normal((batch, length, heads * length)).astype(np.float32)
    mx.random.seed(1)
    _, gradients = run(lambda q, n: attend(q, n, heads, rate), [qkv, lengths], output_gradient, [0])

    def function(q: np.ndarray, n: np.ndarray) -> np.ndarray:
        return reference(q, n, heads, kept * kept_scale(rate))

    assert_gradients_match(function, [qkv, lengths], gradients, [0], output_gradient, rng)
    np.testing.assert_allclose(
        attend(*inputs, heads, rate, PREDICT)[0].asnumpy(),
        reference(qkv.astype(np.float64), lengths, heads),
        rtol=0,
        atol=5e-6,
    )


def rounded_reference(
    qkv: np.ndarray,
    lengths: np.ndarray,
    heads: int,
    factors: np.ndarray | float = 1.0,
    near: Callable[[np.ndarray], np.ndarray] = low,
    kept: Callable[[np.ndarray], np.ndarray] = np.asarray,
) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
    """Context, and the gradient of qkv as a function of the context's; in float64 but for the factors of
    products, which are `near`, and the context as it is `kept`.

    `factors` are dropout's, broadcast to (batch, heads, length, length); scaled, as in reference()."""
    batch, length, columns = qkv.shape
    root = 1 / np.sqrt(columns / 3 / heads)
    query, key, value = split(qkv.astype(float), heads)
    query, key, value = near(np.float32(root) * query), near(key), near(value)
    exists = (np.arange(length) < lengths[:, None])[:, None, None, :]
    scores = np.where(exists, query @ key.swapaxes(2, 3), -1e30)
    numerators = np.exp(scores - scores.max(axis=-1, keepdims=True)) * exists
    denominators = np.maximum(numerators.sum(axis=-1, keepdims=True), 1e-30)
    scale = float(np.max(factors)) or 1.0
    context = kept(near(factors / scale * numerators) @ value * scale / denominators)
    probabilities = numerators / denominators

    def backward(output_gradient: np.ndarray) -> np.ndarray:
        gradient = near(output_gradient.reshape(batch, length, heads, -1).transpose(0, 2, 1, 3).astype(float))
        mean = (gradient * context).sum(axis=-1, keepdims=True)
        of_scores = near(probabilities * (factors * (gradient @ value.swapaxes(2, 3)) - mean))
        parts = [
            root * of_scores @ key,
            of_scores.swapaxes(2, 3) @ query,
            near(factors * probabilities).swapaxes(2, 3) @ gradient,
        ]
        return np.stack(parts).transpose(1, 3, 0, 2, 4).reshape(qkv.shape)

    return context.transpose(0, 2, 1, 3).reshape(batch, length, -1), backward


def assert_close_but_for_rounding(found: np.ndarray, expected: np.ndarray) -> None:
    """Equality, but for the few factors that float32 and float64 round to different neighbours."""
    errors, size = np.abs(found - expected), np.abs(expected).max()
    assert errors.max() <= size * 2**-8 + 1e-6
    assert np.mean(errors) <= size * 1e-5 + 1e-7


@pytest.mark.parametrize(
    "shape, rate",
    [
        ((2, 512, 2, 64), 0.0),
        *((shape, rate) for shape in (*SHAPES, (1, 300, 2, 64), (1, 150, 1, 33)) for rate in (0.0, 0.3)),
    ],
)
def test_in_bfloat16(shape, rate):
    rng = np.random.default_rng(10)
    (batch, length, heads, _), (qkv, lengths) = shape, random_inputs(shape, rng)
    output_gradient = rng.standard_normal((*qkv.shape[:2], qkv.shape[2] // 3)).astype(np.float32)
    factors: np.ndarray | float = 1.0
    if rate:  # the factors of the same shape, seen through float32 and unit values
        units = unit_values(batch, length, heads, rng)
        mx.random.seed(11)
        seen = attend(mx.nd.array(units), mx.nd.array(lengths, dtype="int32"), heads, rate)[0].asnumpy()
        factors = (factors_of(units, lengths, heads, seen) > 0.5) * kept_scale(rate)
        mx.random.seed(11)
    context, (gradient,) = run(
        lambda q, n: attend(q, n, heads, rate, dtype="bfloat16"), [qkv, lengths], output_gradient, [0]
    )
    expected, backward = rounded_reference(qkv, lengths, heads, factors)
    assert_close_but_for_rounding(context, expected)
    for part, wanted in zip(np.split(gradient, 3, axis=2), np.split(backward(output_gradient), 3, axis=2)):
        assert_close_but_for_rounding(part, wanted)


@pytest.mark.parametrize(
    "attributes, shape, message",
    [
        ({"heads": 5}, (1, 4, 48), "multiple of 3"),
        ({"heads": 0}, (1, 4, 48), "heads must be positive"),
        ({"dropout": 1.0}, (1, 4, 48), "outside [0, 1)"),
        ({"dropout": None}, (1, 4, 48), "dropout is missing"),
        ({"dtype": None}, (1, 4, 48), "dtype is missing"),
        ({"dtype": "float16"}, (1, 4, 48), "dtype is float32, bfloat16 or bfloat16x3"),
        ({}, (1, 1, 4, 48), "axes"),
    ],
)
def test_says_what_is_wrong(attributes, shape, message, capfd):
    given = {"heads": 2, "dropout": 0.1, "dtype": "float32", **attributes}
    given = {name: value for name, value in given.items() if value is not None}
    with pytest.raises(mx.MXNetError) as caught:
        lengths, mode = mx.nd.zeros((1,), dtype="int32"), mx.nd.ones((1,))
        mx.nd.bert_attention(mx.nd.zeros(shape), lengths, mode, **given)[0].wait_to_read()
    assert message in str(caught.value) + "".join(capfd.readouterr())
