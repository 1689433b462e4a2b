"""Losses and gradients against BERT in float64 NumPy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mxnet as mx
import numpy as np
import pytest

from bert.configuration import BertConfig, named_config
from data.pretraining.sources import Batch
from tasks.pretraining.loss import SUMS
from tests.bert.reference import logits, of_structural, sequence
from tests.tasks.heads import check_gradients, network_of, values_of
from tests.training.tiny import (
    TASK,
    VOCAB_SIZE,
    gradients,
    random_batch,
    relative_difference,
)


def dense(x: np.ndarray, p: dict, name: str) -> np.ndarray:
    return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def log_softmax(x: np.ndarray) -> np.ndarray:
    shifted = x - x.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def encoded(config: BertConfig, p: dict, batch: Any) -> np.ndarray:
    """The top layer's outputs (B, L, units), in float64; `batch` has tokens, segments and lengths."""
    of = of_structural(p, config.epsilon)
    return sequence(of, config.heads, config.activation, *batch[:3])


def reference(
    config: BertConfig, p: dict, batch: Batch, mlm_factor: float, nsp_factor: float
) -> tuple[float, np.ndarray]:
    """The loss and the four sums of PretrainingLoss, in float64."""
    of = of_structural(p, config.epsilon)
    x = encoded(config, p, batch)
    next_sentence, decoded = logits(of, config.activation, x, batch.masked_positions)
    log_p = np.take_along_axis(log_softmax(decoded), batch.masked_ids[..., None], -1)[..., 0]
    mlm = -(log_p * batch.masked_weights).sum()
    paired = batch.next_sentence_labels >= 0
    nsp = -log_softmax(next_sentence)[np.arange(len(x)), batch.next_sentence_labels][paired].sum()
    mlm_hits = ((decoded.argmax(-1) == batch.masked_ids) * batch.masked_weights).sum()
    nsp_hits = (next_sentence.argmax(-1) == batch.next_sentence_labels).sum()
    return mlm * mlm_factor + nsp * nsp_factor, np.array([mlm, nsp, mlm_hits, nsp_hits])


def run(network, batch: Batch, mlm_factor: float, nsp_factor: float) -> tuple[float, np.ndarray]:
    factors = [mx.nd.array([factor]) for factor in (mlm_factor, nsp_factor)]
    with mx.autograd.record():
        loss, sums = network(*TASK.inputs(batch, mx.cpu()), *factors)
    loss.backward()
    assert loss.shape == (1,) and loss.dtype == np.float32
    assert sums.shape == (len(SUMS),) and sums.dtype == np.float32
    return float(loss.asscalar()), sums.asnumpy()


NAMED = named_config("bert_2_32_4")
OTHER = BertConfig(layers=1, units=24, heads=3, hidden=40, positions=20, token_types=3, activation="tanh")
ANOTHER = replace(OTHER, layers=2, activation="relu", epsilon=1e-3, tied=False)


@pytest.fixture(
    scope="module",
    params=[
        (NAMED, "mxnet"),
        (OTHER, "mxnet"),
        *((OTHER, each) for each in ("fused", "fused without padding")),
        *((ANOTHER, each) for each in ("mxnet", "fused", "fused without padding")),
    ],
    ids=lambda setting: f"{setting[0].name}, {setting[0].network}, {setting[1]}",
)
def setting(request):
    return request.param


@pytest.fixture(scope="module")
def config(setting):
    return setting[0]


@pytest.fixture(scope="module")
def network(setting):
    return network_of(TASK, setting[1], config=setting[0])


@pytest.fixture(scope="module")
def parameters(network):
    return values_of(network)


@pytest.fixture
def batch():
    """Six sequences of 4 to 12 tokens in 12, some without a masked position, one of full length."""
    found = random_batch(np.random.default_rng(2), rows=6, length=12, predictions=4)
    assert 0 in found.masked_weights.sum(1) and len(set(found.valid_lengths)) > 2
    return found


def test_losses_and_sums_are_the_references(config, network, parameters, batch):
    """Labels of -1 are of sequences without a second part: they count in neither sum, nor in the divisor, and
    give the classifier nothing."""
    some = batch._replace(next_sentence_labels=np.array([-1, 1, 0, -1, 1, -1], np.int32))
    assert TASK.count([batch])[1] == 6 and TASK.count([some])[1] == 3
    for each, factors in ((batch, (1 / 7, 1 / 6)), (some, (1 / 7, 1 / 3))):
        loss, sums = run(network, each, *factors)
        expected_loss, expected_sums = reference(config, parameters, each, *factors)
        assert loss == pytest.approx(expected_loss, rel=5e-6)
        np.testing.assert_allclose(sums[:2], expected_sums[:2], rtol=5e-6)
        np.testing.assert_array_equal(sums[2:], expected_sums[2:])
    none = batch._replace(next_sentence_labels=np.full(6, -1, np.int32))
    assert run(network, none, 1 / 7, 1.0)[1][1] == 0
    assert not gradients(network)["classifier.weight"].any()
    figures = TASK.figures({**dict.fromkeys(SUMS, 0.0), "masked_positions": 7.0, "pairs": 0.0})
    assert figures["nsp_loss"] is None and figures["nsp_acc"] is None


def test_hits_are_counted(config, network, parameters, batch):
    """Labels set to what the reference predicts, but for one of each kind."""
    hits = []
    for vocabulary_id in range(VOCAB_SIZE):
        same = batch._replace(masked_ids=np.full_like(batch.masked_ids, vocabulary_id))
        hits.append(reference(config, parameters, same, 1, 1)[1][2])
    assert sum(hits) == batch.masked_weights.sum(), "each position has one prediction"
    for label in (0, 1):
        labelled = batch._replace(next_sentence_labels=np.full(6, label, np.int32))
        for vocabulary_id in np.argsort(hits)[-2:]:
            chosen = labelled._replace(masked_ids=np.full_like(batch.masked_ids, vocabulary_id))
            sums = run(network, chosen, 1, 1)[1]
            np.testing.assert_array_equal(sums[2:], reference(config, parameters, chosen, 1, 1)[1][2:])
            assert sums[2] == hits[vocabulary_id] > 0


def test_the_gradient_of_every_parameter(config, network, batch):
    """The tied embedding's gradient is only right if both its uses are in it."""
    factors = (1 / float(batch.masked_weights.sum()), 1 / len(batch.input_ids))
    run(network, batch, *factors)
    assert not gradients(network)["encoder.position_weight"][12:].any(), "beyond the batch's length"
    check_gradients(network, lambda parameters: reference(config, dict(parameters), batch, *factors)[0])


def test_the_sums_have_no_gradient(network, batch):
    factor = mx.nd.ones((1,))
    with mx.autograd.record():
        _, sums = network(*TASK.inputs(batch, mx.cpu()), factor, factor)
    sums.backward()
    assert not any(gradient.any() for gradient in gradients(network).values())


def test_padding_does_not_count(network, batch):
    """Other tokens and segments as padding, more padding, other labels and positions without weight."""
    loss, sums = run(network, batch, 0.1, 0.2)
    gradient = gradients(network)
    outside = np.arange(12) >= batch.valid_lengths[:, None]
    unused = batch.masked_weights == 0
    assert outside.any() and unused.any()

    changed = batch._replace(  # all of it without meaning
        input_ids=np.where(outside, 31, batch.input_ids),
        segment_ids=np.where(outside, 1, batch.segment_ids),
        masked_positions=np.where(unused, 2, batch.masked_positions),
        masked_ids=np.where(unused, 17, batch.masked_ids),
    )
    changed_loss, changed_sums = run(network, changed, 0.1, 0.2)
    assert changed_loss == pytest.approx(loss, rel=1e-7)
    np.testing.assert_allclose(changed_sums, sums, rtol=1e-7)
    assert relative_difference(gradients(network), gradient) < 1e-6

    def wider(array, by):
        return np.pad(array, ((0, 0), (0, by)), constant_values=3) if array.ndim == 2 else array

    # Two more masked positions are padding too, so their weights must be zero.
    padded = Batch(*(wider(a, 8) for a in batch[:3]), *(wider(a, 2) for a in batch[3:]))
    padded = padded._replace(
        segment_ids=padded.segment_ids % 2, masked_weights=padded.masked_weights * (padded.masked_weights < 3)
    )
    padded_loss, padded_sums = run(network, padded, 0.1, 0.2)
    assert padded_loss == pytest.approx(loss, rel=1e-6)
    np.testing.assert_allclose(padded_sums, sums, rtol=1e-6)
    assert relative_difference(gradients(network), gradient) < 1e-6
