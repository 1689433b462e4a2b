"""Our instances and those of Google's algorithm (bench/raw_path.py) have the same distributions."""

from __future__ import annotations

import random

import numpy as np
import pytest

from bench.raw_path import create_instances, gluonnlp_tokenizer, read_documents
from data.options import MaskingConfig
from data.pretraining.sources import TextSource
from tests.data.pretraining.chance import permutation_p
from tests.data.token_stores import stored_documents

EPOCHS = 10


def as_documents(store, vocab):
    """A store's documents as lists of sentences, which are lists of tokens."""
    return [
        [[vocab.tokens[token] for token in sentence] for sentence in document]
        for document in stored_documents(store)
    ]


@pytest.fixture(scope="module", params=[(64, 0.5, False), (128, 0.1, True)], ids=str)
def both(request, store, vocab):
    """Several epochs of each, as rows of numbers: one row an instance."""
    length, short, whole_words = request.param
    settings = MaskingConfig(length, short, 0.15, 12, whole_words)
    source = TextSource(store, vocab, settings)
    ours = []
    for epoch in range(EPOCHS):
        batch = source.collate(5, epoch, np.arange(len(source.lengths(5, epoch))), length)
        b_lengths = batch.segment_ids.sum(axis=1)
        masked_now = np.take_along_axis(batch.input_ids, batch.masked_positions, axis=1)
        columns = (
            batch.valid_lengths,
            b_lengths,
            batch.next_sentence_labels,
            batch.masked_weights.sum(axis=1),
            ((masked_now == vocab.mask_id) & (batch.masked_weights > 0)).sum(axis=1),
            ((masked_now == batch.masked_ids) & (batch.masked_weights > 0)).sum(axis=1),
            batch.masked_positions[:, 0],
        )
        ours.append(np.stack([np.asarray(column, dtype=np.int64) for column in columns], axis=1))
    theirs = []
    documents = as_documents(store, vocab)
    for epoch in range(EPOCHS):
        generator = random.Random(epoch)
        made = create_instances(documents, vocab.tokens, settings, generator)
        rows = [
            (
                len(instance.tokens),
                len(instance.tokens) - instance.b_begins,
                instance.is_random,
                len(instance.positions),
                sum(instance.tokens[place] == "[MASK]" for place in instance.positions),
                sum(instance.tokens[p] == label for p, label in zip(instance.positions, instance.labels)),
                instance.positions[0],
            )
            for instance in made
        ]
        theirs.append(np.array(rows, dtype=np.int64))
    return ours, theirs


def test_an_epoch_has_as_many_instances(both):
    ours, theirs = ([len(epoch) for epoch in side] for side in both)
    error = np.sqrt((np.var(ours, ddof=1) + np.var(theirs, ddof=1)) / EPOCHS)
    assert abs(np.mean(ours) - np.mean(theirs)) < 4.5 * error


@pytest.mark.parametrize(
    "column, name",
    [(0, "length"), (1, "length of B"), (2, "next sentence"), (3, "predictions"), (6, "first position")],
)
def test_distributions_are_the_same(both, column, name):
    """By epochs, which are independent: the pairs of one document share its target length."""
    size = max(int(epoch[:, column].max()) for side in both for epoch in side) + 1
    width = max(1, size // 16)
    ours, theirs = (
        np.array([np.bincount(epoch[:, column] // width, minlength=-(-size // width)) for epoch in side])
        for side in both
    )
    assert permutation_p(ours, theirs) > 1e-3, name


def test_rates_of_masks_and_of_random_next_sentences_are_the_same(both):
    ours, theirs = (np.concatenate(side) for side in both)
    for column, of in ((3, 0), (4, 3), (5, 3)):  # predictions of tokens, [MASK] and kept of predictions
        one, other = ours[:, column].sum() / ours[:, of].sum(), theirs[:, column].sum() / theirs[:, of].sum()
        assert abs(one - other) < 0.012, (column, one, other)
    # By epochs, since one long document with a short target has many single sentences, whose next is random.
    shares = [np.array([epoch[:, 2].mean() for epoch in side]) for side in both]
    error = np.sqrt(sum(share.var(ddof=1) for share in shares) / EPOCHS)
    assert abs(shares[0].mean() - shares[1].mean()) < 4.5 * error


def test_gluonnlps_tokenizer_gives_the_documents_of_the_store(embedded, store, vocab):
    """So that both sides of a comparison start from the same tokens."""
    pytest.importorskip("gluonnlp")
    lines = (embedded / "corpus" / "train-0.txt").read_text("utf-8").splitlines()
    assert read_documents(lines, gluonnlp_tokenizer(vocab.tokens)) == as_documents(store, vocab)
