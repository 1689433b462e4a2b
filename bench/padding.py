"""Steps on batches of real text, with the rows of padding and without them (--padding).

    python -m bench.padding [--models base] [--lengths 128 512] [--dtypes float32 bfloat16] [--steps 12]
        [--batch_size 2048] [--json FILE]

The batches are those of a run on the embedded English text: for training with --use_avg_len and --batch_size
tokens, and without, as many sequences of full length; for an evaluation 8 sequences. Two networks with the
same weights take the same batches, one that computes padding and one that does not, in turns; who is first
changes from batch to batch. Half of the batches are taken by two other networks, made in the other order:
where in memory one lies can by itself make it some per cent faster. A training step has its update, an
evaluation is forward alone. The table has the share of padding, seconds of a batch (median), tokens a second
(without padding, of all batches together), and how many times as long padding makes a batch (median and
quartiles over the batches, each against itself).
"""

from __future__ import annotations

import argparse
import gc
import itertools
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, NamedTuple, Sequence

from base import machine
from base.command_line import OptionParser, at_least, path_name, positive_int
from base.threads import set_threads
from bench.quick import NOTICE, add_quick, default_text, settle, write_figures
from bench.rounds import spread
from bench.work import DTYPES, native_dtypes, size_of
from bert.configuration import KEEP, PADDING, REMOVE
from data.options import BatchingConfig, MaskingConfig
from data.pretraining.batches import Batch, PretrainingBatches, evaluation_batches
from data.pretraining.sources import TextSource
from data.sharing import Share
from data.store.tokens import TokenStore, build_store
from data.tokenizing.tokenizer import TokenizerSettings
from data.tokenizing.vocab import load_vocab
from training.entry import exit_code

ROOT = Path(__file__).resolve().parents[1]
LENGTHS = [128, 512]
IN_EVALUATION = 8  # sequences of a batch
WARM_UPS = 2
AVERAGE, SEQUENCES, EVALUATION = "training, --use_avg_len", "training, sequences", "evaluation"


class Row(NamedTuple):
    """One kind of batches. `seconds`: of each batch, by what becomes of padding."""

    name: str
    tokens: list[int]
    positions: list[int]
    seconds: dict[str, list[float]]

    def joined(self, other: Row) -> Row:
        """Both, with the batches of the other behind its own."""
        seconds = {each: [*self.seconds[each], *other.seconds[each]] for each in PADDING}
        return Row(self.name, self.tokens + other.tokens, self.positions + other.positions, seconds)

    def figures(self) -> dict[str, Any]:
        """The numbers of the table."""
        ratios = [kept / removed for kept, removed in zip(self.seconds[KEEP], self.seconds[REMOVE])]
        tokens = sum(self.tokens)
        return {
            "padding": 1 - tokens / sum(self.positions),
            "batch_s": {each: spread(self.seconds[each]).median for each in PADDING},
            "tokens_per_s": {each: tokens / sum(self.seconds[each]) for each in PADDING},
            "kept_to_removed": spread(ratios)._asdict(),
        }


def real_batches(folder: str, lengths: Sequence[int], batch_size: int, steps: int) -> dict[str, list[Batch]]:
    """Batches of the embedded text by name, `steps` of each.

    Raises:
        InputError: this Python carries too little text.
    """
    paths, vocab_path = default_text(folder)
    vocab = load_vocab(vocab_path)
    directory = os.path.join(folder, "store")
    build_store(paths, TokenizerSettings(vocab), directory)
    store = TokenStore.open(directory)
    found = {}
    for length in lengths:
        source = TextSource(store, vocab, MaskingConfig(max_seq_length=length))
        for name, size, by_tokens in (
            (AVERAGE, batch_size, True),
            (SEQUENCES, max(1, batch_size // length), False),
        ):
            batches = PretrainingBatches(source, BatchingConfig(size, by_tokens), 0, Share.of(0, 1))
            found[f"{length}, {name}"] = list(itertools.islice(batches, steps))
        every = list(evaluation_batches(source, IN_EVALUATION, 0, 1))
        # Sorted by length: some from everywhere.
        found[f"{length}, {EVALUATION}"] = every[:: max(1, len(every) // steps)][:steps]
    return found


def measure(name: str, batches: Sequence[Batch], takers: dict[str, Callable[[Batch], float]]) -> Row:
    """The seconds of every batch but the first WARM_UPS, taken by each of `takers`."""
    seconds: dict[str, list[float]] = {each: [] for each in takers}
    for number, batch in enumerate(batches):
        for each in list(takers)[:: -1 if number % 2 else 1]:
            took = takers[each](batch)
            if number >= WARM_UPS:
                seconds[each].append(took)
    measured = batches[WARM_UPS:]
    tokens = [int(batch.valid_lengths.sum()) for batch in measured]
    return Row(name, tokens, [batch.input_ids.size for batch in measured], seconds)


def measure_all(model: str, dtype: str, batches: dict[str, list[Batch]]) -> list[Row]:
    """Every kind of batches, each half of them on two networks of one model."""
    rows = []
    for part, order in enumerate((PADDING, PADDING[::-1])):
        chosen = {name: each[part::2] for name, each in batches.items()}
        rows.append(measure_half(model, dtype, order, chosen))
        gc.collect()  # networks are circles of references
    return [one.joined(other) for one, other in zip(*rows)]


def measure_half(model: str, dtype: str, order: Sequence[str], batches: dict[str, list[Batch]]) -> list[Row]:
    """Every kind of batches, on two networks made in this order."""
    import mxnet as mx

    from bench.step_ours import make_step
    from tasks.pretraining.task import Pretraining

    steps = {each: make_step(model, dtype, "fused", each) for each in order}
    counts = dict.fromkeys(PADDING, 0)

    def train(each: str, batch: Batch) -> None:
        counts[each] += 1
        steps[each].take(counts[each], [batch], lr=1e-4)

    def judge(each: str, batch: Batch) -> None:
        factors = [mx.nd.ones((1,))] * 2
        steps[each].network(*Pretraining().inputs(batch, mx.cpu()), *factors)

    def timed(work: Callable[[str, Batch], None], each: str) -> Callable[[Batch], float]:
        def seconds(batch: Batch) -> float:
            begun = time.perf_counter()
            work(each, batch)
            mx.nd.waitall()
            return time.perf_counter() - begun

        return seconds

    rows = []
    for name, chosen in batches.items():
        work = judge if name.endswith(EVALUATION) else train
        rows.append(measure(name, chosen, {each: timed(work, each) for each in order}))
        print(f"  {model}, {dtype}, {name}: {len(chosen)} batches", file=sys.stderr, flush=True)
    return rows


def table(rows: Sequence[Row]) -> str:
    """The figures for people."""
    head = (
        f"{'':32} {'padding':>8} {'s kept':>8} {'removed':>8} {'tokens/s':>9} {'removed':>8}  kept to removed"
    )
    lines = [head]
    for row in rows:
        figures = row.figures()
        seconds, rates, ratio = (figures[key] for key in ("batch_s", "tokens_per_s", "kept_to_removed"))
        lines.append(
            f"{row.name:32} {figures['padding']:>8.1%} {seconds[KEEP]:>8.3f} {seconds[REMOVE]:>8.3f}"
            f" {rates[KEEP]:>9.0f} {rates[REMOVE]:>8.0f}"
            f"  {ratio['median']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f})"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    return _measure(_options(arguments))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = OptionParser(
        prog="python -m bench.padding",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--models", nargs="+", metavar="MODEL", help="base, large, bert_LAYERS_UNITS_HEADS")
    text = "tokens of a sequence at most (default: both)"
    parser.add_argument("--lengths", nargs="+", type=int, choices=LENGTHS, metavar="TOKENS", help=text)
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, help="default: what the CPU multiplies")
    parser.add_argument(
        "--steps", type=at_least(2), metavar="N", help="measured batches of each kind (default: 12)"
    )
    parser.add_argument("--batch_size", type=positive_int, metavar="TOKENS", help="default: 2048")
    parser.add_argument("--json", type=path_name, metavar="FILE", help="write all figures there")
    add_quick(parser, "bert_2_128_2, 128 tokens, 3 steps")
    options = parser.parse_args(arguments)
    usual = {"models": ["base"], "lengths": LENGTHS, "steps": 12, "batch_size": 2048}
    settle(
        options, usual, {"models": ["bert_2_128_2"], "lengths": LENGTHS[:1], "steps": 3, "batch_size": 512}
    )
    try:
        for model in options.models:
            size_of(model)
    except ValueError as error:
        parser.error(str(error))
    return options


def _measure(options: argparse.Namespace) -> int:
    threads = set_threads()  # before mxnet is imported
    here, others, cpu = machine.describe(ROOT), machine.Others(), sum(os.times()[:2])
    with tempfile.TemporaryDirectory() as folder:
        batches = real_batches(folder, options.lengths, options.batch_size, options.steps + 2 * WARM_UPS)
    print(f"{machine.line(here)}\n{threads} threads; batches of {options.batch_size} tokens\n", flush=True)
    results = []
    for model, dtype in itertools.product(options.models, options.dtypes or native_dtypes(here)):
        rows = measure_all(model, dtype, batches)
        print(f"{model}, {dtype}\n{table(rows)}\n", flush=True)
        found = [{**row._asdict(), **row.figures()} for row in rows]
        results.append({"model": model, "dtype": dtype, "rows": found})
    shares = others.shares(sum(os.times()[:2]) - cpu)
    print(f"other programs took {shares['others']:.1%} of the machine, its host {shares['stolen']:.1%}")
    if options.quick:
        print(NOTICE)
    if options.json:
        facts = {"machine": here, "threads": threads, "quick": options.quick, **shares}
        write_figures(options.json, {**facts, "results": results})
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
