"""Where samples come from: a token store, paired and masked anew each epoch, or npz files, masked already."""

from __future__ import annotations

from typing import NamedTuple, Protocol, Sequence

import numpy as np

from data.errors import InputError
from data.npz import read_npz
from data.records import PretrainingArrays

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

    `max_length` bounds every sample's length; `max_predictions` is P of every batch.
    """

    max_length: int
    max_predictions: int

    def lengths(self, seed: int, epoch: int) -> np.ndarray:
        """Length in tokens of each sample of the epoch, int32 of shape (N,), N >= 1."""
        ...

    def collate(self, seed: int, epoch: int, indices: np.ndarray, padded_length: int) -> Batch:
        """The samples `indices` as a batch padded to `padded_length`, no less than any of their lengths."""
        ...


class NpzSource:
    """Samples from GluonNLP's npz files, with the pairs and masks stored in them: the same every epoch.

    All files are held in memory. `vocab_size` bounds the token ids and `pad_id` fills short sequences.
    Raises InputError as `data.npz.read_npz`, and for sequences longer than 512.
    """

    def __init__(self, paths: Sequence[str], vocab_size: int, pad_id: int = 0) -> None:
        parts = [read_npz(path, vocab_size) for path in paths]
        for path, part in zip(paths, parts):
            if part.valid_lengths.max() > MAX_SEQ_LENGTH:
                raise InputError(
                    f"{path}: valid_lengths holds {part.valid_lengths.max()}, above {MAX_SEQ_LENGTH}"
                )
        self._arrays = PretrainingArrays(*(_stack(column) for column in zip(*parts)))
        self._pad_id = pad_id
        self.max_length = int(self._arrays.valid_lengths.max())
        self.max_predictions = self._arrays.masked_lm_positions.shape[1]

    def lengths(self, seed: int, epoch: int) -> np.ndarray:
        """Length in tokens of each sample, int32 of shape (N,)."""
        return self._arrays.valid_lengths

    def collate(self, seed: int, epoch: int, indices: np.ndarray, padded_length: int) -> Batch:
        """The samples `indices` as a batch padded to `padded_length`."""
        arrays = PretrainingArrays(*(column[indices] for column in self._arrays))
        outside = np.arange(padded_length) >= arrays.valid_lengths[:, None]
        input_ids = _fit_width(arrays.input_ids, padded_length)
        segment_ids = _fit_width(arrays.segment_ids, padded_length)
        input_ids[outside] = self._pad_id
        segment_ids[outside] = 0
        unused = arrays.masked_lm_weights == 0
        positions = arrays.masked_lm_positions.astype(np.int32)
        masked_ids = arrays.masked_lm_ids.astype(np.int32)
        positions[unused] = 0
        masked_ids[unused] = 0
        return Batch(
            input_ids,
            segment_ids,
            arrays.valid_lengths.astype(np.int32),
            positions,
            masked_ids,
            arrays.masked_lm_weights.astype(np.float32),
            arrays.next_sentence_labels.astype(np.int32),
        )


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


def _stack(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Concatenate rows of arrays of one or two dimensions, padding narrower ones with 0."""
    if arrays[0].ndim == 1:
        return np.concatenate(arrays)
    shape = (sum(len(array) for array in arrays), max(array.shape[1] for array in arrays))
    stacked = np.zeros(shape, dtype=arrays[0].dtype)
    row = 0
    for array in arrays:
        stacked[row : row + len(array), : array.shape[1]] = array
        row += len(array)
    return stacked
