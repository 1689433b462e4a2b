"""bert_gather against NumPy, finite differences and MXNet's own operators."""

from __future__ import annotations

from functools import partial

import mxnet as mx
import numpy as np
import pytest

from bert.operators import load_operators
from tests.bert.operators.checking import assert_gradients_match, run

if not load_operators():
    pytest.skip("the operators are not built", allow_module_level=True)

# batch, length, units, positions
SIZES = [(1, 1, 1, 1), (2, 5, 3, 7), (3, 20, 17, 6), (8, 33, 64, 5)]


def reference(x: np.ndarray, positions: np.ndarray, first: int) -> np.ndarray:
    if first:
        positions = np.concatenate([np.zeros_like(positions[:, :1]), positions], axis=1)
    return np.take_along_axis(x, positions[:, :, None].astype("int64"), axis=1)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_forward_and_gradient(sizes, first):
    rng = np.random.default_rng(0)
    batch, length, units, count = sizes
    x = rng.standard_normal((batch, length, units)).astype("float32")
    positions = rng.integers(0, length, (batch, count)).astype("int32")
    positions[:, count // 2 :] = 0  # padding: several times the same row
    output_gradient = rng.standard_normal((batch, first + count, units)).astype("float32")

    operator = partial(mx.nd.bert_gather, first=first)
    output, gradients = run(operator, [x, positions], output_gradient, (0,))

    expected = partial(reference, first=first)
    np.testing.assert_array_equal(output, expected(x, positions))
    assert_gradients_match(expected, [x, positions], gradients, (0,), output_gradient, rng)
    others = np.ones((batch, length), bool)
    others[np.arange(batch)[:, None], positions] = False
    if first:
        others[:, 0] = False
    assert (gradients[0][others] == 0).all()


class Gather(mx.gluon.HybridBlock):
    def __init__(self, fused: bool):
        super().__init__()
        self._fused = fused

    def hybrid_forward(self, F, x, positions):
        x = x * 2
        if self._fused:
            return F.bert_gather(x, positions, first=0) * 1
        rows = F.broadcast_mul(F.expand_dims(F.contrib.arange_like(x, axis=0), 1), F.ones_like(positions))
        return F.gather_nd(x, F.stack(rows, F.cast(positions, "float32"), axis=0))


def test_hybridized_block_gives_what_mxnets_operators_give():
    rng = np.random.default_rng(1)
    x = mx.nd.array(rng.standard_normal((3, 9, 21)))
    x.attach_grad()
    positions = rng.integers(0, 9, (3, 5))
    results = []
    for fused in (True, False):
        block = Gather(fused)
        block.hybridize(static_alloc=True, static_shape=True)
        for _ in range(2):  # the first call traces the block, the second runs in the memory planned for it
            with mx.autograd.record():
                output = block(x, mx.nd.array(positions, dtype="int32" if fused else "float32"))
            output.backward(mx.nd.cos(mx.nd.arange(output.size)).reshape(output.shape))
        results.append((output.asnumpy(), x.grad.asnumpy()))
    np.testing.assert_array_equal(results[0][0], results[1][0])
    np.testing.assert_allclose(results[0][1], results[1][1], atol=1e-6)


@pytest.mark.parametrize("position", [9, -1])
def test_positions_outside_the_sequence_are_errors(position):
    positions = mx.nd.array([[0, 1], [2, position]], dtype="int32")
    with pytest.raises(mx.MXNetError) as caught:
        mx.nd.bert_gather(mx.nd.ones((2, 9, 4)), positions, first=1).wait_to_read()
    assert f"position {position} at [1, 1] is outside [0, 9)" in str(caught.value)


def test_shapes_and_attributes_that_do_not_fit_are_errors():
    x, positions = mx.nd.ones((2, 9, 4)), mx.nd.zeros((2, 3), dtype="int32")
    for arguments in ((x, positions[:1], 0), (x[0], positions, 0), (x, positions, 2)):
        with pytest.raises(mx.MXNetError):
            mx.nd.bert_gather(*arguments[:2], first=arguments[2]).wait_to_read()
