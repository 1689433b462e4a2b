"""Samples by index, as batches are made of them: from a token store, with sentence pairs and masks drawn anew
each epoch, or from an instance store, with those that its files had."""

from __future__ import annotations

from typing import Callable, NamedTuple, Protocol

import numpy as np

from base.errors import InputError
from data.options import MAX_POSITIONS, MaskingConfig
from data.pretraining.masks import mask
from data.pretraining.pairs import Pairs, joined, pair_plan, single_plan
from data.pretraining.prefetch import EpochCache
from data.pretraining.randomness import epoch_key, sample_keys
from data.store.instances import InstanceStore
from data.store.tokens import TokenStore
from data.tokenizing.vocab import Vocabulary

_PAIRS_PURPOSE = 1
_ROWS_AT_ONCE = 1 << 20


class Batch(NamedTuple):
    """One rank's batch as NumPy arrays: B sequences padded to L tokens, each with up to P predictions.

    `next_sentence_labels` are GluonNLP's and Google's: 1 where B is a random sentence, 0 where it really
    follows A; -1 where there is no B.
    """

    input_ids: np.ndarray  # int32 (B, L), padded with [PAD]
    segment_ids: np.ndarray  # int32 (B, L), 0 for [CLS] A [SEP] and padding, 1 for B [SEP]
    valid_lengths: np.ndarray  # int32 (B,), tokens that are not padding
    masked_positions: np.ndarray  # int32 (B, P), padded with 0
    masked_ids: np.ndarray  # int32 (B, P), the tokens to predict, padded with 0
    masked_weights: np.ndarray  # float32 (B, P), 0 for padding
    next_sentence_labels: np.ndarray  # int32 (B,)


class Source(Protocol):
    """Samples of an epoch by index. Sample i of epoch e is a pure function of (seed, e, i).

    `max_length` bounds every sample's length, and `max_predictions` P of every batch.
    """

    max_length: int
    max_predictions: int

    def lengths(self, seed: int, epoch: int) -> np.ndarray:
        """Length in tokens of each sample of the epoch, int32 of shape (N,), N >= 1."""
        ...

    def collate(self, seed: int, epoch: int, indices: np.ndarray, padded_length: int) -> Batch:
        """The samples `indices` as a batch padded to `padded_length`, no less than any of their lengths.

        P depends on `padded_length` alone, so that the batches of a bucket have one shape.
        """
        ...


class TextSource:
    """Samples from a token store: a fresh pairing and a fresh mask every epoch.

    With `static_masks` pairs and masks are those of epoch 0 in every epoch, as in files of masked instances;
    only the order of samples is drawn anew. `store` may also be a function from the epoch to its store, for
    tokenizers that sample. An epoch's plan takes 13 bytes a sample (21 for stores of 2**32 tokens and more);
    two are kept, for epochs that follow each other. Raises InputError for a length out of range.
    """

    def __init__(
        self, store: TokenStore | Callable[[int], TokenStore], vocab: Vocabulary, masking: MaskingConfig
    ) -> None:
        masking.check()
        self.max_length, self.max_predictions = masking.length, masking.predictions
        self._store, self._vocab = store, vocab
        self._masking = masking
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
        return min(self.max_predictions, max(1, round(padded_length * self._masking.masked_lm_prob)))

    def collate(self, seed: int, epoch: int, indices: np.ndarray, padded_length: int) -> Batch:
        """The samples `indices`, masked, as a batch padded to `padded_length`.

        Raises InputError naming a file of the store that was cut since the store was opened.
        """
        store, pairs = self._plan(seed, epoch)
        own = Pairs(*(column[indices] for column in pairs))
        lengths = own.lengths()
        a, vocab = (own.a_start, own.a_length), self._vocab
        input_ids, segment_ids = joined(store.ids, a, own.b_start, lengths, padded_length, vocab)
        store.check()
        corrupted, positions, masked_ids, weights = mask(
            input_ids,
            lengths,
            sample_keys(seed, self._drawn_in(epoch), indices),
            vocab,
            self._masking,
            self.columns(padded_length),
        )
        labels = np.where(own.b_length > 0, own.is_random, -1).astype(np.int32)
        return Batch(corrupted, segment_ids, lengths, positions, masked_ids, weights, labels)

    def _drawn_in(self, epoch: int) -> int:
        """The epoch whose pairs and masks an epoch has."""
        return 0 if self._masking.static_masks else epoch

    def _plan(self, seed: int, epoch: int) -> tuple[TokenStore, Pairs]:
        return self._plans.get((seed, self._drawn_in(epoch)))

    def _make_plan(self, key: tuple[int, int]) -> tuple[TokenStore, Pairs]:
        seed, epoch = key
        store = self._store if isinstance(self._store, TokenStore) else self._store(epoch)
        if store.vocabulary_sha256 != self._vocab.sha256:
            raise InputError("the token store was made with another vocabulary; tokenize the text again")
        pairs_key = epoch_key(seed, epoch, _PAIRS_PURPOSE)
        try:
            if self._masking.single_sentences:
                return store, single_plan(store, self.max_length)
            return store, pair_plan(store, self.max_length, self._masking.short_seq_prob, pairs_key)
        finally:
            store.check()  # zeros in the place of offsets can raise anything


class InstanceSource:
    """Samples of an InstanceStore; see data.pretraining.sources.Source. `pad_id` fills short sequences.

    Sample i is instance i in every epoch, so that any number of ranks can share any number of files. Beside
    the mapped store it takes a few KB.
    """

    def __init__(self, store: InstanceStore, pad_id: int = 0) -> None:
        self._store = store
        self._pad_id = pad_id
        try:
            self._predictions = _most_predictions(store)
        finally:
            store.check()
        self.max_length = int(np.flatnonzero(self._predictions)[-1])
        self._predictions = np.maximum(np.maximum.accumulate(self._predictions) - 1, 1)
        self.max_predictions = int(self._predictions[-1])

    def lengths(self, seed: int, epoch: int) -> np.ndarray:
        """Length in tokens of each sample, int32 of shape (N,): the mapped column itself, read-only."""
        return self._store.lengths

    def collate(self, seed: int, epoch: int, indices: np.ndarray, padded_length: int) -> Batch:
        """The samples `indices` as a batch padded to `padded_length`, no less than any of their lengths.

        Raises InputError naming a file of the store that was cut since the store was opened.
        """
        store = self._store
        start, lengths = store.token_ends[indices], store.lengths[indices]
        first = store.prediction_ends[indices]
        counts = store.prediction_ends[indices + 1] - first
        store.check()  # zeros in the place of these would be wrong places
        tokens = places(start, lengths, padded_length)
        predictions = places(first, counts, self.columns(padded_length))
        batch = Batch(
            padded(store.ids, tokens, np.int32, self._pad_id),
            padded(store.segments, tokens, np.int32),
            np.array(lengths, dtype=np.int32),
            padded(store.positions, predictions, np.int32),
            padded(store.masked_ids, predictions, np.int32),
            padded(store.weights, predictions, np.float32),
            store.labels[indices].astype(np.int32),
        )
        store.check()
        return batch

    def columns(self, padded_length: int) -> int:
        """Prediction columns P of batches padded to `padded_length`: as many as its instances need.

        A bucket's batches so have one shape, and those of short instances none of a long one's columns.
        """
        return int(self._predictions[min(padded_length, len(self._predictions) - 1)])


def places(starts: np.ndarray, counts: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Places in a column of rows of `counts` numbers from `starts` on, int64 (B, width), and which of them
    are padding, bool: these point beside the row, at the end beside the column."""
    place = np.arange(width)
    return starts[:, None] + place, place >= counts[:, None]


def padded(
    column: np.ndarray, where: tuple[np.ndarray, np.ndarray], dtype: type, fill: int = 0
) -> np.ndarray:
    """The numbers of a column at these `places`, (B, width), `fill` for padding."""
    source, outside = where
    if not len(column):  # of a store without a single prediction there is nothing to take
        return np.zeros(source.shape, dtype)
    values: np.ndarray = column.take(source, mode="clip").astype(dtype)
    np.copyto(values, fill, where=outside)
    return values


def _most_predictions(store: InstanceStore) -> np.ndarray:
    """For each length 0..512 one more than the most predictions of its instances, 0 where it has none."""
    most = np.zeros(MAX_POSITIONS + 1, dtype=np.int64)
    for start in range(0, store.num_instances, _ROWS_AT_ONCE):
        lengths = store.lengths[start : start + _ROWS_AT_ONCE].astype(np.int64)
        counts = np.diff(store.prediction_ends[start : start + _ROWS_AT_ONCE + 1])
        base = int(counts.max()) + 1
        seen = np.flatnonzero(np.bincount(lengths * base + counts))
        np.maximum.at(most, seen // base, seen % base + 1)
    return most
