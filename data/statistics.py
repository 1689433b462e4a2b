"""Numbers about a tokenized text that a training run is judged by."""

from __future__ import annotations

import numpy as np

from data.tokens import TokenStore
from data.vocab import Vocabulary

_BLOCK = 1 << 22


def token_counts(store: TokenStore, vocab: Vocabulary) -> np.ndarray:
    """How often each token occurs in the store, int64 of shape (len(vocab),)."""
    counts = np.zeros(len(vocab), dtype=np.int64)
    for start in range(0, store.num_tokens, _BLOCK):
        counts += np.bincount(store.ids[start : start + _BLOCK], minlength=len(vocab))
    return counts


def unigram_entropy(store: TokenStore, vocab: Vocabulary) -> float:
    """Entropy of the token frequencies, -sum p ln p, in nats.

    It is the least masked-language-model loss that a model can have which ignores the context; a loss below
    it shows that context is used.
    """
    counts = token_counts(store, vocab)
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log(share)).sum())
