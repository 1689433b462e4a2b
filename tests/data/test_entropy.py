"""Frequencies of a text's tokens, and what a model can reach that knows nothing else."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from base.errors import InputError
from data.store.entropy import entropy, loss_without_context, token_counts
from data.store.tokens import cached_store
from data.tokenizing.tokenizer import TokenizerSettings
from data.tokenizing.vocab import SPECIAL_TOKENS, vocabulary_from_tokens


@pytest.fixture
def store(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("One two.\nThree!\n\nFour five six.\nSeven.\n", encoding="utf-8")
    vocab = vocabulary_from_tokens([*SPECIAL_TOKENS, "."])
    return cached_store([str(text)], TokenizerSettings(vocab), str(tmp_path))


def test_entropy_by_hand(store):
    counts = token_counts(store)  # seven words and "!" are unknown, and there are three full stops
    assert counts.tolist() == [0, 8, 0, 0, 0, 3]
    assert entropy(counts) == pytest.approx(8 / 11 * np.log(11 / 8) + 3 / 11 * np.log(11 / 3))


@pytest.mark.parametrize("known", [None, np.array([0, 3, 7, 2, 2])])
def test_the_loss_without_context_by_enumeration(known):
    """Every token to predict with everything that may stand in its place."""
    counts = np.array([5, 0, 2, 1, 1])
    size = len(counts)

    def joint(share):
        table = np.zeros((size, size + 1))  # token, what stands there; the last is [MASK]
        table[:, size] = 0.8 * share
        table[:, :size] = 0.1 * np.diag(share) + 0.1 * share[:, None] / size
        return table

    text = joint(counts / counts.sum())
    model = text if known is None else joint((known + 1) / (known + 1).sum())
    given = model / model.sum(0, keepdims=True)
    used = text > 0
    assert text.sum() == pytest.approx(1)
    assert loss_without_context(counts, known) == pytest.approx(-(text[used] * np.log(given[used])).sum())


@pytest.fixture
def counted(store):
    """A store whose tokens were counted, its statistics.json, and the content of the file."""
    assert token_counts(store).sum() == 11
    path = Path(store.directory) / "statistics.json"
    return store, path, json.loads(path.read_text("utf-8"))


def test_tokens_are_counted_once_and_again_for_other_ids(counted, monkeypatch):
    store, path, remembered = counted
    with monkeypatch.context() as changed:
        changed.setattr("data.store.entropy.np.bincount", lambda *_, **__: 1 / 0)
        assert token_counts(store).sum() == 11, "it is read"
    earlier = {"unigram_entropy": 1.25, "ids": remembered["ids"]}
    for others in ({"counts": [1] * 6, "ids": []}, earlier):  # of other text, of an earlier version
        checksum = hashlib.sha256(json.dumps(others, sort_keys=True).encode()).hexdigest()
        path.write_text(json.dumps({**others, "sha256": checksum}), "utf-8")
        assert token_counts(store).tolist() == remembered["counts"], "it is counted"
        assert json.loads(path.read_text("utf-8")) == remembered


def test_changed_counts_are_an_error_that_names_the_file(counted):
    store, path, remembered = counted
    content = path.read_bytes()
    forged = json.dumps({**remembered, "counts": [1] * 6}).encode()
    for damaged in (forged, content.replace(b"ids", b"idz"), content[:-9], b"", b"{}", b"[1]"):
        path.write_bytes(damaged)
        with pytest.raises(InputError) as caught:
            token_counts(store)
        assert str(caught.value).startswith(f"{path} is damaged") and "delete it" in str(caught.value)
