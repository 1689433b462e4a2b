"""This rank's batches: length-bucketed, every sample once an epoch, seekable, made ahead."""

from __future__ import annotations

import warnings
from functools import partial
from types import TracebackType
from typing import Callable, Iterator

import numpy as np

from data.buckets import EpochOrder, bucket_bounds, epoch_order, padded_to, rows_per_batch
from data.npz import write_npz
from data.prefetch import Prefetcher
from data.raw_source import RawSource
from data.records import PretrainingArrays
from data.sources import Batch, NpzSource, Source, dummy_batch
from data.streams import epoch_generator

__all__ = [
    "Batch",
    "NpzSource",
    "PretrainingBatches",
    "RawSource",
    "Source",
    "dummy_batch",
    "evaluation_batches",
    "prefetched",
    "write_evaluation_set",
]

_ORDER_PURPOSE = 2
EPOCH_SHIFT = 32
_EVALUATION_SEED = 0
_EVALUATION_BUCKETS = 4
_WRITE_ROWS = 1024


class PretrainingBatches:
    """Batches of one rank, epoch after epoch without end.

    All ranks take one step's batches from the same length bucket and have the same number of batches, so
    they must be given the same source content, options and seed. Every sample comes once an epoch. Batches of
    a bucket have one shape, except that an epoch's last incomplete global batch is split over the ranks as
    evenly as it goes (and takes from the batch before it if it has fewer samples than ranks). The bucket
    bounds come from the lengths of epoch 0. `batch_size` counts sequences of a rank, or with `use_avg_len`
    its tokens (see `data.buckets.rows_per_batch`).
    """

    def __init__(
        self,
        source: Source,
        batch_size: int,
        use_avg_len: bool,
        num_buckets: int,
        seed: int,
        rank: int,
        world_size: int,
        shuffle: bool = True,
    ) -> None:
        self._source = source
        self._seed, self._shuffle = seed, shuffle
        self._rank, self._world_size = rank, world_size
        self._batch_size, self._use_avg_len = batch_size, use_avg_len
        self._bounds = bucket_bounds(source.lengths(seed, 0), num_buckets, source.max_length)
        self._order: tuple[int, EpochOrder] = (0, self._make_order(0))
        self._position = 0

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """(rows, padded length) of each bucket's batches, shortest first."""
        return [(rows_per_batch(bound, self._batch_size, self._use_avg_len), bound) for bound in self._bounds]

    @property
    def position(self) -> int:
        """Where the next batch is, for a checkpoint; it rises, and is the same on every rank.

        It is epoch * 2**32 + batches consumed in that epoch: batches before it need not be counted to find
        it.
        """
        return self._position

    def seek(self, position: int) -> None:
        """Continue at a `position`; a plain number of batches from the start is understood too."""
        if position < 0:
            raise ValueError(f"position {position} is negative")
        self._position = position

    def batches_per_epoch(self, epoch: int) -> int:
        """Batches of this, and of every, rank in an epoch."""
        return len(self._epoch_order(epoch))

    def __iter__(self) -> Iterator[Batch]:
        for position, make in self.tasks():
            batch = make()
            # Moved on before the batch is handed out: whoever holds batch k has consumed k + 1.
            self._position = position
            yield batch

    def tasks(self) -> Iterator[tuple[int, Callable[[], Batch]]]:
        """From the present position for ever: the position after a batch, and the function making it."""
        epoch, batch = self._position >> EPOCH_SHIFT, self._position & ((1 << EPOCH_SHIFT) - 1)
        while True:
            order = self._epoch_order(epoch)
            while batch < len(order):
                samples = order.share(batch, self._rank, self._world_size)
                make = partial(self._source.collate, self._seed, epoch, samples, int(order.padded[batch]))
                batch += 1
                yield (epoch << EPOCH_SHIFT) + batch, make
            epoch, batch = epoch + 1, batch - len(order)

    def _epoch_order(self, epoch: int) -> EpochOrder:
        cached_epoch, order = self._order
        if cached_epoch != epoch:
            order = self._make_order(epoch)
            self._order = (epoch, order)
        return order

    def _make_order(self, epoch: int) -> EpochOrder:
        lengths = self._source.lengths(self._seed, epoch)
        # A later epoch may hold a longer sample than the first one had.
        longest = max(self._bounds[-1], padded_to(int(lengths.max()), self._source.max_length))
        bounds = [*self._bounds[:-1], longest]
        rows = [rows_per_batch(bound, self._batch_size, self._use_avg_len) for bound in bounds]
        rng = epoch_generator(self._seed, epoch, _ORDER_PURPOSE) if self._shuffle else None
        order = epoch_order(lengths, bounds, rows, self._world_size, rng)
        repeated = len(order.samples) - len(lengths)
        if repeated and self._rank == 0:
            warnings.warn(
                f"epoch {epoch}: {repeated} of {len(lengths)} samples come twice, so that each of "
                f"{self._world_size} ranks has one in the last batch",
                RuntimeWarning,
                stacklevel=2,
            )
        return order


class _PrefetchedBatches:
    """Iterator over batches made ahead that keeps `batches.position` at what the consumer has taken."""

    def __init__(self, batches: PretrainingBatches, depth: int, num_workers: int) -> None:
        self._batches = batches
        tasks = (partial(_run, position, make) for position, make in batches.tasks())
        self._prefetcher: Prefetcher[tuple[int, Batch]] = Prefetcher(tasks, depth, num_workers)

    def __iter__(self) -> _PrefetchedBatches:
        return self

    def __next__(self) -> Batch:
        position, batch = next(self._prefetcher)
        self._batches.seek(position)
        return batch

    def close(self) -> None:
        """End the worker threads."""
        self._prefetcher.close()

    def __enter__(self) -> _PrefetchedBatches:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def prefetched(batches: PretrainingBatches, depth: int, num_workers: int) -> _PrefetchedBatches:
    """Iterate over `batches` from its position, `num_workers` threads working up to `depth` batches ahead.

    Same batches in the same order for any number of workers; 0 (--num_data_workers 0) makes each when it is
    asked for. `batches.position` counts what was taken, not what was made ahead. To seek, close, seek and
    prefetch anew. An exception surfaces where its batch is taken. Use it in a `with` block or call close().
    """
    return _PrefetchedBatches(batches, depth, num_workers)


def evaluation_batches(source: Source, batch_size: int, rank: int, world_size: int) -> Iterator[Batch]:
    """One pass over the source, each sample on one rank, with the same pairs and masks at every call.

    `batch_size` counts sequences. Batches are sorted into four length buckets and dealt to the ranks in turn,
    so a rank may have one batch more than another, or none.
    """
    lengths = source.lengths(_EVALUATION_SEED, 0)
    bounds = bucket_bounds(lengths, _EVALUATION_BUCKETS, source.max_length)
    order = epoch_order(lengths, bounds, [batch_size] * len(bounds), 1, None)
    for batch in range(rank, len(order), world_size):
        yield source.collate(_EVALUATION_SEED, 0, order.share(batch, 0, 1), int(order.padded[batch]))


def write_evaluation_set(source: Source, path: str) -> None:
    """Write the samples of `evaluation_batches` to an npz file: one rank builds it, all read it."""
    count = len(source.lengths(_EVALUATION_SEED, 0))
    parts = [
        source.collate(
            _EVALUATION_SEED, 0, np.arange(start, min(start + _WRITE_ROWS, count)), source.max_length
        )
        for start in range(0, count, _WRITE_ROWS)
    ]
    whole = Batch(*(np.concatenate(column) for column in zip(*parts)))
    arrays = PretrainingArrays(
        input_ids=whole.input_ids,
        segment_ids=whole.segment_ids,
        masked_lm_positions=whole.masked_positions,
        masked_lm_ids=whole.masked_ids,
        masked_lm_weights=whole.masked_weights,
        next_sentence_labels=whole.next_sentence_labels,
        valid_lengths=whole.valid_lengths,
    )
    write_npz(path, arrays)


def _run(position: int, make: Callable[[], Batch]) -> tuple[int, Batch]:
    return position, make()
