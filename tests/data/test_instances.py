"""Sentence pairs against Google's algorithm, written out plainly over lists of tokens."""

from __future__ import annotations

import random

import numpy as np
import pytest

from data.errors import InputError
from data.instances import pair_plan
from data.tokens import TokenStore


def make_store(documents):
    """A store of documents given as lists of sentence lengths; token i has id i, so that places show."""
    lengths = [length for document in documents for length in document]
    sentences = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    ends = np.concatenate([[0], np.cumsum([len(document) for document in documents])]).astype(np.int64)
    return TokenStore(np.arange(sentences[-1], dtype=np.uint32), sentences, ends, "")


def reference_pairs(documents, max_seq_length, short_seq_prob, generator):
    """Google's algorithm on lists; yields (A, B, is random, was it cut)."""
    limit = max_seq_length - 3
    for number, document in enumerate(documents):
        target = limit
        if generator.random() < short_seq_prob:
            target = generator.randint(2, limit)
        chunk, size, at = [], 0, 0
        while at < len(document):
            chunk.append(document[at])
            size += len(document[at])
            if at == len(document) - 1 or size >= target:
                split = generator.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
                a = [token for sentence in chunk[:split] for token in sentence]
                is_random = len(chunk) == 1 or generator.random() < 0.5
                if is_random:
                    other = generator.choice([index for index in range(len(documents)) if index != number])
                    b = []
                    for sentence in documents[other][generator.randrange(len(documents[other])) :]:
                        b += sentence
                        if len(b) >= target - len(a):
                            break
                    at -= len(chunk) - split
                else:
                    b = [token for sentence in chunk[split:] for token in sentence]
                while len(a) + len(b) > limit:
                    longer = a if len(a) > len(b) else b
                    longer.pop(0 if generator.random() < 0.5 else -1)
                yield a, b, is_random
                chunk, size = [], 0
            at += 1


@pytest.fixture(params=[(5, 0.1), (16, 0.5), (64, 0.1), (128, 0.0), (512, 1.0)], ids=str)
def case(request, store):
    length, short = request.param
    return store, length, short, pair_plan(store, length, short, np.random.default_rng(3))


def test_no_pair_is_too_long_or_lacks_a_half(case):
    _, length, _, pairs = case
    assert pairs.lengths().max() <= length and pairs.lengths().dtype == np.int32
    assert (pairs.a_end > pairs.a_start).all() and (pairs.b_end > pairs.b_start).all()


def test_a_random_half_is_from_another_document_and_a_true_one_follows(case):
    store, _, _, pairs = case
    first_tokens = store.sentences[store.documents]
    a_document = np.searchsorted(first_tokens, pairs.a_start, side="right")
    b_document = np.searchsorted(first_tokens, pairs.b_start, side="right")
    assert ((a_document == b_document) == ~pairs.is_random).all()
    assert (np.searchsorted(first_tokens, pairs.a_end - 1, side="right") == a_document).all()
    assert (np.searchsorted(first_tokens, pairs.b_end - 1, side="right") == b_document).all()
    assert (pairs.b_start >= pairs.a_end)[~pairs.is_random].all()


def test_without_cuts_every_token_is_used_once_as_a_or_as_its_true_next():
    store = make_store([[3, 2, 4], [5], [1, 1, 1, 1, 6], [2, 2]])
    for seed in range(200):
        pairs = pair_plan(store, 512, 0.0, np.random.default_rng(seed))
        used = [np.arange(start, end) for start, end in zip(pairs.a_start, pairs.a_end)]
        used += [np.arange(s, e) for s, e, r in zip(pairs.b_start, pairs.b_end, pairs.is_random) if not r]
        assert np.sort(np.concatenate(used)).tolist() == list(range(store.num_tokens))


def test_lengths_and_labels_are_distributed_as_in_googles_algorithm():
    generator = random.Random(0)
    shape = [[generator.randint(1, 30) for _ in range(generator.randint(1, 25))] for _ in range(120)]
    store = make_store(shape)
    lists = [
        [list(range(store.sentences[index], store.sentences[index + 1])) for index in range(first, last)]
        for first, last in zip(store.documents, store.documents[1:])
    ]
    for length, short in ((64, 0.1), (128, 0.5)):
        ours, theirs = [], []
        for seed in range(12):
            pairs = pair_plan(store, length, short, np.random.default_rng(seed))
            columns = (
                pairs.a_end - pairs.a_start,
                pairs.b_end - pairs.b_start,
                pairs.is_random,
                pairs.a_start,
            )
            ours.append(np.stack([np.asarray(column, dtype=float) for column in columns], axis=1))
            reference = reference_pairs(lists, length, short, random.Random(seed))
            theirs.append(np.array([[len(a), len(b), r, a[0]] for a, b, r in reference], dtype=float))
        # The samples of an epoch depend on each other; the means of whole epochs do not.
        assert_same_mean([len(epoch) for epoch in ours], [len(epoch) for epoch in theirs])
        for column in range(4):
            assert_same_mean([e[:, column].mean() for e in ours], [e[:, column].mean() for e in theirs])
            assert_same_mean([e[:, column].std() for e in ours], [e[:, column].std() for e in theirs])
        pooled, expected = np.concatenate(ours), np.concatenate(theirs)
        for column in range(3):
            assert kolmogorov(pooled[:, column], expected[:, column]) < 0.035


def assert_same_mean(left, right):
    """Two samples of equal size agree within 4.5 standard errors of their difference."""
    left, right = np.asarray(left, dtype=float), np.asarray(right, dtype=float)
    error = np.sqrt((left.var(ddof=1) + right.var(ddof=1)) / len(left))
    assert abs(left.mean() - right.mean()) <= 4.5 * error + 1e-9


def kolmogorov(left, right):
    values = np.union1d(left, right)
    left, right = np.sort(left), np.sort(right)
    return np.abs(
        np.searchsorted(left, values, side="right") / len(left)
        - np.searchsorted(right, values, side="right") / len(right)
    ).max()


def test_cuts_take_from_front_and_back_alike():
    store = make_store([[40, 40]] * 300)
    pairs = pair_plan(store, 23, 0.0, np.random.default_rng(0))
    front = pairs.a_start % 40
    lost = 40 - (pairs.a_end - pairs.a_start)
    assert lost.min() == lost.max() == 30
    # Binomial(30, 1/2): mean 15, variance 7.5
    assert abs(front.mean() - 15) < 5 * np.sqrt(7.5 / len(front))
    assert 5.5 < front.var() < 9.5


def test_about_half_of_the_pairs_that_could_be_true_are_random():
    store = make_store([[10] * 12] * 400)
    pairs = pair_plan(store, 63, 0.0, np.random.default_rng(1))
    several = pairs.is_random[(pairs.a_end % 120) != 0]  # not those whose chunk was one last sentence
    assert abs(several.mean() - 0.5) < 5 * 0.5 / np.sqrt(len(several))


def test_the_same_generator_gives_the_same_plan(store):
    one, two, three = (pair_plan(store, 64, 0.1, np.random.default_rng(seed)) for seed in (7, 7, 8))
    assert all(np.array_equal(left, right) for left, right in zip(one, two))
    assert not np.array_equal(one.a_end, three.a_end[: len(one.a_end)])


def test_one_document_is_an_input_error():
    with pytest.raises(InputError, match="single document.*blank lines"):
        pair_plan(make_store([[3, 4, 5]]), 64, 0.1, np.random.default_rng(0))


def test_two_documents_of_one_token_each_make_pairs():
    pairs = pair_plan(make_store([[1], [1]]), 5, 0.5, np.random.default_rng(0))
    assert pairs.is_random.all() and pairs.lengths().tolist() == [5, 5]
    assert pairs.a_start.tolist() == [0, 1] and pairs.b_start.tolist() == [1, 0]
