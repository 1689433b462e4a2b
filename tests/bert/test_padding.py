"""Networks without the rows of padding against themselves with them, and against float64 NumPy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mxnet as mx
import numpy as np
import pytest

from base.errors import InputError
from bert.configuration import named_config
from bert.fused import places_of
from bert.operators import check_fused
from comm.local import LocalCommunicator
from data.pretraining.sources import Batch
from tasks.pretraining.loss import FusedPretrainingLoss
from tasks.pretraining.scores import FusedScores
from tests.bert import reference
from tests.bert.test_fused import losses, pair
from tests.training.tiny import (
    TASK,
    VOCAB_SIZE,
    gradients,
    make_step,
    random_batch,
    relative_difference,
    tiny_network,
    weights,
)
from training.metrics import evaluate, forward

pytestmark = pytest.mark.usefixtures("fused_operators")
MODEL = "bert_2_32_4"


def both(dtype: str = "float32", dropout: float = 0.0) -> tuple[FusedPretrainingLoss, FusedPretrainingLoss]:
    """Networks with the same parameters, the second one without padding."""
    kept, removed = (pair(MODEL, dtype, dropout)[0] for _ in range(2))
    removed.remove_padding()
    return kept, removed


def batch_of(lengths: list[int], longest: int, seed: int = 0) -> Batch:
    """A batch of these lengths with 4 masked positions each, half of which count; padding is no zeros."""
    rng = np.random.default_rng(seed)
    rows, valid = len(lengths), np.array(lengths, np.int32)
    ids, segments = (rng.integers(0, end, (rows, longest), dtype=np.int32) for end in (VOCAB_SIZE, 2))
    positions = (rng.integers(0, longest, (rows, 4)) % valid[:, None]).astype(np.int32)
    masked_ids = rng.integers(0, VOCAB_SIZE, (rows, 4), dtype=np.int32)
    counts = np.tile(np.array([1, 1, 0, 0], np.float32), (rows, 1))
    return Batch(
        ids, segments, valid, positions, masked_ids, counts, rng.integers(0, 2, rows, dtype=np.int32)
    )


BATCHES = [
    ([1, 12, 7, 1, 11], 12),  # one token, full, others
    ([9, 9], 9),
    ([3], 20),
    ([1, 1, 1], 1),
    ([16, 20, 12], 20),  # rows are a multiple of 16
    ([200, 33, 2, 150], 200),
]


@pytest.mark.parametrize("dtype, tolerance", [("float32", 2e-6), ("bfloat16", 1e-4)])
def test_losses_and_gradients_are_those_with_padding(dtype: str, tolerance: float) -> None:
    """Equal but for the order of sums; in bfloat16 that changes what some factors are rounded to. Each shape
    plans memory anew, and nothing of the one before may be left in it."""
    kept, removed = both(dtype)
    for seed in range(2):
        for lengths, longest in BATCHES:
            batch = batch_of(lengths, longest, seed)
            (expected_loss, expected_sums), expected = losses(kept, batch), gradients(kept)
            (loss, sums), found = losses(removed, batch), gradients(removed)
            assert loss == pytest.approx(expected_loss, rel=tolerance), lengths
            np.testing.assert_allclose(sums, expected_sums, rtol=tolerance)
            assert relative_difference(found, expected) < 10 * tolerance, lengths


def test_steps_and_evaluations_are_those_with_padding() -> None:
    rng = np.random.default_rng(4)
    batches = [random_batch(rng, rows, length, 4, 1) for rows, length in ((4, 16), (7, 9), (2, 30))]
    found = []
    for network in both():
        step, _ = make_step(network, accumulate=3)
        norms = [step(number, batches, lr=0.1).grad_norm for number in (1, 2)]
        metrics = evaluate(TASK, forward(TASK, network, batches, mx.cpu()), LocalCommunicator(), mx.cpu())
        found.append((norms, metrics["eval_mlm_loss"], metrics["eval_nsp_loss"], weights(network)))
    (norms, *numbers, kept), (other_norms, *other_numbers, removed) = found
    np.testing.assert_allclose(other_norms, norms, rtol=1e-4)
    np.testing.assert_allclose(other_numbers, numbers, rtol=1e-4)
    assert relative_difference(removed, kept) < 1e-3


@pytest.mark.parametrize("dtype, tolerance", [("float32", 2e-5), ("bfloat16", 3e-2)])
@pytest.mark.parametrize("changes", [{}, {"activation": "relu", "epsilon": 1e-3, "tied": False}], ids=str)
def test_logits_are_those_of_the_float64_reference(dtype: str, tolerance: float, changes: Any) -> None:
    config = replace(named_config(MODEL), **changes)
    plain = tiny_network(model=config, spread=0.1)
    network = FusedScores(plain.bert, config, dtype, 0.0, head_products=["decoder.0.weight"])
    network.pack_weights()
    network.remove_padding()
    network.hybridize(static_alloc=True, static_shape=True)
    of = reference.of_structural(weights(plain), config.epsilon)
    for lengths, longest in BATCHES:
        batch = batch_of(lengths, longest)
        arrays = (batch.input_ids, batch.segment_ids, batch.valid_lengths, batch.masked_positions)
        decoded, next_sentence = network(*(mx.nd.array(each, dtype="int32") for each in arrays))
        x = reference.sequence(of, config.heads, config.activation, *arrays[:3])
        expected_next, expected = reference.logits(of, config.activation, x, batch.masked_positions)
        np.testing.assert_allclose(
            decoded.asnumpy(), expected, rtol=0, atol=tolerance * np.abs(expected).max()
        )
        np.testing.assert_allclose(
            next_sentence.asnumpy(), expected_next, rtol=0, atol=tolerance * np.abs(expected_next).max()
        )


def test_places() -> None:
    places = places_of(np.array([2, 1, 3]), 5, multiple=4)
    assert places.tolist() == [[0, 0], [0, 1], [1, 0], [2, 0], [2, 1], [2, 2], [-1, -1], [-1, -1]]
    assert places.dtype == np.int32
    assert places_of(np.array([4]), 4, multiple=4).tolist() == [[0, n] for n in range(4)]


def test_padding_that_cannot_be_removed_is_an_error() -> None:
    check_fused("--padding remove", "fused")
    with pytest.raises(InputError, match="--padding remove needs the fused CPU operators"):
        check_fused("--padding remove", "mxnet")
