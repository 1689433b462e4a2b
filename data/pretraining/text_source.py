"""Samples from a token store: sentence pairs and masks drawn anew each epoch."""

from __future__ import annotations

from typing import Callable, Sequence

import numpy as np

from base.errors import InputError
from data.pretraining.epochs import EpochCache
from data.pretraining.masks import mask
from data.pretraining.pairs import MIN_SEQ_LENGTH, Pairs, pair_plan
from data.pretraining.sources import MAX_SEQ_LENGTH, Batch
from data.pretraining.streams import epoch_key, sample_keys
from data.store.tokens import Progress, TokenStore, cached_store
from data.text.corpus import TextSettings
from data.tokenizing.tokenizer import TokenizerSettings
from data.tokenizing.vocab import Vocabulary

SAMPLED_STORES = 10  # segmentations kept when SentencePiece samples, then they repeat
_PAIRS_PURPOSE = 1


class RawSource:
    """Samples from a token store: a fresh pairing and a fresh mask every epoch.

    With `static_masks` pairs and masks are those of epoch 0 in every epoch, as in files of masked instances;
    only the order of samples is drawn anew. `store` may also be a function from the epoch to its store, for
    tokenizers that sample. An epoch's plan takes 13 bytes a sample (21 for stores of 2**32 tokens and more);
    two are kept, for epochs that follow each other. Raises InputError for options out of range.
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
        static_masks: bool = False,
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
        self._static_masks = static_masks
        self._plans: EpochCache[tuple[int, int], tuple[TokenStore, Pairs]] = EpochCache(
            self._make_plan, lambda plan: plan[1].nbytes
        )

    def lengths(self, seed: int, epoch: int) -> np.ndarray:
        """Length in tokens of each sample of the epoch, int32 of shape (N,)."""
        return self._plan(seed, epoch)[1].lengths()

    def columns(self, padded_length: int) -> int:
        """Prediction columns P of batches padded to `padded_length`: as many as such a sequence can have.

        The decoder pays for every column, so a batch of short sequences must not have those of a long one.
        """
        return min(self.max_predictions, max(1, round(padded_length * self._masked_lm_prob)))

    def collate(self, seed: int, epoch: int, indices: np.ndarray, padded_length: int) -> Batch:
        """The samples `indices`, masked, as a batch padded to `padded_length`.

        Raises InputError naming a file of the store that was cut since the store was opened.
        """
        store, pairs = self._plan(seed, epoch)
        input_ids, segment_ids, valid_lengths = _assemble(store, pairs, indices, padded_length, self._vocab)
        store.check()
        corrupted, positions, masked_ids, weights = mask(
            input_ids,
            valid_lengths,
            sample_keys(seed, self._drawn_in(epoch), indices),
            self._vocab,
            self._masked_lm_prob,
            self.columns(padded_length),
            self._whole_word_mask,
        )
        labels = pairs.is_random[indices].astype(np.int32)
        return Batch(corrupted, segment_ids, valid_lengths, positions, masked_ids, weights, labels)

    def _drawn_in(self, epoch: int) -> int:
        """The epoch whose pairs and masks an epoch has."""
        return 0 if self._static_masks else epoch

    def _plan(self, seed: int, epoch: int) -> tuple[TokenStore, Pairs]:
        return self._plans.get((seed, self._drawn_in(epoch)))

    def _make_plan(self, key: tuple[int, int]) -> tuple[TokenStore, Pairs]:
        seed, epoch = key
        store = self._store_of(epoch)
        if store.vocabulary_sha256 != self._vocab.sha256:
            raise InputError("the token store was made with another vocabulary; tokenize the text again")
        pairs_key = epoch_key(seed, epoch, _PAIRS_PURPOSE)
        try:
            return store, pair_plan(store, self.max_length, self._short_seq_prob, pairs_key)
        finally:
            store.check()  # zeros in the place of offsets can raise anything


def epoch_stores(
    paths: Sequence[str],
    settings_of: Callable[[int], TokenizerSettings],
    cache_dir: str,
    num_workers: int = 1,
    text: TextSettings = TextSettings(),  # noqa: B008 (frozen)
    progress: Progress | None = None,
) -> TokenStore | Callable[[int], TokenStore]:
    """What RawSource takes as `store`: one store, or for a tokenizer that samples one for each of ten epochs.

    `settings_of` gives the tokenizer's settings for a seed. Sampling (--sp_nbest other than 0 and 1) costs
    one tokenization for each of the first ten epochs, in the background while the epoch before it is in use;
    from the eleventh epoch on the ten stores are used again. Measured on one core: 0.2 million tokens a
    second with --sp_nbest -1, 0.1 with 64 (without sampling 0.7). Disk: ten times about 2.5 bytes a token,
    and low --sp_alpha makes more tokens of the same text (0.1: nearly twice as many).
    """
    first = settings_of(0)
    if not first.samples:
        return cached_store(paths, first, cache_dir, num_workers, text, progress)

    def store_of(epoch: int) -> TokenStore:
        settings = settings_of(epoch % SAMPLED_STORES)
        return cached_store(paths, settings, cache_dir, num_workers, text, progress)

    return store_of


def _assemble(
    store: TokenStore, pairs: Pairs, indices: np.ndarray, padded_length: int, vocab: Vocabulary
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[CLS] A [SEP] B [SEP] of each pair: ids and segments int32 (B, L), valid lengths int32 (B,)."""
    a_start, b_start = (column[indices].astype(np.int64) for column in (pairs.a_start, pairs.b_start))
    a_length, b_length = (column[indices].astype(np.int64) for column in (pairs.a_length, pairs.b_length))
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
