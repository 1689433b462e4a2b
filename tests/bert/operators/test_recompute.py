"""Layers that keep what their backward pass needs, and that compute it again: the same bits."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from tests.bert.operators.checking import TRAIN, same_in_variants
from tests.bert.operators.test_squares import DTYPES, attention, feed_forward, inputs
from tests.training.tiny import make_step, random_batch, same_bits, tiny_network, weights


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [20, 32])  # of a head; on tiles 32 is packed
def test_both_operators(size, dtype):
    """One after the other, so that what the second computes again lies where the first's will."""
    results = []
    for recompute in (0, 1):
        of_attention, of_feed_forward = inputs(size)
        mode = mx.nd.array([TRAIN])
        mode.attach_grad()
        mx.random.seed(3)
        with mx.autograd.record():
            options = {"mode": mode, "dtype": dtype, "squares": 1, "recompute": recompute}
            x, *kept = attention(*of_attention, **options)
            y, *more = feed_forward(x, *of_feed_forward[1:], **options)
        y.backward(mx.nd.array(np.random.default_rng(2).standard_normal(y.shape)))
        arrays = [*of_attention, *of_feed_forward[1:], mode]
        results.append([y.asnumpy(), *(each.grad.asnumpy() for each in arrays if each.grad is not None)])
        keys = 2 * 3  # two numbers each of three draws of dropout
        assert (sum(each.size for each in (*kept, *more)) == keys + 6) == recompute
    assert len(results[0]) == 19
    for index, (one, other) in enumerate(zip(*results)):
        assert one.tobytes() == other.tobytes() and one.any(), index


@same_in_variants
@pytest.mark.parametrize("dropout, packs", [(0.2, False), (0.0, True)])
def test_steps_of_a_network(dropout, packs):
    """With micro-batches, and in a graph, which plans memory by the shapes of outputs."""
    found = []
    for recompute in (False, True):
        network = tiny_network(seed=1, dropout=dropout, model="bert_3_64_2", operators="fused", spread=0.02)
        if packs:
            network.remove_padding()
        if recompute:
            network.recompute()
        step, _ = make_step(network, accumulate=2, clip_norm=1.0)
        rng = np.random.default_rng(5)
        losses = []
        for number in range(4):
            batches = [random_batch(rng, 3, 40, 6, least_masked=1) for _ in range(2)]
            losses.append(step(number, batches, lr=0.01).loss)
        found.append((losses, weights(network)))
    assert found[0][0] == found[1][0] and same_bits(found[0][1], found[1][1])
