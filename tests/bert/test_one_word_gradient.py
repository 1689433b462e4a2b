"""The word embedding's gradient from one operator: the bits that MXNet has by adding two, in every network,
and nothing lost or added twice on the way to the step's gradient."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from bert.configuration import named_config
from bert.part import whole
from bert.weights.names import EMBEDDING
from data.pretraining.sources import Batch
from tasks.pretraining.loss import FusedPretrainingLoss
from tests.bert.test_fused import losses, pair
from tests.training.tiny import (
    TASK,
    gradients,
    make_step,
    random_batch,
    relative_difference,
    same_bits,
    weights,
)

pytestmark = pytest.mark.usefixtures("fused_operators")
MODEL = "bert_3_40_5"


def both(dtype: str, dropout: float = 0.1) -> tuple[FusedPretrainingLoss, FusedPretrainingLoss]:
    """Two networks of the same parameters; the second one as a part, which happens to be all."""
    new, old = (pair(MODEL, dtype, dropout, part)[0] for part in (None, whole(named_config(MODEL))))
    assert new.one_word_gradient and not old.one_word_gradient
    return new, old


def batches() -> list[Batch]:
    """Of several shapes; the third has no masked token that counts, the first comes again."""
    rng = np.random.default_rng(6)
    found = [random_batch(rng, *shape) for shape in ((4, 37, 7), (1, 5, 1), (2, 12, 3), (3, 37, 20))]
    found[2] = found[2]._replace(masked_weights=np.zeros_like(found[2].masked_weights))
    return [*found, found[0]]


@pytest.mark.parametrize("packs", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bfloat16x3"])
def test_same_bits_as_two_gradients_added(dtype: str, packs: bool) -> None:
    found = []
    for network in both(dtype):
        if packs:
            network.remove_padding()
        network.bert.word_embed[0].weight.grad()[:] = np.nan  # nothing of it may be left
        of_network = []
        for seed, batch in enumerate(batches()):
            mx.random.seed(seed)
            of_network.append((losses(network, batch), gradients(network)))
        found.append(of_network)
    for ((loss, sums), found_gradients), ((other_loss, other_sums), expected) in zip(*found):
        assert loss == other_loss and (sums == other_sums).all()
        assert same_bits(found_gradients, expected)
        assert np.abs(expected[EMBEDDING]).max() > 0


@pytest.mark.parametrize("accumulate", [1, 2])
def test_steps_have_the_same_bits(accumulate: int) -> None:
    """Weights after three steps of one or two micro-batches."""
    given, found = batches(), []
    for network in both("bfloat16"):
        step, _ = make_step(network, accumulate=accumulate, clip_norm=1.0)
        norms = [step(number, given[number : number + accumulate], lr=0.1).grad_norm for number in (1, 2, 3)]
        found.append((norms, weights(network)))
    assert found[0][0] == found[1][0] and same_bits(found[0][1], found[1][1])


def test_two_forward_passes_before_their_backward_passes() -> None:
    """Each hands its own factors over."""
    first, second = batches()[:2]
    network, _ = both("float32", dropout=0.0)
    expected = []
    for batch in (first, second):
        losses(network, batch)
        expected.append(gradients(network))
    factors = [mx.nd.array([0.7]), mx.nd.array([1.3])]
    kept = []
    for batch in (first, second):
        with mx.autograd.record():
            kept.append(network(*TASK.inputs(batch, mx.cpu()), *(each.detach() for each in factors))[0])
    for loss, gradient in zip(kept, expected):
        loss.backward()
        assert same_bits(gradients(network), gradient)


def test_gradients_do_not_depend_on_passes_before() -> None:
    """Prediction, recorded or not, between two passes of training, and a batch of another shape."""
    network, _ = both("bfloat16", dropout=0.0)
    batch, other = batches()[0], batches()[3]
    losses(network, batch)
    expected = gradients(network)
    inputs = TASK.inputs(other, mx.cpu())
    factors = [mx.nd.array([0.7]), mx.nd.array([1.3])]
    predicted = network(*inputs, *factors)[0].asscalar()
    assert predicted == losses(network, other, train=False)[0]
    assert relative_difference(gradients(network), expected) > 0.1
    losses(network, batch)
    assert same_bits(gradients(network), expected)


def test_memory_of_the_weights_is_read_and_not_copied() -> None:
    """The decoder sees what an update has written."""
    network, old = both("float32", dropout=0.0)
    batch = batches()[0]
    losses(network, batch)
    for each in (network, old):
        weight = each.bert.word_embed[0].weight.data()
        weight *= 1.5
    assert losses(network, batch)[0] == losses(old, batch)[0]
