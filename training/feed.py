"""Micro-batches of this rank for the loop, from the run's files or of random tokens."""

from __future__ import annotations

import time
from typing import Callable, Iterator, Protocol

import numpy as np

from comm.base import Communicator
from data.pretraining.batches import Batch, PretrainingBatches, dummy_batch, evaluation_batches, prefetched
from data.pretraining.prefetch import Prefetcher
from data.store.entropy import context_free_loss, unigram_entropy
from training.config import RunConfig
from training.inputs import Inputs, open_source
from training.plan import RunPlan
from training.report import Reporter

BATCHES_AHEAD = 8  # a few steps' worth: enough to hide the making of batches, little memory


class Feed(Protocol):
    """This rank's micro-batches, for ever."""

    # Of the training text (data.store.entropy); on rank 0, where the text is known.
    context_free_loss: float | None
    position: int  # after the batch taken last, for a checkpoint
    waited: float  # seconds that __next__ has taken so far: the loop stood still for want of data

    def seek(self, position: int) -> None:
        """Go on from a `position`; called once, before the first batch."""

    def __next__(self) -> Batch: ...

    def close(self) -> None:
        """End the background work."""


class DummyFeed:
    """One batch of random tokens again and again: for speed and memory, without any data."""

    context_free_loss: float | None = None

    def __init__(self, batch: Batch):
        self._batch = batch
        self.position = 0
        self.waited = 0.0

    def seek(self, position: int) -> None:
        self.position = position

    def __next__(self) -> Batch:
        self.position += 1
        return self._batch

    def close(self) -> None:
        pass


class FileFeed:
    """Batches of a source, made ahead in background threads."""

    def __init__(self, batches: PretrainingBatches, num_workers: int, context_free: float | None):
        self._batches = batches
        self._num_workers = num_workers
        self.context_free_loss = context_free
        self.position = 0
        self.waited = 0.0
        self._ahead: Prefetcher[tuple[int, Batch]] | None = None

    def seek(self, position: int) -> None:
        self.position = position
        self._batches.seek(position)
        self._ahead = prefetched(self._batches, BATCHES_AHEAD, self._num_workers)

    def __next__(self) -> Batch:
        assert self._ahead is not None, "seek comes first"
        begun = time.monotonic()
        self.position, batch = next(self._ahead)
        self.waited += time.monotonic() - begun
        return batch

    def close(self) -> None:
        if self._ahead is not None:
            self._ahead.close()


class EvaluationFeed:
    """Each call starts one pass over this rank's share of --data_eval. Every pass has the same pairs and
    masks, whatever the seed of the run."""

    def __init__(self, begin: Callable[[], Iterator[Batch]], context_free: float | None):
        self._begin = begin
        self.context_free_loss = context_free  # of the held-out text; on rank 0, where the text is known

    def __call__(self) -> Iterator[Batch]:
        return self._begin()


def training_feed(
    config: RunConfig,
    inputs: Inputs,
    plan: RunPlan,
    seed: int,
    communicator: Communicator,
    reporter: Reporter,
) -> Feed | None:
    """This rank's share of --data, or random tokens with --dummy_data_len; None without either."""
    batch, length = config.batch, config.data.dummy_data_len
    if length:
        rows = max(1, batch.batch_size // length) if batch.use_avg_len else batch.batch_size
        rng = np.random.default_rng([seed, communicator.rank])
        return DummyFeed(dummy_batch(rows, length, plan.max_predictions_per_seq, inputs.vocab_size, rng))
    if not inputs.train.kind:
        return None
    opened = open_source(inputs, inputs.train, communicator)
    source, store = opened.source, opened.tokens
    context_free = None
    if store is not None and communicator.rank == 0:
        context_free = context_free_loss(store)
        reporter.note(
            f"training text: {store.num_documents:,} documents, {store.num_sentences:,} sentences,"
            f" {store.num_tokens:,} tokens, unigram entropy {unigram_entropy(store):.2f} nats"
        )
    batches = PretrainingBatches(
        source,
        inputs.config.batching,
        seed,
        communicator.rank,
        communicator.size,
    )
    shapes = ", ".join(f"{rows}x{length}" for rows, length in batches.shapes)
    reporter.note(f"batches of a process (sequences x tokens): {shapes}")
    return FileFeed(batches, config.data.num_data_workers, context_free)


def evaluation_feed(
    config: RunConfig,
    inputs: Inputs,
    communicator: Communicator,
) -> EvaluationFeed | None:
    """This rank's share of --data_eval; None without it."""
    if not inputs.evaluation.kind:
        return None
    opened = open_source(inputs, inputs.evaluation, communicator)
    source, store = opened.source, opened.tokens
    rank, size = communicator.rank, communicator.size
    return EvaluationFeed(
        lambda: evaluation_batches(source, config.batch.batch_size_eval, rank, size),
        context_free_loss(store) if store is not None and rank == 0 else None,
    )
