"""Controls of held-out samples: the same predictions, with the context of others."""

from __future__ import annotations

import numpy as np
import pytest

from data.options import MaskingConfig
from data.pretraining.evaluation import control_batches, evaluation_batches, with_context_of
from data.pretraining.sources import TextSource
from data.store.tokens import cached_store
from data.tokenizing.tokenizer import TokenizerSettings


@pytest.fixture(scope="module")
def source(embedded, vocab, tmp_path_factory):
    text = str(embedded / "corpus" / "eval.txt")
    store = cached_store([text], TokenizerSettings(vocab), str(tmp_path_factory.mktemp("store")))
    return TextSource(store, vocab, MaskingConfig(max_seq_length=64))


def unmasked(batch, row: int) -> list[int]:
    ids = batch.input_ids[row].tolist()
    for place, token, weight in zip(*(each[row] for each in batch[3:6])):
        if weight:
            ids[place] = token
    return ids[: batch.valid_lengths[row]]


def test_a_control_has_the_text_of_others_around_its_own_predictions(source, vocab):
    batch = source.collate(0, 0, np.arange(0, 12), 64)
    others = source.collate(0, 0, np.arange(30, 42), 64)
    control = with_context_of(others, batch)
    assert control.input_ids is not batch.input_ids and control[1:] == batch[1:]
    special = (vocab.cls_id, vocab.sep_id)
    for row in range(12):
        text = [token for token in unmasked(others, row) if token not in special]
        own = unmasked(batch, row)
        predicted = set(batch.masked_positions[row, batch.masked_weights[row] > 0].tolist())
        expected, number = batch.input_ids[row].tolist(), 0
        for place, token in enumerate(own):
            if token not in special and place not in predicted:
                expected[place] = text[number % len(text)]
                number += 1
        assert control.input_ids[row].tolist() == expected
    assert (control.input_ids != batch.input_ids).mean() > 0.5


@pytest.mark.parametrize("world_size", [1, 3])
def test_every_batch_has_its_control_on_its_rank(source, world_size):
    for rank in range(world_size):
        batches = list(evaluation_batches(source, 8, rank, world_size))
        controls = list(control_batches(source, 8, rank, world_size))
        assert len(batches) == len(controls) > 2
        for batch, control in zip(batches, controls):
            for own, other in zip(batch[1:], control[1:]):
                assert np.array_equal(own, other)
            row, column = np.nonzero(batch.masked_weights)
            place = batch.masked_positions[row, column]
            assert np.array_equal(batch.input_ids[row, place], control.input_ids[row, place])
            assert (batch.input_ids != control.input_ids).any(axis=1).all(), "no sequence is its own control"
