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
_FILE = "statistics.json"  # beside the store's own files, and none of them


def token_counts(store: TokenStore) -> np.ndarray:
    """Occurrences of each token in the store, int64 of shape (vocabulary size,).

    Counting takes about 5 s for a billion tokens, so the counts are kept with the store, as long as that can
    be written to. Raises InputError if what is kept does not have its checksum.
    """
    path = os.path.join(store.directory, _FILE)
    ids = store.manifest["columns"]["ids"]["shards"]  # with their checksums
    size = len(store.vocabulary)
    known = _read(path)
    if known.get("ids") == ids and len(known.get("counts", ())) == size:
        return np.array(known["counts"], dtype=np.int64)
    counts = np.zeros(size, dtype=np.int64)
    for start in range(0, store.num_tokens, _BLOCK):
        counts += np.bincount(store.ids[start : start + _BLOCK], minlength=size)
    store.check()
    with contextlib.suppress(OSError):
        write_json(path, {"counts": counts.tolist(), "ids": ids})
    return counts


def entropy(counts: np.ndarray) -> float:
    """Entropy in nats of the frequencies in `counts`, an array of any shape and of any numbers >= 0."""
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log(share)).sum())


def loss_without_context(counts: np.ndarray, known: np.ndarray | None = None) -> float:
    """The masked-LM loss in nats on a text of a model that sees the masked places alone, not their context.

    By the rule of data.pretraining.masks there stands [MASK] in 80% of cases, in 10% the token itself, in 10%
    any token of the vocabulary. (The entropy of the frequencies alone is no bound: a model that repeats what
    it sees where that is not [MASK] is about 0.5 nats below it.)

    Args:
        counts: how often each token of the vocabulary occurs in the text, shape (vocabulary size,).
        known: the same of the text that the model knows, where each token is taken to occur once more than it
            does. None: the model knows `counts` itself, and nothing without context can be better.
    """
    size = len(counts)
    share = counts / counts.sum()
    model = share if known is None else (known + 1) / (known.sum() + size)
    seen, expected = ((each + 1 / size) / 2 for each in (share, model))  # frequencies of what stands unmasked
    occurs = share > 0
    share, model = share[occurs], model[occurs]
    masked = -(share * np.log(model)).sum()
    # Where no [MASK] stands, half of the places have their token, half any: joint probabilities of both.
    itself, another = (1 + 1 / size) / 2, 1 / size / 2
    joint = itself * np.log(itself * model) + (size - 1) * another * np.log(another * model)
    unmasked = (seen * np.log(expected)).sum() - (share * joint).sum()
    return float(0.8 * masked + 0.2 * unmasked)


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
