"""Tokens of examples against the definition written out, and their batches."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import data.classification.features as features_module
from base.errors import InputError
from data.classification.examples import Examples
from data.classification.features import featurize
from data.tokenizing.tokenizer import TokenizerSettings, lists_of


def cut(first: list[int], second: list[int], most: int) -> tuple[list[int], list[int]]:
    """One token at a time from the longer one's end."""
    first, second = list(first), list(second)
    while len(first) + len(second) > most:
        (first if len(first) > len(second) else second).pop()
    return first, second


def written_out(examples: Examples, settings: TokenizerSettings, most: int) -> list[tuple[list[int], int]]:
    vocab, tokenizer = settings.vocabulary, settings.build()
    rows = []
    for place, text in enumerate(examples.first):
        (first,) = lists_of(*tokenizer.encode([text]))
        if examples.second is None:
            rows.append(([vocab.cls_id, *first[: most - 2], vocab.sep_id], min(len(first), most - 2) + 2))
            continue
        (second,) = lists_of(*tokenizer.encode([examples.second[place]]))
        first, second = cut(first, second, most - 3)
        rows.append(([vocab.cls_id, *first, vocab.sep_id, *second, vocab.sep_id], len(first) + 2))
    return rows


@pytest.fixture(scope="module")
def pairs(real_lines):
    lines = [line for line in real_lines if line.strip()][:400]
    labels = np.arange(200, dtype=np.int32) % 3
    return Examples("pairs.tsv", [*lines[:199], ""], lines[200:400], labels, [str(n) for n in range(200)])


@pytest.mark.parametrize("two", [True, False])
@pytest.mark.parametrize("most", [8, 24])
def test_tokens_are_those_written_out(pairs, vocab, two, most):
    examples = pairs if two else dataclasses.replace(pairs, second=None)
    settings = TokenizerSettings(vocab)
    found = featurize(examples, settings, most)
    wanted = written_out(examples, settings, most)
    assert len(found) == len(wanted) and found.lengths.max() <= most
    batch = found.collate(np.arange(len(found)), most)
    for row, (tokens, first) in enumerate(wanted):
        padding = most - len(tokens)
        assert batch.input_ids[row].tolist() == tokens + [vocab.pad_id] * padding
        assert batch.segment_ids[row].tolist() == [0] * first + [1] * (len(tokens) - first) + [0] * padding
        assert batch.valid_lengths[row] == found.lengths[row] == len(tokens)
    full = written_out(examples, settings, 10_000)
    assert found.truncated == sum(row != whole for (row, _), (whole, _) in zip(wanted, full))


def test_batches(pairs, vocab):
    found = featurize(pairs, TokenizerSettings(vocab), 40)
    numbers = np.array([7, 199, 0, 3])
    batch = found.collate(numbers, 40)
    assert all(each.dtype == np.int32 for each in batch[:4]) and batch.examples.dtype == np.int64
    assert batch.labels.tolist() == [1, 1, 0, 0] and batch.examples.tolist() == [7, 199, 0, 3]
    every = found.collate(np.arange(200), 40)
    assert all((one == all_rows[numbers]).all() for one, all_rows in zip(batch[:3], every))
    unlabelled = dataclasses.replace(found, labels=None).collate(numbers, 40)
    assert unlabelled.labels.tolist() == [0, 0, 0, 0]
    with pytest.raises(IndexError):
        found.collate(np.arange(200), 16)


def test_any_number_of_workers_gives_the_same(pairs, vocab, monkeypatch):
    alone = featurize(pairs, TokenizerSettings(vocab), 32)
    monkeypatch.setattr(features_module, "_FEW", 0)
    monkeypatch.setattr(features_module, "_PART", 150)
    together = featurize(pairs, TokenizerSettings(vocab), 32, num_workers=2)
    for name in ("ids", "starts", "kept"):
        np.testing.assert_array_equal(getattr(together, name), getattr(alone, name))


def test_a_length_without_room_is_an_error(pairs, vocab):
    with pytest.raises(InputError, match="^--max_len 7: must be at least 8"):
        featurize(pairs, TokenizerSettings(vocab), 7)
