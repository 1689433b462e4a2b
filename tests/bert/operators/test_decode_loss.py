"""bert_decode_loss against a float64 softmax in NumPy, with factors rounded in the same places."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from tests.bert.operators.checking import assert_close, rounded, run

# Rows, units, words, share of the rows that count. 9000 words are several chunks.
SHAPES = [(1, 5, 7, 1), (3, 1, 1, 1), (17, 16, 100, 0.5), (40, 33, 5003, 0.6), (64, 32, 9000, 1)]


def arrays(rng: np.random.Generator, rows: int, units: int, words: int, share: float) -> list[np.ndarray]:
    """Hidden states, word weights, bias, labels and weights of positions."""
    hidden = rng.standard_normal((rows, units)).astype(np.float32)
    word_weight = (2 / units**0.5 * rng.standard_normal((words, units))).astype(np.float32)
    bias = rng.standard_normal(words).astype(np.float32)
    labels = rng.integers(0, words, rows).astype(np.int32)
    weights = ((rng.random(rows) < share) * rng.uniform(0.5, 2, rows)).astype(np.float32)
    weights[0] = 1
    return [hidden, word_weight, bias, labels, weights]


def cross_entropy(hidden, word_weight, bias, labels, weights) -> np.ndarray:
    scores = hidden @ word_weight.T + bias
    highest = scores.max(1)
    sums = np.exp(scores - highest[:, None]).sum(1)
    return weights * (np.log(sums) + highest - scores[np.arange(len(labels)), labels])


def exact(*inputs: mx.nd.NDArray) -> list[mx.nd.NDArray]:
    return mx.nd.bert_decode_loss(*inputs, dtype="float32")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rows, units, words, share", SHAPES)
def test_losses_and_gradients(rows, units, words, share, dtype):
    rng = np.random.default_rng(1)
    hidden, word_weight, bias, labels, weights = given = arrays(rng, rows, units, words, share)
    gradient = rng.standard_normal(rows).astype(np.float32)
    losses, (d_hidden, d_weight, d_bias) = run(
        lambda *inputs: mx.nd.bert_decode_loss(*inputs, dtype=dtype), given, gradient, range(3)
    )
    factor = rounded if dtype == "bfloat16" else np.asarray
    hidden_factor, weight_factor = factor(hidden).astype(np.float64), factor(word_weight).astype(np.float64)
    assert_close(losses, cross_entropy(hidden_factor, weight_factor, bias, labels, weights))

    # The gradient by the scores is E * scale, E is what the products round.
    scores = hidden_factor @ weight_factor.T + bias
    exponentials = np.exp(scores - scores.max(1, keepdims=True))
    sums = exponentials.sum(1)
    exponentials[np.arange(rows), labels] -= sums
    scale = (gradient * weights / sums)[:, None]
    # Where float32 and float64 lie on two sides of a tie, they round apart: 2^-8 of one term.
    tolerance = 5e-6 if dtype == "float32" else 1e-4
    products = factor(exponentials).astype(np.float64)
    assert_close(d_hidden, scale * (products @ weight_factor), tolerance)
    assert_close(d_weight, products.T @ factor(scale * hidden).astype(np.float64), tolerance)
    assert_close(d_bias, (exponentials * scale).sum(0), 5e-6)


@pytest.mark.parametrize("rows", [1, 20])
def test_no_row_counts(rows):
    given = arrays(np.random.default_rng(3), rows, 8, 11, 1)
    given[0][:] = np.nan  # is not even looked at
    given[3][:] = -1
    given[4][:] = 0
    losses, gradients = run(exact, given, np.ones(rows, np.float32), range(3))
    assert (losses == 0).all()
    assert all((gradient == 0).all() for gradient in gradients)


def test_rows_that_do_not_count_change_nothing():
    rng = np.random.default_rng(4)
    given = arrays(rng, 50, 16, 300, 0.5)
    counts = given[4] != 0
    given[0][~counts] = np.nan
    given[3][~counts] = -1
    gradient = rng.standard_normal(50).astype(np.float32)
    losses, gradients = run(exact, given, gradient, range(3))
    few = [given[0][counts], given[1], given[2], given[3][counts], given[4][counts]]
    few_losses, few_gradients = run(exact, few, gradient[counts], range(3))
    assert (losses[counts] == few_losses).all() and (losses[~counts] == 0).all()
    assert (gradients[0][counts] == few_gradients[0]).all() and (gradients[0][~counts] == 0).all()
    assert (gradients[1] == few_gradients[1]).all() and (gradients[2] == few_gradients[2]).all()


def test_hits_take_the_first_of_equal_scores():
    hidden, word_weight, bias = mx.nd.ones((4, 3)), mx.nd.zeros((6000, 3)), mx.nd.zeros((6000,))
    bias[[17, 2500, 5999]] = 1
    labels, weights = mx.nd.array([17, 2500, 0, 17], dtype="int32"), mx.nd.array([1, 1, 1, 0.5])
    hits = exact(hidden, word_weight, bias, labels, weights)[1]
    assert (hits.asnumpy() == [1, 0, 0, 0.5]).all()


def test_large_scores_do_not_overflow():
    hidden, word_weight = mx.nd.array([[1000.0], [-1000.0]]), mx.nd.array([[1.0], [-1.0]])
    labels = mx.nd.array([0, 0], dtype="int32")
    losses = exact(hidden, word_weight, mx.nd.zeros(2), labels, mx.nd.ones(2))[0]
    assert (losses.asnumpy() == [0, 2000]).all()


@pytest.mark.parametrize("where", [0, 1, 2])
def test_what_is_no_number_reaches_the_loss(where):
    given = arrays(np.random.default_rng(5), 4, 3, 10, 1)
    given[where].flat[0] = np.nan
    losses, gradients = run(exact, given, np.ones(4, np.float32), range(3))
    assert np.isnan(losses).any()
    assert all(np.isnan(gradient).any() for gradient in gradients)


def test_wrong_inputs_are_errors():
    hidden, word_weight, bias, labels, weights = (
        mx.nd.array(a, dtype=a.dtype) for a in arrays(np.random.default_rng(7), 4, 3, 10, 1)
    )
    for wrong in (-1, 10):
        labels[2] = wrong
        with pytest.raises(mx.MXNetError, match="label"):
            exact(hidden, word_weight, bias, labels, weights)[0].wait_to_read()
    with pytest.raises(mx.MXNetError):
        exact(hidden, mx.nd.ones((10, 4)), bias, labels, weights)
