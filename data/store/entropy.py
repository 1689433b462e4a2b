"""Numbers about a tokenized text that a training run is judged by."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import numpy as np

from base.errors import InputError
from base.json_files import read_json_object
from data.store.manifest import checksum_of, write_json
from data.store.tokens import TokenStore

_BLOCK = 1 << 22
_FIGURES = ("unigram_entropy", "context_free_loss")
_FILE = "statistics.json"  # beside the store's own files, and none of them


def token_counts(store: TokenStore) -> np.ndarray:
    """Occurrences of each token in the store, int64 of shape (vocabulary size,)."""
    size = len(store.vocabulary)
    counts = np.zeros(size, dtype=np.int64)
    for start in range(0, store.num_tokens, _BLOCK):
        counts += np.bincount(store.ids[start : start + _BLOCK], minlength=size)
    store.check()
    return counts


def unigram_entropy(store: TokenStore) -> float:
    """Entropy of the token frequencies, -sum p ln p, in nats. Kept, and raises, like `context_free_loss`."""
    return _statistics(store)["unigram_entropy"]


def context_free_loss(store: TokenStore) -> float:
    """The least masked-LM loss on the text, in nats, of a model that sees the masked places alone.

    A lower loss shows that context is used. Counting takes about 5 s for a billion tokens, so the result is
    kept with the store, as long as that can be written to. What earlier versions kept has no checksum, or
    not all figures, and the tokens are counted again. Raises InputError if what is kept does not have its
    checksum.
    """
    return _statistics(store)["context_free_loss"]


def entropy(counts: np.ndarray) -> float:
    """Entropy in nats of the frequencies in `counts`, an array of any shape and of any numbers >= 0."""
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log(share)).sum())


def entropy_given_place(counts: np.ndarray) -> float:
    """Entropy in nats of a token to predict, given what stands in its place by data.pretraining.masks' rule:
    [MASK] in 80% of cases, in 10% the token itself, in 10% any token of the vocabulary.

    The entropy of the frequencies alone is no bound: a model that repeats what it sees in the place where
    that is not [MASK] is about 0.5 nats below it.

    `counts`: how often each token of the vocabulary occurs, shape (vocabulary size,).
    """
    size = len(counts)
    share = counts[counts > 0] / counts.sum()
    # Where no [MASK] stands, half of the places have their token, half any: joint probabilities of both.
    itself, another = share / 2 * (1 + 1 / size), share / 2 / size
    joint = -(itself * np.log(itself)).sum() - (size - 1) * (another * np.log(another)).sum()
    seen = entropy(counts / counts.sum() / 2 + 1 / size / 2)
    return float(0.8 * entropy(counts) + 0.2 * (joint - seen))


def _statistics(store: TokenStore) -> dict[str, float]:
    path = os.path.join(store.directory, _FILE)
    ids = store.manifest["columns"]["ids"]["shards"]  # with their checksums
    known = _read(path)
    if known.get("ids") == ids and all(isinstance(known.get(name), float) for name in _FIGURES):
        return {name: known[name] for name in _FIGURES}
    counts = token_counts(store)
    figures = {"unigram_entropy": entropy(counts), "context_free_loss": entropy_given_place(counts)}
    content = {**figures, "ids": ids}
    with contextlib.suppress(OSError):
        write_json(path, content)
    return figures


def _read(path: str) -> dict[str, Any]:
    """The figures in a file, without their checksum; empty if there is none, or none with a checksum."""
    if not os.path.exists(path):
        return {}
    try:
        content = read_json_object(path)
    except InputError:
        content = {}
    checksum = content.pop("sha256", None)
    if checksum is None and content:
        return {}
    if checksum != checksum_of(content):
        raise InputError(
            f"{path} is damaged: it does not have its checksum; delete it, and the tokens are counted again"
        )
    return content
