"""bert_embed against float64 NumPy, finite differences and MXNet's own operators."""

from __future__ import annotations

from functools import partial

import mxnet as mx
import numpy as np
import pytest

from bert.operators import load_operators
from tests.bert.operators.checking import assert_gradients_match, fails, kept_scale, run

if not load_operators():
    pytest.skip("the operators are not built", allow_module_level=True)

EPS = 1e-12
PREDICT, TRAIN = 1, 2  # what F.Dropout(F.ones((1,)), p=0.5) can be
# batch, length, units, vocabulary, positions
SIZES = [(1, 1, 3, 2, 1), (2, 5, 7, 11, 9), (3, 4, 16, 300, 4), (2, 33, 65, 40, 50), (5, 8, 128, 1000, 64)]
INPUTS = 7  # without the mode
DIFFERENTIABLE = range(2, INPUTS)


def random_inputs(sizes: tuple, rng: np.random.Generator, types: int = 2) -> list[np.ndarray]:
    """input_ids, segment_ids, word, segment, position, gamma, beta; many tokens occur repeatedly."""
    batch, length, units, vocabulary, positions = sizes
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


@pytest.mark.parametrize("dropout, mode", [(0.0, TRAIN), (0.9, PREDICT)])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_without_dropout(sizes, dropout, mode):
    rng = np.random.default_rng(0)
    arrays = random_inputs(sizes, rng)
    output_gradient = rng.standard_normal((*sizes[:2], sizes[2])).astype("float32")

    operator = partial(fused, dropout=dropout, mode=mode)
    output, gradients = run(operator, arrays, output_gradient, DIFFERENTIABLE)

    np.testing.assert_allclose(output, reference(*arrays), atol=1e-5)
    assert_gradients_match(reference, arrays, gradients, DIFFERENTIABLE, output_gradient, rng, 5e-4)
    absent = np.setdiff1d(np.arange(sizes[3]), arrays[0])
    assert (gradients[0][absent] == 0).all()
    assert (gradients[2][sizes[1] :] == 0).all()


@pytest.mark.parametrize("types", [1, 3, 16])
def test_other_numbers_of_token_types(types):
    rng = np.random.default_rng(8)
    arrays = random_inputs((4, 19, 24, 50, 20), rng, types)
    output_gradient = rng.standard_normal((4, 19, 24)).astype("float32")
    output, gradients = run(fused, arrays, output_gradient, DIFFERENTIABLE)
    np.testing.assert_allclose(output, reference(*arrays), atol=1e-5)
    assert gradients[1].shape == (types, 24)
    assert_gradients_match(reference, arrays, gradients, DIFFERENTIABLE, output_gradient, rng, 5e-4)


def test_with_dropout():
    rng = np.random.default_rng(1)
    sizes, rate = (3, 9, 65, 20, 12), 0.4
    arrays = random_inputs(sizes, rng)
    output_gradient = rng.standard_normal((3, 9, 65)).astype("float32")
    # Tables of ones and zeros: what was kept is above the mean.
    plain = [arrays[0], arrays[1], *(np.zeros_like(a) for a in arrays[2:])]
    plain[2] += 1
    plain[5] += 1
    mx.random.seed(5)
    normalised, _ = run(partial(fused, dropout=rate), plain)
    factors = np.where(normalised > 0, kept_scale(rate), 0.0)
    assert 0.3 < (factors == 0).mean() < 0.5

    mx.random.seed(5)
    output, gradients = run(partial(fused, dropout=rate), arrays, output_gradient, DIFFERENTIABLE)

    dropped = partial(reference, factors=factors)
    np.testing.assert_allclose(output, dropped(*arrays), atol=1e-5)
    assert_gradients_match(dropped, arrays, gradients, DIFFERENTIABLE, output_gradient, rng, 5e-4)


def test_seeds_repeat_the_dropped_elements():
    arrays = [
        mx.nd.array(a, dtype=a.dtype) for a in random_inputs((2, 9, 32, 20, 12), np.random.default_rng(2))
    ]
    outputs = []
    for seed in (3, 3, 4):
        mx.random.seed(seed)
        outputs.append([fused(*arrays, dropout=0.5).asnumpy() for _ in range(2)])
    np.testing.assert_array_equal(outputs[0], outputs[1])
    assert np.abs(outputs[0][0] - outputs[0][1]).max() > 0.1
    assert np.abs(outputs[0][0] - outputs[2][0]).max() > 0.1


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


def test_the_same_bits_each_time():
    rng = np.random.default_rng(3)
    arrays = random_inputs((7, 31, 77, 90, 31), rng)
    dy = rng.standard_normal((7, 31, 77)).astype("float32")
    results = []
    for _ in range(4):
        mx.random.seed(9)
        output, gradients = run(partial(fused, dropout=0.3), arrays, dy, DIFFERENTIABLE)
        results.append([output, *gradients])
    for again in results[1:]:
        for first, other in zip(results[0], again):
            np.testing.assert_array_equal(first, other)


class Embedding(mx.gluon.HybridBlock):
    """GluonNLP's BERTModel and BERTEncoder before the first layer, fused or by MXNet's operators."""

    def __init__(self, fused: bool):
        super().__init__()
        self._fused = fused
        shapes = {"word": (30, 48), "segment": (2, 48), "position": (20, 48), "gamma": (48,), "beta": (48,)}
        for index, (name, shape) in enumerate(shapes.items()):
            value = mx.nd.array(np.random.default_rng(index).standard_normal(shape))
            setattr(self, name, self.params.get(name, shape=shape, init=mx.init.Constant(value)))

    def hybrid_forward(self, F, ids, segments, word, segment, position, gamma, beta):
        if self._fused:
            mode = F.Dropout(F.ones((1,)), p=0.5)
            embed = F.bert_embed
            return embed(ids, segments, word, segment, position, gamma, beta, mode, dropout=0, eps=EPS)[0] * 1
        x = F.Embedding(ids, word, 30, 48) + F.Embedding(segments, segment, 2, 48)
        steps = F.contrib.arange_like(x, axis=1)
        x = F.broadcast_add(x, F.expand_dims(F.Embedding(steps, position, 20, 48), axis=0))
        return F.LayerNorm(x, gamma, beta, eps=EPS)


def test_hybridized_block_gives_what_mxnets_operators_give():
    rng = np.random.default_rng(4)
    ids, segments = (mx.nd.array(rng.integers(0, end, (3, 7)), dtype="int32") for end in (30, 2))
    results = []
    for fused_ in (True, False):
        block = Embedding(fused_)
        block.initialize()
        block.hybridize(static_alloc=True, static_shape=True)
        for _ in range(2):  # the first call traces the block, the second runs in the memory planned for it
            with mx.autograd.record():
                output = block(ids, segments)
            output.backward(mx.nd.cos(mx.nd.arange(output.size)).reshape(output.shape))
        gradients = [parameter.grad() for parameter in block.collect_params().values()]
        results.append([array.asnumpy() for array in (output, *gradients)])
    for ours, theirs in zip(*results):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize(
    "index, value, message",
    [
        (0, 11, "token 11 at [1, 2] is outside [0, 11)"),
        (0, -1, "token -1 at [1, 2]"),
        (1, 2, "segment 2 at [1, 2] is outside [0, 2)"),
    ],
)
def test_indices_outside_the_tables_are_errors(index, value, message):
    arrays = random_inputs((2, 5, 7, 11, 9), np.random.default_rng(5))
    arrays[index][1, 2] = value
    with pytest.raises(mx.MXNetError) as caught:
        run(fused, arrays)
    assert message in str(caught.value)
    with fails("segment" if index else "token"):
        run(fused, arrays, np.ones((2, 5, 7), np.float32), DIFFERENTIABLE)


def test_shapes_that_do_not_fit_are_errors():
    arrays = random_inputs((2, 5, 7, 11, 4), np.random.default_rng(5))
    with pytest.raises(mx.MXNetError):
        run(fused, arrays)  # longer sequences than positions
    arrays = random_inputs((2, 5, 7, 11, 9), np.random.default_rng(5))
    arrays[3] = arrays[3][:, :6]
    with pytest.raises(mx.MXNetError):
        run(fused, arrays)
