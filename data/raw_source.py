"""Samples from a token store: sentence pairs and masks drawn anew each epoch."""

from __future__ import annotations

import threading
from typing import Callable, Sequence

import numpy as np

from data.errors import InputError
from data.instances import MIN_SEQ_LENGTH, Pairs, mask, pair_plan
from data.sources import MAX_SEQ_LENGTH, Batch
from data.streams import epoch_generator, sample_keys
from data.tokenizer import SentencePieceTokenizer, Tokenizer
from data.tokens import Progress, TokenStore, cached_store
from data.vocab import Vocabulary

SAMPLED_STORES = 10  # segmentations kept when SentencePiece samples, then they repeat
_PAIRS_PURPOSE = 1
_EPOCHS_KEPT = 2  # while one epoch ends, prefetching already makes batches of the next


class RawSource:
    """Samples from a token store: a fresh pairing and a fresh mask every epoch.

    `store` may also be a function from the epoch to its store, for tokenizers that sample. An epoch's plan
    takes 33 bytes a sample; the last two are kept. Raises InputError for options out of range.
    """

    def __init__(
        self,
        store: TokenStore | Callable[[int], TokenStore],
        vocab: Vocabulary,
        max_seq_length: int,
        short_seq_prob: float,
        masked_lm_prob: float,
        max_predictions_per_seq: int,
        whole_word_mask: bool = False,
    ) -> None:
        if not MIN_SEQ_LENGTH <= max_seq_length <= MAX_SEQ_LENGTH:
            raise InputError(
                f"--max_seq_length {max_seq_length}: must be from {MIN_SEQ_LENGTH} to {MAX_SEQ_LENGTH}, "
                "the positions that BERT has"
            )
        if not 0 <= short_seq_prob <= 1:
            raise InputError(f"--short_seq_prob {short_seq_prob}: must be from 0 to 1")
        if not 0 < masked_lm_prob <= 1:
            raise InputError(f"--masked_lm_prob {masked_lm_prob}: must be above 0 and at most 1")
        if max_predictions_per_seq < 1:
            raise InputError(f"--max_predictions_per_seq {max_predictions_per_seq}: must be at least 1")
        self.max_length = max_seq_length
        self.max_predictions = max_predictions_per_seq
        self._store_of: Callable[[int], TokenStore]
        if isinstance(store, TokenStore):
            fixed = store
            self._store_of = lambda epoch: fixed
        else:
            self._store_of = store
        self._vocab = vocab
        self._short_seq_prob = short_seq_prob
        self._masked_lm_prob = masked_lm_prob
        self._whole_word_mask = whole_word_mask
        self._plans: dict[tuple[int, int], tuple[TokenStore, Pairs]] = {}
        self._lock = threading.Lock()

    def lengths(self, seed: int, epoch: int) -> np.ndarray:
        """Length in tokens of each sample of the epoch, int32 of shape (N,)."""
        return self._plan(seed, epoch)[1].lengths()

    def collate(self, seed: int, epoch: int, indices: np.ndarray, padded_length: int) -> Batch:
        """The samples `indices`, masked, as a batch padded to `padded_length`."""
        store, pairs = self._plan(seed, epoch)
        input_ids, segment_ids, valid_lengths = _assemble(store, pairs, indices, padded_length, self._vocab)
        keys = sample_keys(seed, epoch, indices)
        corrupted, positions, masked_ids, weights = mask(
            input_ids,
            valid_lengths,
            keys,
            self._vocab,
            self._masked_lm_prob,
            self.max_predictions,
            self._whole_word_mask,
        )
        labels = pairs.is_random[indices].astype(np.int32)
        return Batch(corrupted, segment_ids, valid_lengths, positions, masked_ids, weights, labels)

    def _plan(self, seed: int, epoch: int) -> tuple[TokenStore, Pairs]:
        with self._lock:
            if (seed, epoch) not in self._plans:
                store = self._store_of(epoch)
                if store.vocabulary_sha256 != self._vocab.sha256:
                    raise InputError(
                        "the token store was made with another vocabulary; tokenize the text again"
                    )
                rng = epoch_generator(seed, epoch, _PAIRS_PURPOSE)
                pairs = pair_plan(store, self.max_length, self._short_seq_prob, rng)
                while len(self._plans) >= _EPOCHS_KEPT:
                    del self._plans[next(iter(self._plans))]
                self._plans[seed, epoch] = (store, pairs)
            return self._plans[seed, epoch]


def epoch_stores(
    paths: Sequence[str],
    tokenizer_of: Callable[[int], Tokenizer],
    vocab: Vocabulary,
    cache_dir: str,
    progress: Progress | None = None,
) -> TokenStore | Callable[[int], TokenStore]:
    """What RawSource takes as `store`: one store, or for a tokenizer that samples one for each of ten epochs.

    `tokenizer_of` makes the tokenizer from a seed. Sampling (--sp_nbest other than 0 and 1) costs one
    tokenization an epoch and the disk of ten stores; from the eleventh epoch on the ten are used again.
    """
    first = tokenizer_of(0)
    if not (isinstance(first, SentencePieceTokenizer) and first.samples):
        return cached_store(paths, first, vocab, cache_dir, progress)

    def store_of(epoch: int) -> TokenStore:
        return cached_store(paths, tokenizer_of(epoch % SAMPLED_STORES), vocab, cache_dir, progress)

    return store_of


def _assemble(
    store: TokenStore, pairs: Pairs, indices: np.ndarray, padded_length: int, vocab: Vocabulary
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[CLS] A [SEP] B [SEP] of each pair: ids and segments int32 (B, L), valid lengths int32 (B,)."""
    a_start, b_start = pairs.a_start[indices], pairs.b_start[indices]
    a_length, b_length = pairs.a_end[indices] - a_start, pairs.b_end[indices] - b_start
    valid_lengths = (a_length + b_length + 3).astype(np.int32)
    place = np.arange(padded_length)
    after_a = place >= (a_length + 2)[:, None]
    outside = place >= valid_lengths[:, None]
    source = np.where(after_a, (b_start - a_length - 2)[:, None], (a_start - 1)[:, None])
    source += place
    # Places of special tokens and padding point beside the range or the store; they are overwritten below.
    input_ids = store.ids.take(source, mode="clip").astype(np.int32)
    rows = np.arange(len(indices))
    input_ids[:, 0] = vocab.cls_id
    input_ids[rows, a_length + 1] = vocab.sep_id
    input_ids[rows, valid_lengths - 1] = vocab.sep_id
    input_ids[outside] = vocab.pad_id
    segment_ids = (after_a & ~outside).astype(np.int32)
    return input_ids, segment_ids, valid_lengths
