"""The batches that the loop eats, from the run's files: which rank prepares what, and who waits for it."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from typing import Callable, Iterator, Protocol, Sequence

import numpy as np

from bert.inputs import Inputs
from bert.plan import RunPlan
from bert.report import Reporter
from comm.base import Communicator
from data.batches import (
    Batch,
    NpzSource,
    PretrainingBatches,
    RawSource,
    Source,
    dummy_batch,
    evaluation_batches,
    prefetched,
    write_evaluation_set,
)
from data.files import sha256_of
from data.raw_source import epoch_stores
from data.statistics import unigram_entropy
from data.tokenizer import SentencePieceTokenizer, Tokenizer, WordPieceTokenizer
from data.tokens import TokenStore

BATCHES_AHEAD = 8  # a few steps' worth: enough to hide the making of batches, little memory


class Feed(Protocol):
    """This rank's micro-batches, for ever."""

    unigram_entropy: float | None  # of the training text in nats; on rank 0, where the text is known
    position: int  # after the batch taken last, for a checkpoint

    def seek(self, position: int) -> None:
        """Go on from a `position`; called once, before the first batch."""

    def __next__(self) -> Batch: ...

    def close(self) -> None:
        """End the background work."""


class DummyFeed:
    """One batch of random tokens again and again: for speed and memory, without any data."""

    unigram_entropy = None

    def __init__(self, batch: Batch):
        self._batch = batch
        self.position = 0

    def seek(self, position: int) -> None:
        self.position = position

    def __next__(self) -> Batch:
        self.position += 1
        return self._batch

    def close(self) -> None:
        pass


class FileFeed:
    """Batches of a source, made ahead in background threads."""

    def __init__(self, batches: PretrainingBatches, num_workers: int, entropy: float | None):
        self._batches = batches
        self._num_workers = num_workers
        self.unigram_entropy = entropy
        self._ahead = None

    @property
    def position(self) -> int:
        return self._batches.position

    def seek(self, position: int) -> None:
        self._batches.seek(position)
        self._ahead = prefetched(self._batches, BATCHES_AHEAD, self._num_workers)

    def __next__(self) -> Batch:
        return next(self._ahead)

    def close(self) -> None:
        if self._ahead is not None:
            self._ahead.close()


def training_feed(
    options: argparse.Namespace,
    inputs: Inputs,
    plan: RunPlan,
    seed: int,
    communicator: Communicator,
    reporter: Reporter,
) -> Feed | None:
    """This rank's share of --data, or random tokens with --dummy_data_len; None without either."""
    if options.dummy_data_len:
        length = options.dummy_data_len
        rows = max(1, options.batch_size // length) if options.use_avg_len else options.batch_size
        rng = np.random.default_rng([seed, communicator.rank])
        return DummyFeed(dummy_batch(rows, length, plan.max_predictions_per_seq, inputs.vocab_size, rng))
    if not inputs.train_files:
        return None
    entropy = None
    if options.raw:
        source, store = _raw_source(options, inputs, inputs.train_files, plan, communicator, reporter)
        if communicator.rank == 0:
            entropy = unigram_entropy(store, inputs.vocabulary)
            reporter.note(
                f"training text: {store.num_documents:,} documents, {store.num_sentences:,} sentences,"
                f" {store.num_tokens:,} tokens, unigram entropy {entropy:.2f} nats"
            )
    else:
        source = NpzSource(inputs.train_files, inputs.vocab_size)
    batches = PretrainingBatches(
        source,
        options.batch_size,
        options.use_avg_len,
        options.num_buckets,
        seed,
        communicator.rank,
        communicator.size,
    )
    shapes = ", ".join(f"{rows}x{length}" for rows, length in batches.shapes)
    reporter.note(f"batches of a process (sequences x tokens): {shapes}")
    return FileFeed(batches, options.num_data_workers, entropy)


def evaluation_feed(
    options: argparse.Namespace,
    inputs: Inputs,
    plan: RunPlan,
    communicator: Communicator,
    reporter: Reporter,
) -> Callable[[], Iterator[Batch]] | None:
    """A function that starts one pass over this rank's share of --data_eval; None without it.

    Text is paired and masked once: one rank of each host writes an npz file, the others wait for it.
    """
    if not inputs.eval_files:
        return None
    if options.raw and not options.eval_use_npz:
        path = os.path.join(
            options.ckpt_dir, "data_eval_cache", f"{_evaluation_key(options, inputs, plan)}.npz"
        )
        source, _ = _raw_source(options, inputs, inputs.eval_files, plan, communicator, reporter)
        if communicator.local_rank == 0 and not os.path.exists(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            write_evaluation_set(source, path)
        communicator.barrier()
        files = [path]
    else:
        files = list(inputs.eval_files)
    source = NpzSource(files, inputs.vocab_size)
    return lambda: evaluation_batches(source, options.batch_size_eval, communicator.rank, communicator.size)


def _raw_source(
    options: argparse.Namespace,
    inputs: Inputs,
    files: Sequence[str],
    plan: RunPlan,
    communicator: Communicator,
    reporter: Reporter,
) -> tuple[Source, TokenStore]:
    """Text as a source, and its token store (that of epoch 0 where the tokenizer samples).

    One rank of each host tokenizes, the others wait and then map the same files.
    """
    vocabulary = inputs.vocabulary
    assert vocabulary is not None, "text needs a vocabulary; bert.inputs sees to it"
    cache = os.path.join(options.ckpt_dir, "tokens")

    def tokenizer_of(seed: int) -> Tokenizer:
        if options.sentencepiece:
            path = os.path.expanduser(options.sentencepiece)
            nbest, alpha = options.sp_nbest, options.sp_alpha
            return SentencePieceTokenizer(path, vocabulary, options.cased, nbest, alpha, seed)
        return WordPieceTokenizer(vocabulary, options.cased)

    if communicator.local_rank == 0:
        progress = _TokenizingProgress(reporter)
        stores = epoch_stores(files, tokenizer_of, vocabulary, cache, progress)
        first = stores if isinstance(stores, TokenStore) else stores(0)
    communicator.barrier()
    if communicator.local_rank != 0:
        stores = epoch_stores(files, tokenizer_of, vocabulary, cache)
        first = stores if isinstance(stores, TokenStore) else stores(0)
    source = RawSource(
        stores,
        vocabulary,
        inputs.max_seq_length,
        options.short_seq_prob,
        options.masked_lm_prob,
        plan.max_predictions_per_seq,
        options.whole_word_mask,
    )
    return source, first


class _TokenizingProgress:
    """A line every ten seconds while text is tokenized."""

    def __init__(self, reporter: Reporter, interval: float = 10.0):
        self._reporter = reporter
        self._interval = interval
        self._next = time.monotonic() + interval

    def __call__(self, lines: int, tokens: int) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self._interval
            self._reporter.note(f"tokenizing: {lines:,} lines, {tokens:,} tokens so far")


def _evaluation_key(options: argparse.Namespace, inputs: Inputs, plan: RunPlan) -> str:
    """Names the evaluation set by all that it depends on, so that another text or length makes another."""
    names = ("short_seq_prob", "masked_lm_prob", "whole_word_mask", "cased", "sp_nbest", "sp_alpha")
    parts = [
        inputs.vocabulary.sha256 if inputs.vocabulary else "",
        [sha256_of(path) for path in inputs.eval_files],
        inputs.max_seq_length,
        plan.max_predictions_per_seq,
        [getattr(options, name) for name in names],
    ]
    return "evaluation-" + hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
