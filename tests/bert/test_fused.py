"""The losses on fused operators against the same on MXNet's own, which are GluonNLP's model."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from bert.configuration import named_config
from bert.model import trainable
from bert.part import ModelPart
from comm.local import LocalCommunicator
from data.pretraining.sources import Batch
from tasks.pretraining.loss import FusedPretrainingLoss, PretrainingLoss
from tests.training.tiny import (
    TASK,
    gradients,
    joined,
    make_step,
    random_batch,
    relative_difference,
    same_bits,
    tiny_network,
    weights,
)
from training.metrics import evaluate, forward

pytestmark = pytest.mark.usefixtures("fused_operators")


def pair(
    model: str = "bert_2_32_4", dtype: str = "float32", dropout: float = 0.0, part: ModelPart | None = None
) -> tuple[FusedPretrainingLoss, PretrainingLoss]:
    """Both networks over one model, whose parameters are all away from their initial values."""
    bert = tiny_network(dropout=dropout, model=model, spread=0.1).bert
    fused = FusedPretrainingLoss(bert, named_config(model), dtype, dropout, part)
    own = PretrainingLoss(bert, "float32")
    for network in (fused, own):
        network.hybridize(static_alloc=True, static_shape=True)
    fused.pack_weights()
    return fused, own


def means_in(state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The first moments: a tenth of the gradient after one step."""
    return {name: array for name, array in state.items() if name.endswith(".mean")}


def losses(network: FusedPretrainingLoss | PretrainingLoss, batch: Batch, train: bool = True) -> tuple:
    """Loss and sums of one forward and backward pass; gradients are left in the parameters."""
    factors = [mx.nd.array([0.7]), mx.nd.array([1.3])]
    with mx.autograd.record(train_mode=train):
        loss, sums = network(*TASK.inputs(batch, mx.cpu()), *factors)
    loss.backward()
    return loss.asscalar(), sums.asnumpy()


@pytest.mark.parametrize(
    "model, rows, length, predictions",
    [
        ("bert_2_32_4", 3, 16, 4),
        ("bert_1_24_3", 1, 5, 1),
        ("bert_3_40_5", 4, 37, 7),
        ("bert_2_128_2", 2, 130, 20),
    ],
)
def test_same_losses_and_gradients_as_gluonnlp(model: str, rows: int, length: int, predictions: int) -> None:
    fused, own = pair(model)
    batch = random_batch(np.random.default_rng(1), rows, length, predictions)
    loss, sums = losses(fused, batch)
    found = gradients(fused)
    expected_loss, expected_sums = losses(own, batch)
    expected = gradients(own)
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    np.testing.assert_allclose(sums, expected_sums, rtol=1e-5)
    assert relative_difference(found, expected) < 2e-5
    # Each by itself, against its own size; a key's bias has no effect on a softmax, its gradient is rounding.
    largest = max(np.linalg.norm(gradient) for gradient in expected.values())
    for name, gradient in found.items():
        scale = max(np.linalg.norm(expected[name]), 1e-3 * largest)
        assert np.linalg.norm(gradient - expected[name]) < 1e-4 * scale, name


def test_a_batch_without_masks_has_no_masked_loss() -> None:
    fused, own = pair()
    batch = random_batch(np.random.default_rng(1), 2, 12, 3)
    batch = batch._replace(masked_weights=np.zeros_like(batch.masked_weights))
    loss, sums = losses(fused, batch)
    assert sums[0] == 0
    found = gradients(fused)
    assert loss == pytest.approx(losses(own, batch)[0], rel=1e-5)
    assert relative_difference(found, gradients(own)) < 2e-5


@pytest.mark.parametrize(
    "dtype, of_loss, least, most",
    [
        ("bfloat16", 5e-3, 1e-4, 3e-2),  # 8 bits: each product is off by 2^-9 at most, a gradient by some
        ("bfloat16x3", 1e-5, 1e-6, 1e-4),  # 16 bits: a thousandth of it, and no more is rounding of sums
    ],
)
def test_fewer_bits_are_near_float32(dtype: str, of_loss: float, least: float, most: float) -> None:
    fused, own = pair(dtype=dtype)
    batch = random_batch(np.random.default_rng(1), 4, 32, 6)
    loss, _ = losses(fused, batch)
    found = gradients(fused)
    expected_loss, _ = losses(own, batch)
    assert dtype != "bfloat16" or loss != expected_loss
    assert loss == pytest.approx(expected_loss, rel=of_loss)
    assert least < relative_difference(found, gradients(own)) < most


def test_dropout_acts_in_training_only_and_follows_the_seed() -> None:
    fused, _ = pair(dropout=0.1)
    batch = random_batch(np.random.default_rng(1), 4, 32, 6)

    def trained(seed: int) -> tuple[float, dict[str, np.ndarray]]:
        mx.random.seed(seed)
        return losses(fused, batch)[0], gradients(fused)

    first, again, other = trained(1), trained(1), trained(2)
    assert first[0] == again[0] and same_bits(first[1], again[1])
    assert first[0] != other[0]
    fused_again, own = pair(dropout=0.0)
    assert losses(fused, batch, train=False)[0] == pytest.approx(losses(own, batch)[0], rel=1e-5)


def test_dropout_changes_the_loss_as_much_as_mxnets() -> None:
    """Mean and spread over seeds of the loss with dropout, which both draw differently."""
    fused, own = pair(dropout=0.3)
    batch = random_batch(np.random.default_rng(1), 4, 16, 4)

    def samples(network: FusedPretrainingLoss | PretrainingLoss) -> np.ndarray:
        values = []
        for seed in range(60):
            mx.random.seed(seed)
            values.append(losses(network, batch)[0])
        return np.array(values)

    found, expected = samples(fused), samples(own)
    assert 0.6 < found.std() / expected.std() < 1.6
    error = np.sqrt((found.var(ddof=1) + expected.var(ddof=1)) / 60)
    assert abs(found.mean() - expected.mean()) < 4 * error


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_accumulated_micro_batches_are_one_large_batch(dtype: str) -> None:
    rng = np.random.default_rng(3)
    batches = [random_batch(rng, rows, 16, 4, least_masked=1) for rows in (1, 3, 2)]
    found = []
    for parts in (batches, [joined(batches)]):
        fused, _ = pair(dtype=dtype)
        step, optimizer = make_step(fused, accumulate=len(parts))
        result = step(1, parts, lr=0.0)
        found.append((result.grad_norm, result.sums.asnumpy(), optimizer.state()))
    (norm, sums, state), (expected_norm, expected_sums, expected_state) = found
    assert norm == pytest.approx(expected_norm, rel=1e-5)
    np.testing.assert_allclose(sums, expected_sums, rtol=1e-5)
    assert relative_difference(means_in(state), means_in(expected_state)) < 1e-5
    assert means_in(state)


def test_each_step_and_evaluation_sees_the_weights_as_they_are() -> None:
    """Packed copies must never be older than the weights."""
    batch = random_batch(np.random.default_rng(1), 4, 16, 4)
    fused, own = pair()
    step, _ = make_step(fused)
    for number in range(1, 4):
        before = weights(fused)
        result = step(number, [batch], lr=0.1)
        assert not same_bits(weights(fused), before)
        after = weights(fused)
        for name, parameter in trainable(fused.bert).items():  # what the step must have seen
            parameter.set_data(mx.nd.array(before[name]))
        np.testing.assert_allclose(result.sums.asnumpy(), losses(own, batch)[1], rtol=1e-5)
        for name, parameter in trainable(fused.bert).items():
            parameter.set_data(mx.nd.array(after[name]))
    found = evaluate(TASK, forward(TASK, fused, [batch], mx.cpu()), LocalCommunicator(), mx.cpu())
    expected = evaluate(TASK, forward(TASK, own, [batch], mx.cpu()), LocalCommunicator(), mx.cpu())
    assert found["eval_mlm_loss"] == pytest.approx(expected["eval_mlm_loss"], rel=1e-5)
