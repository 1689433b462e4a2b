"""Numbers about a tokenized text that a training run is judged by."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from typing import Any, Mapping

import numpy as np

from base.errors import InputError
from data.store.journal import read_json, write_json
from data.store.tokens import TokenStore

_BLOCK = 1 << 22
_FILE = "statistics.json"  # beside the store's own files, and none of them


def token_counts(store: TokenStore) -> np.ndarray:
    """How often each token occurs in the store, int64 of shape (vocabulary size,)."""
    size = len(store.vocabulary)
    counts = np.zeros(size, dtype=np.int64)
    for start in range(0, store.num_tokens, _BLOCK):
        counts += np.bincount(store.ids[start : start + _BLOCK], minlength=size)
    store.check()
    return counts


def unigram_entropy(store: TokenStore) -> float:
    """Entropy of the token frequencies, -sum p ln p, in nats.

    It is the least masked-language-model loss that a model can have which ignores the context; a loss below
    it shows that context is used. Counting takes about 5 s for a billion tokens, so the result is kept with
    the store, as long as that can be written to. What earlier versions kept has no checksum and is not
    believed: the tokens are counted again. Raises InputError if what is kept does not have its checksum.
    """
    path = os.path.join(store.directory, _FILE)
    ids = store.manifest["columns"]["ids"]["shards"]  # with their checksums
    known = _read(path)
    if known.get("ids") == ids and isinstance(known.get("unigram_entropy"), float):
        return float(known["unigram_entropy"])
    counts = token_counts(store)
    share = counts[counts > 0] / counts.sum()
    entropy = float(-(share * np.log(share)).sum())
    content = {"unigram_entropy": entropy, "ids": ids}
    with contextlib.suppress(OSError):
        write_json(path, {**content, "sha256": _checksum(content)})
    return entropy


def _read(path: str) -> dict[str, Any]:
    """What was kept, without its checksum; empty if there is nothing, or nothing with a checksum."""
    if not os.path.exists(path):
        return {}
    content = read_json(path)
    checksum = content.pop("sha256", None)
    if checksum is None and content:
        return {}
    if checksum != _checksum(content):
        raise InputError(
            f"{path} is damaged: it does not have its checksum; delete it, and the tokens are counted again"
        )
    return content


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode("utf-8")).hexdigest()
