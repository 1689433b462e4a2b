"""Sentence pairs against Google's algorithm, written out plainly over lists of tokens."""

from __future__ import annotations

import random

import numpy as np
import pytest

import data.pretraining.pairs
from base.errors import InputError
from data.pretraining.pairs import pair_plan
from data.pretraining.randomness import draw
from data.store.tokens import TokenStore


def make_store(documents):
    """A store of documents given as lists of sentence lengths; token i has id i, so that places show."""
    lengths = [length for document in documents for length in document]
    sentences = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    ends = np.concatenate([[0], np.cumsum([len(document) for document in documents])]).astype(np.int64)
    return TokenStore(np.arange(sentences[-1], dtype=np.uint32), sentences, ends, "")


def as_lists(store):
    """The documents of a store as lists of sentences, which are lists of token positions."""
    sentences = [list(range(*ends)) for ends in zip(store.sentences.tolist(), store.sentences[1:].tolist())]
    return [sentences[first:last] for first, last in zip(store.documents, store.documents[1:])]


class OneDocumentsWords:
    """The random words of one document, drawn one by one: words 0 and 1 for its target length, then eight
    for each chunk, of which the last ones used are keys of the bits for cutting."""

    def __init__(self, key, document):
        self.key = word(key, document)

    def uniform(self, chunk, place):
        return (word(self.key, 8 * (chunk + 1) + place) >> 11) / 2**53

    def bits(self, chunk, place):
        key, at = word(self.key, 8 * (chunk + 1) + place), 0
        while True:
            yield word(key, at // 64) >> at % 64 & 1
            at += 1


def word(key, place):
    return int(draw(np.array([key], dtype=np.uint64), np.array([place], dtype=np.uint64))[0])


def reference_pairs(documents, max_seq_length, short_seq_prob, words_of):
    """Google's algorithm on lists; yields (A, B, is random)."""
    limit = max_seq_length - 3
    for number, document in enumerate(documents):
        words = words_of(number)
        target = limit
        if words.uniform(-1, 0) < short_seq_prob:
            target = 2 + int(words.uniform(-1, 1) * (limit - 1))
        chunk, size, at, chunks = [], 0, 0, 0
        while at < len(document):
            chunk.append(document[at])
            size += len(document[at])
            if at == len(document) - 1 or size >= target:
                split = 1 + int(words.uniform(chunks, 0) * (len(chunk) - 1))
                a = [token for sentence in chunk[:split] for token in sentence]
                is_random = len(chunk) == 1 or words.uniform(chunks, 1) < 0.5
                if is_random:
                    others = [index for index in range(len(documents)) if index != number]
                    other = documents[others[int(words.uniform(chunks, 2) * len(others))]]
                    b = []
                    for sentence in other[int(words.uniform(chunks, 3) * len(other)) :]:
                        b += sentence
                        if len(b) >= target - len(a):
                            break
                    at -= len(chunk) - split
                else:
                    b = [token for sentence in chunk[split:] for token in sentence]
                a_bits, b_bits = words.bits(chunks, 4), words.bits(chunks, 5)
                while len(a) + len(b) > limit:
                    longer, bits = (a, a_bits) if len(a) > len(b) else (b, b_bits)
                    longer.pop(0 if next(bits) else -1)
                yield a, b, is_random
                chunk, size = [], 0
                chunks += 1
            at += 1


def random_documents(seed, count, most_sentences=25, most_tokens=30):
    generator = random.Random(seed)
    return [
        [generator.randint(1, most_tokens) for _ in range(generator.randint(1, most_sentences))]
        for _ in range(count)
    ]


def rows(pairs):
    """Each pair as (first token of A, tokens of A, first of B, tokens of B, is random)."""
    return list(zip(*(column.tolist() for column in pairs)))


@pytest.mark.parametrize(
    "lanes, few, documents_at_once, chunks_at_once",
    [
        (4096, 12, 1 << 16, 1 << 20),  # as it is: all documents in lock step, the last ones alone
        (7, 1, 1 << 16, 1 << 20),  # lanes are given new documents; none goes alone
        (4, 5, 1 << 16, 1 << 20),  # lock step and alone
        (1, 2, 1 << 16, 1 << 20),  # as soon as the last has begun, alone
        (16, 3, 10, 1 << 20),  # several windows
        (16, 3, 1 << 16, 3),  # windows that end with a number of tokens
    ],
)
@pytest.mark.parametrize("length, short", [(5, 0.3), (24, 0.5), (128, 0.1), (512, 1.0)])
def test_pairs_are_those_of_a_plain_loop_with_the_same_random_words(
    monkeypatch, lanes, few, documents_at_once, chunks_at_once, length, short
):
    monkeypatch.setattr(data.pretraining.pairs, "_LANES", lanes)
    monkeypatch.setattr(data.pretraining.pairs, "_FEW_LANES", few)
    monkeypatch.setattr(data.pretraining.pairs, "_WINDOW_DOCUMENTS", documents_at_once)
    monkeypatch.setattr(data.pretraining.pairs, "_WINDOW_CHUNKS", chunks_at_once)
    documents = random_documents(length, 25)
    documents[3] = [700, 2, 900, 1]  # sentences longer than any pair
    documents[11] = [3] * 150  # a long document
    store = make_store(documents)
    key = 0x1234_5678_9ABC_DEF0 + length
    pairs = pair_plan(store, length, short, key)
    reference = reference_pairs(as_lists(store), length, short, lambda d: OneDocumentsWords(key, d))
    expected = [(a[0], len(a), b[0], len(b), is_random) for a, b, is_random in reference]
    assert rows(pairs) == expected
    assert pairs.lengths().tolist() == [len_a + len_b + 3 for _, len_a, _, len_b, _ in expected]


def test_a_huge_document_among_small_ones():
    """1000 chunks of random words are drawn ahead when a document goes alone; this one needs more."""
    documents = [[2, 3], [4] * 7000, [1, 5, 2]]
    store = make_store(documents)
    pairs = pair_plan(store, 16, 0.0, 99)
    reference = reference_pairs(as_lists(store), 16, 0.0, lambda d: OneDocumentsWords(99, d))
    assert rows(pairs) == [(a[0], len(a), b[0], len(b), r) for a, b, r in reference]
    assert len(pairs.a_start) > 2048


def test_one_document_is_an_input_error():
    with pytest.raises(InputError, match="single document.*blank lines"):
        pair_plan(make_store([[3, 4, 5]]), 64, 0.1, 0)


def test_two_documents_of_one_token_each_make_pairs():
    pairs = pair_plan(make_store([[1], [1]]), 5, 0.5, 0)
    assert pairs.is_random.all() and pairs.lengths().tolist() == [5, 5]
    assert pairs.a_start.tolist() == [0, 1] and pairs.b_start.tolist() == [1, 0]
