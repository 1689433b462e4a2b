"""Answers of a BERT on this machine's CPU, one call after the other, against PyTorch and onnxruntime.

    python -m bench.latency [--model bert_12_768_12] [--sizes 1x32 8x384] [--json FILE]
    python -m bench.latency --quick

A call is a batch of full sequences from token ids to the logits of both heads of a question's answer (SQuAD's
network), which onnxruntime's graph lacks: it ends at the last layer. "1x32" is one sentence of 32 tokens, as
somebody waits for it. Every contestant has the same random weights; PyTorch is Hugging Face's transformers on
a copy of the weights in the dtype, with the faster of its implementations of attention for each size and
malloc keeping freed memory, and onnxruntime runs what convert.py --to onnx writes, in float32 only. In a
round each takes its calls in turns. "to ours" is how many times as long as ours the median call takes, by
rounds.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from typing import Any, Sequence

import numpy as np

from base.command_line import positive_int
from base.tables import Row, Table, terminal
from bench.finetune import full_windows, random_weights
from bench.harness import Measurement, begin, finish, ratio_shown, take_rounds, to_ours
from bench.trainings import LIMIT, MODEL, MODULES, ONNX, TITLES, Settings, write_batches, write_settings
from bench.work import DTYPES, VOCABULARY, native_dtypes
from bench.workers import Contestants
from bert.weights.exporting import export
from data.tokenizing.vocab import SPECIAL_TOKENS
from training.entry import exit_code


def prepare(options: argparse.Namespace, folder: str) -> None:
    """Writes the model, for onnxruntime too where float32 is measured, and a file of calls for each size."""
    words = [f"word{number}" for number in range(VOCABULARY - len(SPECIAL_TOKENS))]
    weights = random_weights(options.model, [*SPECIAL_TOKENS, *words])
    forms = {MODEL: "huggingface", **({ONNX: "onnx"} if "float32" in options.dtypes else {})}
    for name, form in forms.items():
        os.makedirs(os.path.join(folder, name))
        export(weights, os.path.join(folder, name), form)
    write_settings(folder, Settings(0, [0], 0.0))
    generator = np.random.default_rng(0)
    for size in options.sizes:
        sequences, tokens = map(int, size.split("x"))
        calls = [full_windows((sequences, tokens), VOCABULARY, generator) for _ in range(options.calls)]
        write_batches(folder, size, [each._asdict() for each in calls])


def measure(contestants: Contestants, size: str, rounds: int) -> list[dict[str, Any]]:
    """A row for each contestant: its calls in milliseconds, and the ratio to ours."""
    taken = take_rounds(contestants.keys, rounds, lambda key, _: contestants.step(key, LIMIT, size), 1)
    medians = [{key: float(np.median(answer["calls"])) for key, answer in each.items()} for each in taken]
    rows = []
    for key in taken[-1]:
        calls = 1e3 * np.concatenate([each[key]["calls"] for each in taken if key in each])
        row = {"size": size, "contestant": key, "calls": len(calls), "median_ms": float(np.median(calls))}
        row["of_99_percent_ms"] = float(np.quantile(calls, 0.99))
        rows.append({**row, **to_ours(medians, key)})
    return rows


def _size(text: str) -> str:
    if not re.fullmatch(r"[1-9]\d{0,3}x[1-9]\d{0,2}", text) or int(text.split("x")[1]) > 512:
        raise argparse.ArgumentTypeError(f"{text}: write SEQUENCESxTOKENS, as 8x384, of up to 512 tokens")
    return text


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code: 1 where a contestant failed."""
    parser = Measurement("latency", __doc__, "bert_2_128_2, 5 calls of 2 rounds")
    option = parser.option
    option("--model", "bert_12_768_12", "bert_2_128_2", "bert_LAYERS_UNITS_HEADS", metavar="NAME")
    option("--sizes", ["1x32"], None, "of a call", nargs="+", type=_size, metavar="BxL")
    option("--calls", 40, 5, "of a round, for each contestant", type=positive_int, metavar="N")
    option("--rounds", 5, 2, type=positive_int, metavar="N")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, help="default: what the CPU multiplies")
    parser.contestants_options()
    options = parser.settle(parser.parse_args(arguments))
    here, results, failed = begin(options), [], False
    options.dtypes = options.dtypes or native_dtypes(here)
    with tempfile.TemporaryDirectory() as folder:
        prepare(options, folder)
        for dtype in options.dtypes:
            with Contestants(options.torch_python) as contestants:
                words = ["latency", folder, dtype, *options.sizes]
                for key, module in MODULES.items():
                    if key != ONNX or dtype == "float32":
                        contestants.start(key, f"{TITLES[key]} ({dtype})", module, words)
                rows = [row for size in options.sizes for row in measure(contestants, size, options.rounds)]
                failed |= contestants.failed
            shown = []
            for row in rows:
                times = [f"{row[name]:.1f}" for name in ("median_ms", "of_99_percent_ms")]
                shown.append(Row([row["size"], TITLES[row["contestant"]], *times, ratio_shown(row)]))
            head = ("sequences x tokens", "", "median, ms", "99% within, ms", "to ours")
            print(f"{terminal(Table(f'{options.model}, {dtype}', head, shown, names=2))}\n", flush=True)
            results.append({"dtype": dtype, "rows": rows, "facts": contestants.facts})
    finish(options, {"machine": here, "model": options.model, "threads": options.threads, "latency": results})
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
