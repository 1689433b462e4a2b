"""This rank's batches: length-bucketed, every sample once an epoch, seekable, made ahead; those of held-out
samples, and their controls: the same predictions without their own context."""

from __future__ import annotations

from functools import partial
from typing import Callable, Iterator

import numpy as np

from data.options import BatchingConfig
from data.pretraining.buckets import EpochOrder, bucket_bounds, epoch_order, padded_to, rows_per_batch
from data.pretraining.prefetch import EpochCache
from data.pretraining.randomness import epoch_key
from data.pretraining.sources import Batch, Source
from data.sharing import Share

_ORDER_PURPOSE = 2
EPOCH_SHIFT = 32
_BATCHES_MASK = (1 << EPOCH_SHIFT) - 1
_EVALUATION_SEED, _EVALUATION_BUCKETS = 0, 4
_AHEAD_AFTER = 4  # the next epoch is prepared once a quarter of this one is consumed


class PretrainingBatches:
    """Batches of one rank, epoch after epoch without end.

    An epoch is a sequence of blocks (`data.pretraining.buckets.epoch_order`), each a micro-batch of one rank.
    Epochs follow each other without a gap, and a step of G micro-batches takes the next G blocks; which of
    them are this rank's says its `share`. So every sample comes exactly once an epoch, and a step has the
    same samples with the same masks for any number of ranks: a run that goes on with another number continues
    exactly where the first one stopped. A step that ends an epoch takes its other blocks from the next one;
    with fewer blocks than it needs it takes from several.

    In one step the ranks may have blocks of different buckets. With `use_avg_len` all hold about the same
    number of tokens, so that the ranks still take about the same time. All ranks must be given the same
    source content, options and seed. Batches of a bucket have one shape, except the one block of an epoch
    that is smaller. The bucket bounds come from the lengths of epoch 0. See
    `data.pretraining.buckets.rows_per_batch` for `batching`.

    A position is epoch * 2**32 + blocks of that epoch that all ranks together have consumed: batches before
    it need not be counted to find it. A plain number of blocks from the start is understood too.
    """

    def __init__(self, source: Source, batching: BatchingConfig, seed: int, share: Share) -> None:
        self._source = source
        self._seed, self._share = seed, share
        self._batching = batching
        self._bounds = bucket_bounds(source.lengths(seed, 0), batching.num_buckets, source.max_length)
        self._orders: EpochCache[int, EpochOrder] = EpochCache(self._make_order, lambda order: order.nbytes)

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """(rows, padded length) of each bucket's batches, shortest first."""
        return [(self._rows(bound), bound) for bound in self._bounds]

    @property
    def micro_batches(self) -> int:
        """Batches of this rank in a step."""
        return len(self._share.own)

    def blocks_in_epoch(self, epoch: int) -> int:
        """Blocks, each a batch of one of the ranks, in an epoch."""
        return len(self._orders.get(epoch))

    def order(self, epoch: int) -> EpochOrder:
        """The order of an epoch's blocks: its `shapes()` say what padding costs."""
        return self._orders.get(epoch)

    def tasks(self, position: int = 0) -> Iterator[tuple[int, Callable[[], Batch]]]:
        """Tasks from `position` on, without end: the position after each batch, for a checkpoint, and the
        batch's maker. Positions rise, but not within a step; they are the same on every rank, and mean the
        same for any number of ranks and of micro-batches."""
        if position < 0:
            raise ValueError(f"position {position} is negative")
        epoch, consumed = self._place(position >> EPOCH_SHIFT, position & _BATCHES_MASK)
        share = self._share
        while True:
            for number in share.own:
                own_epoch, block = self._place(epoch, consumed + number)
                samples, padded = self._orders.get(own_epoch).block(block)
                make = partial(self._source.collate, self._seed, own_epoch, samples, padded)
                # Where this round of the ranks begins.
                begun, place = self._place(epoch, consumed + number - share.rank)
                # Not before: what belongs to the epoch before is given up for it, and must be out of use.
                if place >= self.blocks_in_epoch(begun) // _AHEAD_AFTER:
                    self._orders.prepare(begun + 1)
                if number == share.own[-1]:
                    epoch, consumed = self._place(epoch, consumed + share.micro_batches)
                yield (epoch << EPOCH_SHIFT) + consumed, make

    def _place(self, epoch: int, blocks: int) -> tuple[int, int]:
        """The epoch and the place in it of the block that many after the first of `epoch`."""
        # The first block of an epoch is there without asking how many there are.
        while blocks and blocks >= self.blocks_in_epoch(epoch):
            blocks -= self.blocks_in_epoch(epoch)
            epoch += 1
        return epoch, blocks

    def _rows(self, bound: int) -> int:
        return rows_per_batch(bound, self._batching.batch_size, self._batching.use_avg_len)

    def _make_order(self, epoch: int) -> EpochOrder:
        lengths = self._source.lengths(self._seed, epoch)
        # A later epoch may hold a longer sample than the first one had.
        longest = max(self._bounds[-1], padded_to(int(lengths.max()), self._source.max_length))
        bounds = [*self._bounds[:-1], longest]
        rows = [self._rows(bound) for bound in bounds]
        return epoch_order(lengths, bounds, rows, epoch_key(self._seed, epoch, _ORDER_PURPOSE))


def dummy_batch(
    batch_size: int, length: int, max_predictions: int, vocab_size: int, rng: np.random.Generator
) -> Batch:
    """A batch of random tokens without padding, for measuring speed (--dummy_data_len)."""
    predictions = min(max_predictions, length)
    order = np.argsort(rng.random((batch_size, length)), axis=1)[:, :predictions]
    padding = ((0, 0), (0, max_predictions - predictions))
    segment_ids = np.zeros((batch_size, length), dtype=np.int32)
    segment_ids[:, length // 2 :] = 1
    return Batch(
        rng.integers(0, vocab_size, (batch_size, length), dtype=np.int32),
        segment_ids,
        np.full(batch_size, length, dtype=np.int32),
        np.pad(np.sort(order, axis=1).astype(np.int32), padding),
        np.pad(rng.integers(0, vocab_size, (batch_size, predictions)).astype(np.int32), padding),
        np.pad(np.ones((batch_size, predictions), dtype=np.float32), padding),
        rng.integers(0, 2, batch_size, dtype=np.int32),
    )


def evaluation_batches(source: Source, batch_size: int, rank: int, world_size: int) -> Iterator[Batch]:
    """One pass over the source, each sample on one rank, with the same pairs and masks at every call.

    `batch_size` counts sequences. Batches are sorted into four length buckets and dealt to the ranks in turn,
    so a rank may have one batch more than another, or none.
    """
    for samples, padded in _evaluation_blocks(source, batch_size, rank, world_size):
        yield source.collate(_EVALUATION_SEED, 0, samples, padded)


def control_batches(source: Source, batch_size: int, rank: int, world_size: int) -> Iterator[Batch]:
    """A control for each of the `evaluation_batches`: around its own masked places each sample has the text
    of the sample that is half of all further on, mostly another document's."""
    half = len(source.lengths(_EVALUATION_SEED, 0)) // 2
    for samples, padded in _evaluation_blocks(source, batch_size, rank, world_size):
        others = (samples + half) % (2 * half or 1)
        batch = source.collate(_EVALUATION_SEED, 0, samples, padded)
        yield with_context_of(source.collate(_EVALUATION_SEED, 0, others, source.max_length), batch)


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


def _evaluation_blocks(
    source: Source, batch_size: int, rank: int, world_size: int
) -> Iterator[tuple[np.ndarray, int]]:
    lengths = source.lengths(_EVALUATION_SEED, 0)
    bounds = bucket_bounds(lengths, _EVALUATION_BUCKETS, source.max_length)
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
