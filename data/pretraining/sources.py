"""What batches are made from: samples by index, whether made from text or read from files."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

MAX_SEQ_LENGTH = 512  # rows of BERT's position embedding


class Batch(NamedTuple):
    """One rank's batch as NumPy arrays: B sequences padded to L tokens, each with up to P predictions.

    `next_sentence_labels` are GluonNLP's and Google's: 1 where B is a random sentence, 0 where it really
    follows A.
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


def dummy_batch(
    batch_size: int, length: int, max_predictions: int, vocab_size: int, rng: np.random.Generator
) -> Batch:
    """A batch of random tokens without padding, for measuring speed (--dummy_data_len)."""
    predictions = min(max_predictions, length)
    order = np.argsort(rng.random((batch_size, length)), axis=1)[:, :predictions]
    segment_ids = np.zeros((batch_size, length), dtype=np.int32)
    segment_ids[:, length // 2 :] = 1
    return Batch(
        rng.integers(0, vocab_size, (batch_size, length), dtype=np.int32),
        segment_ids,
        np.full(batch_size, length, dtype=np.int32),
        _fit_width(np.sort(order, axis=1), max_predictions),
        _fit_width(rng.integers(0, vocab_size, (batch_size, predictions)), max_predictions),
        _fit_width(np.ones((batch_size, predictions)), max_predictions).astype(np.float32),
        rng.integers(0, 2, batch_size, dtype=np.int32),
    )


def _fit_width(array: np.ndarray, width: int) -> np.ndarray:
    """A new int32 array (B, width), cut or padded with 0."""
    fitted = np.zeros((len(array), width), dtype=np.int32)
    shared = min(width, array.shape[1])
    fitted[:, :shared] = array[:, :shared]
    return fitted
