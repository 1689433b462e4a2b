"""Speed of making batches from text: this project's loader against GluonNLP's raw path, in one run.

    python -m bench.loader [--input 'corpus/*.txt' --vocab vocab.txt] [--repeats 5] [--json loader.json]
    python -m bench.loader --quick

Without --input it measures on the embedded text, which `make pretrain` trains on too.

"tokens" are real ones, without padding; speeds are per second of CPU time of one process on one core, so
that a busy machine does no great harm. Each repeat measures every row once, one after the other, and ratios
are taken within a repeat; the table shows medians. What an epoch costs before its first batch (pairs,
lengths, order) is measured apart, on the text repeated to at least 4 million tokens because a real corpus is
no smaller, and is included in "in all". GluonNLP's path tokenizes in every epoch, and that is part of its
cost; ours tokenizes once, which is not (see `python -m data.prepare`). Stored masks are the same pairs'
instances, written once.

"waiting" is the part of a run's time in which a step stood still for its batch: steps of 20 ms that hold
neither core nor GIL, as on a GPU, fed by prefetching threads.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from typing import Any, Callable, Mapping, Sequence

import numpy as np

from base.command_line import positive_int
from base.errors import InputError
from base.tables import EMPTY, Row, Table, terminal
from bench.harness import Measurement, finish, given_text, take_rounds
from bench.raw_path import batches as raw_batches
from bench.raw_path import create_instances, gluonnlp_tokenizer, read_documents
from data.export import CopiesConfig, text_rows
from data.options import BatchingConfig, MaskingConfig
from data.pretraining.batches import PretrainingBatches
from data.pretraining.prefetch import Feed
from data.pretraining.sources import InstanceSource, Source, TextSource
from data.sharing import Share
from data.store.build import build_columns
from data.store.instances import InstanceStore
from data.store.tokens import TokenStore, cached_store
from data.tokenizing.tokenizer import TokenizerSettings
from data.tokenizing.vocab import load_vocab
from training.entry import exit_code

TOKENS_PER_BATCH = 8192
BATCHING = BatchingConfig(TOKENS_PER_BATCH, True, 10)
MASKING = {length: MaskingConfig(length, 0.1, 0.15, most) for length, most in ((128, 20), (512, 80))}
STEP_SECONDS = 0.02


def repeated(store: TokenStore, least_tokens: int) -> TokenStore:
    """The store's documents again and again, in memory, until there are `least_tokens`."""
    times = -(-least_tokens // store.num_tokens)

    def offsets(once: np.ndarray) -> np.ndarray:
        each = [once[:-1] + number * once[-1] for number in range(times)]
        return np.concatenate([*each, [times * once[-1]]])

    return TokenStore(
        np.tile(store.ids, times), offsets(store.sentences), offsets(store.documents), store.vocabulary_sha256
    )


def measure_loader(source: Source, num_batches: int, seed: int) -> dict[str, float]:
    """Real tokens per CPU second of batches made one after the other; "in all" with the epoch's plan."""
    begun = time.process_time()
    lengths = source.lengths(seed, 1)
    batches = PretrainingBatches(source, BATCHING, seed, Share.of(0, 1))
    # Lengths and order of epoch 0 are made for the bounds and the first batch.
    # In the last three quarters of an epoch the next one is prepared in the background, on the same clock.
    num_batches = max(1, min(num_batches, batches.blocks_in_epoch(0) // 4))
    plans = time.process_time() - begun
    epoch_tokens = int(source.lengths(seed, 0).sum()) + int(lengths.sum())
    tasks = itertools.islice(batches.tasks(), num_batches)
    made = [make for _, make in tasks]
    begun = time.process_time()
    tokens = sum(int(make().valid_lengths.sum()) for make in made)
    seconds = time.process_time() - begun
    per_token = seconds / tokens + plans / epoch_tokens
    return {"tokens/s": tokens / seconds, "plan": plans / epoch_tokens / per_token, "in all": 1 / per_token}


def measure_raw_path(
    lines: Sequence[str],
    vocabulary: Sequence[str],
    tokenize: Callable[[str], list[str]],
    settings: MaskingConfig,
    seed: int,
) -> dict[str, float]:
    """The same for GluonNLP's path, which goes from text to batches in every epoch."""
    ids = {token: index for index, token in enumerate(vocabulary)}
    generator = random.Random(seed)
    begun = time.process_time()
    documents = read_documents(lines, tokenize)
    if len(documents) < 2:
        raise InputError(
            f"--input: the first {len(lines)} lines are one document, but a random next sentence comes from "
            "another; separate documents by blank lines"
        )
    instances = create_instances(documents, vocabulary, settings, generator)
    tokens = 0
    for batch in raw_batches(instances, ids, TOKENS_PER_BATCH, generator):
        tokens += int(batch[2].sum())
    return {"in all": tokens / (time.process_time() - begun)}


def measure_waiting(source: Source, num_workers: int, steps: int) -> float:
    """The share of time that `steps` steps of 20 ms wait for their batches."""
    batches = PretrainingBatches(source, BATCHING, 0, Share.of(0, 1))
    with contextlib.closing(Feed(batches.tasks, num_workers=num_workers)) as feed:
        feed.seek(0)
        next(feed)
        begun, waited = time.perf_counter(), feed.waited
        for _ in range(steps):
            time.sleep(STEP_SECONDS)
            next(feed)
        return (feed.waited - waited) / (time.perf_counter() - begun)


def prepare(paths: Sequence[str], vocab_path: str, folder: str, least_tokens: int) -> dict[str, Source]:
    """The sources to measure, by the name of their row."""
    vocab = load_vocab(vocab_path)
    built = cached_store(paths, TokenizerSettings(vocab), folder)
    store = repeated(built, least_tokens)
    sources: dict[str, Source] = {}
    for length, masking in MASKING.items():
        sources[f"ours, {length}"] = TextSource(store, vocab, masking)
        whole_words = replace(masking, whole_word_mask=True)
        sources[f"ours, {length}, whole words"] = TextSource(store, vocab, whole_words)
        stored = os.path.join(folder, f"stored-{length}")
        build_columns(stored, text_rows([built.directory], CopiesConfig(masking)).plan, num_workers=1)
        sources[f"ours, {length}, stored masks"] = InstanceSource(InstanceStore.open(stored), vocab.pad_id)
    return sources


def summarize(repeats: Sequence[Mapping[str, Mapping[str, float]]]) -> list[dict[str, Any]]:
    """Rows of the table: medians, and the ratio to GluonNLP's path within a repeat."""
    rows = []
    for name in repeats[0]:
        peer = f"GluonNLP, {name.split(', ')[1]}"
        ratios = [each[name]["in all"] / each[peer]["in all"] for each in repeats]
        row: dict[str, Any] = {"name": name}
        for column in ("tokens/s", "plan", "in all"):
            values = [each[name][column] for each in repeats if column in each[name]]
            row[column] = statistics.median(values) if values else None
        rows.append(
            {**row, "ratio": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)}
        )
    return rows


def table(rows: Sequence[dict[str, Any]], waiting: dict[str, float]) -> Table:
    shown = []
    for row in rows:
        batches = f"{row['tokens/s'] / 1e6:.2f}" if row["tokens/s"] else EMPTY
        plan = f"{row['plan']:.0%}" if row["plan"] is not None else EMPTY
        ratio = f"{row['ratio']:.1f} ({row['lowest']:.1f} to {row['highest']:.1f})"
        shown.append(Row([row["name"], batches, plan, f"{row['in all'] / 1e6:.2f}", ratio]))
    notes = [f"waiting for {name}: {share:.2%} of the time" for name, share in waiting.items()]
    head = ("", "batches", "plan", "in all", "against GluonNLP")
    return Table("M tokens per CPU second", head, shown, notes=notes)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = Measurement("loader", __doc__, "1 repeat, 10 batches, little text")
    parser.text_options()
    parser.option("--repeats", 5, 1, "of all rows", type=positive_int, metavar="N")
    parser.option("--batches", 100, 10, "a measurement", type=positive_int, metavar="N")
    options = parser.settle(parser.parse_args(arguments))
    # Tokens of the text, repeated; its lines for GluonNLP's path, whose cost per token does not depend on
    # their number; steps that wait for their batches.
    least_tokens, raw_lines, steps = (400_000, 1000, 10) if options.quick else (4_000_000, 3000, 50)
    with tempfile.TemporaryDirectory() as folder:
        paths, vocab_path = given_text(options, folder)
        sources = prepare(paths, vocab_path, folder, least_tokens)
        with open(paths[0], encoding="utf-8") as handle:
            lines = list(itertools.islice(handle, raw_lines))
        vocabulary = load_vocab(vocab_path).tokens
        tokenize = gluonnlp_tokenizer(vocabulary)
        peers = {f"GluonNLP, {length}": masking for length, masking in MASKING.items()}

        def measure(name: str, repeat: int) -> dict[str, float]:
            if name in peers:
                return measure_raw_path(lines, vocabulary, tokenize, peers[name], repeat)
            return measure_loader(sources[name], options.batches, repeat)

        # Each peer before ours of the same length.
        names = sorted([*peers, *sources], key=lambda name: name.split(", ")[1])
        repeats = take_rounds(names, options.repeats, measure)
        waiting = {}
        for count in (1, 2, 8):
            threads = f"{count} prefetching thread{'s' if count > 1 else ''}"
            waiting[f"ours, 128, {threads}"] = measure_waiting(sources["ours, 128"], count, steps)
    rows = summarize(repeats)
    print(terminal(table(rows, waiting)))
    of_names = {name: [each[name] for each in repeats] for name in names}
    finish(options, {"rows": rows, "repeats": of_names, "waiting": waiting})
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
