"""Batches of held-out samples, and their controls: the same predictions without their own context."""

from __future__ import annotations

from typing import Iterator

import numpy as np

from data.pretraining.buckets import bucket_bounds, epoch_order
from data.pretraining.sources import Batch, Source

_SEED = 0
_BUCKETS = 4


def evaluation_batches(source: Source, batch_size: int, rank: int, world_size: int) -> Iterator[Batch]:
    """One pass over the source, each sample on one rank, with the same pairs and masks at every call.

    `batch_size` counts sequences. Batches are sorted into four length buckets and dealt to the ranks in turn,
    so a rank may have one batch more than another, or none.
    """
    for samples, padded in _blocks(source, batch_size, rank, world_size):
        yield source.collate(_SEED, 0, samples, padded)


def control_batches(source: Source, batch_size: int, rank: int, world_size: int) -> Iterator[Batch]:
    """A control for each of the `evaluation_batches`: around its own masked places each sample has the text
    of the sample that is half of all further on, mostly another document's."""
    half = len(source.lengths(_SEED, 0)) // 2
    for samples, padded in _blocks(source, batch_size, rank, world_size):
        others = (samples + half) % (2 * half or 1)
        batch = source.collate(_SEED, 0, samples, padded)
        yield with_context_of(source.collate(_SEED, 0, others, source.max_length), batch)


def with_context_of(others: Batch, batch: Batch) -> Batch:
    """`batch` with the text of `others`, row by row, in the place of its own where it is not to be predicted.

    Lengths, segments, special tokens, masked places, what stands there and what is to be predicted stay. The
    text is unmasked; a row that needs more of it than there is begins it anew.
    """
    ids, text = batch.input_ids.copy(), _text(batch)
    unmasked = others.input_ids.copy()
    row, column = np.nonzero(batch.masked_weights)
    text[row, batch.masked_positions[row, column]] = False
    row, column = np.nonzero(others.masked_weights)
    unmasked[row, others.masked_positions[row, column]] = others.masked_ids[row, column]
    of_others = _text(others)
    found = unmasked[of_others]  # one row after the other
    counts = of_others.sum(axis=1)
    row, column = np.nonzero(text)
    number = np.arange(len(row)) - np.searchsorted(row, row)  # in its row
    has_some = counts[row] > 0
    row, column, number = row[has_some], column[has_some], number[has_some]
    ids[row, column] = found[(np.cumsum(counts) - counts)[row] + number % counts[row]]
    return batch._replace(input_ids=ids)


def _blocks(source: Source, batch_size: int, rank: int, world_size: int) -> Iterator[tuple[np.ndarray, int]]:
    lengths = source.lengths(_SEED, 0)
    bounds = bucket_bounds(lengths, _BUCKETS, source.max_length)
    order = epoch_order(lengths, bounds, [batch_size] * len(bounds), None)
    for place in range(rank, len(order), world_size):
        yield order.block(place)


def _text(batch: Batch) -> np.ndarray:
    """Bool (B, L): all places but [CLS], both [SEP] and padding."""
    rows, length = batch.input_ids.shape
    text = np.arange(length) < (batch.valid_lengths - 1)[:, None]
    text[:, 0] = False
    text[:, :-1] &= batch.segment_ids[:, :-1] >= batch.segment_ids[:, 1:]  # the last of segment 0 is a [SEP]
    return text
