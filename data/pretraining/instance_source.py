"""Samples from an instance store: pairs and masks as the files had them, the same every epoch."""

from __future__ import annotations

import numpy as np

from base.errors import InputError
from data.formats.records import MAX_LENGTH
from data.pretraining.sources import Batch
from data.store.instances import InstanceStore

_ROWS_AT_ONCE = 1 << 20


class StoredSource:
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
        """The samples `indices` as a batch padded to `padded_length`, no less than any of their lengths."""
        return padded_batch(self._store, indices, padded_length, self.columns(padded_length), self._pad_id)

    def columns(self, padded_length: int) -> int:
        """Prediction columns P of batches padded to `padded_length`: as many as its instances need.

        A bucket's batches so have one shape, and those of short instances none of a long one's columns.
        """
        return int(self._predictions[min(padded_length, len(self._predictions) - 1)])


def padded_batch(
    store: InstanceStore, indices: np.ndarray, padded_length: int, num_predictions: int, pad_id: int
) -> Batch:
    """Rows of the store as a Batch of shapes (B, padded_length) and (B, num_predictions).

    `indices` are integers of shape (B,). Raises ValueError if an instance does not fit in, InputError naming
    a file of the store that was cut since the store was opened.
    """
    try:
        return _padded_batch(store, indices, padded_length, num_predictions, pad_id)
    finally:
        store.check()


def _padded_batch(
    store: InstanceStore, indices: np.ndarray, padded_length: int, num_predictions: int, pad_id: int
) -> Batch:
    token_ends, prediction_ends = store.token_ends, store.prediction_ends
    following = indices + 1
    start, lengths = token_ends[indices], store.lengths[indices]
    first = prediction_ends[indices]
    counts = prediction_ends[following] - first
    if len(indices) and (lengths.max() > padded_length or counts.max() > num_predictions):
        raise ValueError(
            f"instances of up to {lengths.max()} tokens and {counts.max()} predictions do not fit into "
            f"{padded_length} and {num_predictions}"
        )
    # Places of padding point beside the row, at the end beside the store; they are overwritten.
    place = np.arange(padded_length)
    source = start[:, None] + place
    outside = place >= lengths[:, None]
    input_ids = store.ids.take(source, mode="clip").astype(np.int32)
    segment_ids = store.segments.take(source, mode="clip").astype(np.int32)
    np.copyto(input_ids, pad_id, where=outside)
    np.copyto(segment_ids, 0, where=outside)

    place = np.arange(num_predictions)
    source = first[:, None] + place
    outside = place >= counts[:, None]
    columns = []
    for column in (store.positions, store.masked_ids, store.weights):
        dtype = np.dtype(np.float32 if column is store.weights else np.int32)
        values = np.zeros(source.shape, dtype)
        if len(column):  # of a store without a single prediction there is nothing to take
            values = column.take(source, mode="clip").astype(dtype)
            np.copyto(values, 0, where=outside)
        columns.append(values)
    return Batch(
        input_ids,
        segment_ids,
        np.array(lengths, dtype=np.int32),
        columns[0],
        columns[1],
        columns[2],
        store.labels[indices].astype(np.int32),
    )


def _most_predictions(store: InstanceStore) -> np.ndarray:
    """For each length 0..512 one more than the most predictions of its instances, 0 where it has none."""
    most = np.zeros(MAX_LENGTH + 1, dtype=np.int64)
    for start in range(0, store.num_instances, _ROWS_AT_ONCE):
        lengths = store.lengths[start : start + _ROWS_AT_ONCE].astype(np.int64)
        counts = np.diff(store.prediction_ends[start : start + _ROWS_AT_ONCE + 1])
        if lengths.max() > MAX_LENGTH:
            # The readers refuse such files; a store by someone else may hold one.
            raise InputError(
                f"{store.source_of(start + int(lengths.argmax()))} has {lengths.max()} tokens, above "
                f"{MAX_LENGTH}"
            )
        base = int(counts.max()) + 1
        seen = np.flatnonzero(np.bincount(lengths * base + counts))
        np.maximum.at(most, seen // base, seen % base + 1)
    return most
