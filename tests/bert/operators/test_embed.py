"""bert_embed: its bounds, and tables that are wide; test_every_operator.py has its values and gradients."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from tests.bert.operators.checking import EPS, TRAIN, fails, run

# batch, length, units, vocabulary, positions, token types
SIZES = [(1, 1, 3, 2, 1, 2), (2, 5, 7, 11, 9, 2), (3, 4, 16, 300, 4, 2), (2, 33, 65, 40, 50, 2)]
SIZES += [(4, 19, 24, 50, 20, 1), (4, 19, 24, 50, 20, 16), (5, 8, 128, 1000, 64, 2)]
INPUTS = 7  # without the mode
DIFFERENTIABLE = range(2, INPUTS)


def random_inputs(sizes: tuple, rng: np.random.Generator) -> list[np.ndarray]:
    """input_ids, segment_ids, word, segment, position, gamma, beta; many tokens occur repeatedly."""
    batch, length, units, vocabulary, positions, types = sizes
    ids = np.minimum(rng.geometric(0.2, (batch, length)) - 1, vocabulary - 1).astype("int32")
    ids[0, 0] = vocabulary - 1
    segments = rng.integers(0, types, (batch, length)).astype("int32")
    shapes = ((vocabulary, units), (types, units), (positions, units), (units,), (units,))
    return [ids, segments, *(rng.standard_normal(shape).astype("float32") for shape in shapes)]


def reference(ids, segments, word, segment, position, gamma, beta, factors=1.0):
    x = (word[ids] + segment[segments] + position[: ids.shape[1]]).astype("float64") * factors
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + EPS) * gamma + beta


def fused(*arrays: mx.nd.NDArray, dropout: float = 0.0, mode: int = TRAIN) -> mx.nd.NDArray:
    return mx.nd.bert_embed(*arrays, mx.nd.array([mode]), dropout=dropout, eps=EPS)[0]


def test_every_row_of_a_wide_table_is_written():
    """Also those that the streaming stores do not reach: rows of 5 floats begin anywhere in a cache line."""
    vocabulary, units = 70_001, 5
    word = mx.nd.ones((vocabulary, units))
    word.attach_grad()
    word.grad[:] = np.nan
    ids = mx.nd.array([[7, 7, 70_000]], dtype="int32")
    others = [mx.nd.random.normal(shape=shape) for shape in ((2, units), (3, units), (units,), (units,))]
    with mx.autograd.record():
        output = fused(ids, mx.nd.zeros((1, 3), dtype="int32"), word, *others)
    output.backward(mx.nd.random.normal(shape=output.shape))
    gradient = word.grad.asnumpy()
    assert np.flatnonzero(gradient.any(axis=1)).tolist() == [7, 70_000]


@pytest.mark.parametrize(
    "index, value, message",
    [
        (0, 11, "token 11 at [1, 2] is outside [0, 11)"),
        (0, -1, "token -1 at [1, 2]"),
        (1, 2, "segment 2 at [1, 2] is outside [0, 2)"),
    ],
)
def test_indices_outside_the_tables_are_errors(index, value, message):
    arrays = random_inputs((2, 5, 7, 11, 9, 2), np.random.default_rng(5))
    arrays[index][1, 2] = value
    with pytest.raises(mx.MXNetError) as caught:
        run(fused, arrays)
    assert message in str(caught.value)
    with fails("segment" if index else "token"):
        run(fused, arrays, np.ones((2, 5, 7), np.float32), DIFFERENTIABLE)


def test_sequences_longer_than_the_positions_are_errors():
    with pytest.raises(mx.MXNetError):
        run(fused, random_inputs((2, 5, 7, 11, 4, 2), np.random.default_rng(5)))
