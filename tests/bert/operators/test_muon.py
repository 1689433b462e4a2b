"""bert_muon against its formulas and singular values in float64."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from tests.bert.operators.checking import fails, low, same_in_variants

SHAPES = [(1, 1), (1, 5), (9, 9), (40, 7), (3, 40), (33, 70), (64, 64), (256, 64), (64, 256), (130, 100)]
NUMBERS = {"lr": 0.02, "rescale": 0.5, "momentum": 0.9, "weight_decay": 0.3, "factor": 1.7}


def orthogonal(matrix: np.ndarray) -> np.ndarray:
    """Jordan's iteration, by the singular values: their polynomial is taken, their vectors stay."""
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    values = values / np.linalg.norm(values)
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return left @ np.diag(values) @ right


def rounding(matrix: np.ndarray) -> np.ndarray:
    """The same by products whose factors are rounded to bfloat16."""
    x = matrix / np.linalg.norm(matrix)
    for _ in range(5):
        factor = low(x).T if len(x) > x.shape[1] else low(x)
        gram = factor @ factor.T
        polynomial = low(-4.7750 * gram + low(2.0315 * gram) @ low(gram))
        x = 3.4445 * x + (factor.T @ polynomial if len(x) > x.shape[1] else polynomial @ factor)
    return x


@pytest.mark.parametrize("size", [1e-12, 1.0, 1e12])
def test_it_follows_the_reference(size: float) -> None:
    """All matrices in one call; from a weight of zeros, too, which shows what others are moved by."""
    drawn = np.random.default_rng(1)
    weights, gradients, means = (
        [drawn.normal(size=shape).astype(np.float32) * each for shape in SHAPES]
        for each in (np.float32(1), np.float32(size), np.float32(size))
    )
    found, zero = (
        [mx.nd.array(each) for each in (*start, *gradients, *means)]
        for start in (weights, [np.zeros(shape) for shape in SHAPES])
    )
    norms, _ = (
        mx.nd.bert_muon(*each, num_matrices=len(SHAPES), **NUMBERS).asnumpy() for each in (found, zero)
    )
    for i, (shape, weight) in enumerate(zip(SHAPES, weights)):
        mean = 0.9 * means[i].astype(np.float64) + 0.5 * gradients[i]
        u = 0.9 * mean + 0.5 * gradients[i]
        np.testing.assert_allclose(norms[i], np.linalg.norm(u), rtol=1e-5)
        moved, step = -zero[i].asnumpy(), 0.02 * 1.7 * np.sqrt(max(shape))
        # Here and there a sum is rounded to the other side, which the iteration enlarges.
        exact = 0.01 if weight.size <= 300 else 0.04
        for expected, tolerance in ((rounding(u), exact), (orthogonal(u), 0.06)):
            assert np.linalg.norm(moved / step - expected) < tolerance * np.linalg.norm(expected), shape
        expected = [(1 - 0.02 * 0.3) * weight - moved, gradients[i], mean]
        for array, value in zip(found[i :: len(SHAPES)], expected):
            np.testing.assert_allclose(array.asnumpy(), value, rtol=2e-6, atol=1e-6 * np.abs(value).max())


def test_zeros_stay_zeros() -> None:
    weight, *others = (mx.nd.zeros((5, 3)) for _ in range(3))
    assert mx.nd.bert_muon(weight, *others, num_matrices=1, **NUMBERS).asscalar() == 0
    assert not weight.asnumpy().any()


@same_in_variants
@pytest.mark.parametrize(
    "shapes, dtype, message",
    [
        ([(2, 3, 4)] * 3, "float32", "weights must have two axes"),
        ([(2, 3), (3, 2), (2, 3)], "float32", "a matrix's weight, gradient and mean differ in shape"),
        ([(2, 3), (2, 3), (3, 2)], "float32", "a matrix's weight, gradient and mean differ in shape"),
        ([(2, 3)] * 3, "float64", "all inputs must be float32"),
    ],
)
def test_wrong_input_is_refused(shapes: list[tuple[int, ...]], dtype: str, message: str) -> None:
    arrays = [mx.nd.ones(shape, dtype=dtype) for shape in shapes]
    with fails(message):
        mx.nd.bert_muon(*arrays, num_matrices=1, **NUMBERS).wait_to_read()
