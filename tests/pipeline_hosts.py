"""Pipelines on two hosts with a slow network between them: seconds a step by placement and model.

    python -m tests.pipeline_hosts [--rate 200mbit] [--repeats 3] [--json hosts.json]

The hosts are network namespaces of this machine (tests/namespaces.py) with two ranks each; `tc` limits what
each sends to the other. Two replicas of two stages train on random tokens. intra_first averages gradients
over the wire, inter_first sends activations and their gradients. The cases differ in which of the two is
more. Needs root; the table is docs/pipelines.md's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple, Sequence

from base import machine
from base.command_line import OptionParser, not_empty, path_name, positive_int
from base.tables import Row, Table, terminal
from bench.harness import write_figures
from bert.configuration import named_config
from bert.memory import parameter_count
from tests.namespaces import INTERFACE, TwoHosts, enter, two_hosts
from tests.processes import ROOT, run_command, run_ranks
from training.entry import exit_code
from training.pipeline.placement import PLACEMENTS

SLOTS, STAGES, LENGTH = 2, 2, 128
TIME_LIMIT = 300.0
STEPS, LOG_INTERVAL = 12, 3
WARM_UP = 2  # intervals
THREADS = "OMP_NUM_THREADS"
PASSED = (THREADS, "PATH", "PYTHONPATH")  # to the ranks of the second host


class Case(NamedTuple):
    """A model, the tokens of its vocabulary, sequences of a micro-batch, micro-batches of a step.

    words: 0 for the vocabulary of --dataset_name, with 30,522.
    """

    model: str
    words: int
    rows: int
    micro_batches: int


CASES = (
    Case("bert_4_512_8", 400, 1, 2),  # large layers, few sequences: gradients
    Case("bert_4_256_4", 400, 4, 4),
    Case("bert_4_256_4", 400, 16, 8),  # small layers, many sequences: activations
    Case("bert_2_256_4", 0, 4, 4),  # a large vocabulary: its embedding is on both stages
)


def measure(hosts: TwoHosts, case: Case, placement: str, folder: Path) -> float:
    """Seconds of a step."""
    run = Path(tempfile.mkdtemp(dir=folder))
    words = ["--model", case.model, "--dummy_data_len", LENGTH, "--batch_size", case.rows]
    words += ["--accumulate", case.micro_batches, "--num_steps", STEPS, "--log_interval", LOG_INTERVAL]
    words += ["--ckpt_interval", STEPS, "--progress", "none", "--ckpt_dir", run]
    words += ["--pipeline_stages", STAGES, "--placement", placement]
    if case.words:
        tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map("word{}".format, range(case.words - 5))]
        (run / "vocab").write_text("\n".join(tokens) + "\n", encoding="ascii")
        words += ["--vocab", run / "vocab"]
    passed = [word for name in PASSED if name in (*os.environ, THREADS) for word in ("-x", name)]
    run_ranks(
        ROOT / "run_pretraining_hvd.py",
        2 * SLOTS,
        timeout=TIME_LIMIT,
        args=words,
        prefix=hosts.prefix,
        launcher_args=[*hosts.mpirun_args, *passed],
        env={THREADS: "1", "OMPI_MCA_mpi_yield_when_idle": "1"},
    ).check()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    seconds = [line["step_s"] for line in lines if "step_s" in line]
    return statistics.median(seconds[WARM_UP:])


def limit(hosts: TwoHosts, rate: str) -> None:
    """Limits what each host sends."""
    for holder in hosts.holders:
        shape = ["root", "tbf", "rate", rate, "burst", "256kb", "latency", "200ms"]
        run_command([*enter(holder), "tc", "qdisc", "replace", "dev", INTERFACE, *shape]).check()


def hosts_table(figures: Sequence[dict[str, Any]], rate: str) -> Table:
    """Seconds a step in both placements, and what crosses the wire in each."""
    rows = []
    for each in figures:
        case = Case(*each["case"])
        medians = {name: statistics.median(each[name]) for name in PLACEMENTS}
        config, tokens = named_config(case.model), case.words or 30522
        # A replica's of a step from its first stage to its second; as many come back.
        activations = case.rows * LENGTH * config.units * case.micro_batches
        sent = (4 * parameter_count(config, tokens), 2 * 4 * activations)  # a host's, on average a direction
        cells = [case.model, f"{tokens:,}", f"{case.rows} x {case.micro_batches}"]
        cells += [f"{size / 1e6:.1f} MB" for size in sent]
        cells += [f"{medians[name]:.2f}" for name in PLACEMENTS]
        rows.append(Row([*cells, min(medians, key=lambda name: medians[name])]))
    head = ("model", "tokens", "sequences x micro-batches", "gradients", "activations")
    title = f"2 hosts x {SLOTS} processes, {STAGES} stages, {rate} between the hosts"
    return Table(title, (*head, *(f"{name} s" for name in PLACEMENTS), "faster"), rows, names=3)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = OptionParser(
        prog="python -m tests.pipeline_hosts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--rate", type=not_empty, default="200mbit", help="as tc has it (200mbit)")
    parser.add_argument("--repeats", type=positive_int, default=3, metavar="N", help="launches of each (3)")
    parser.add_argument(
        "--cases", type=positive_int, default=len(CASES), metavar="N", help="the first N (all)"
    )
    parser.add_argument("--json", type=path_name, metavar="FILE", help="write all figures there")
    options = parser.parse_args(arguments)
    print(machine.line(machine.describe(ROOT)), flush=True)
    figures = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with two_hosts(folder, slots=SLOTS) as hosts:
            limit(hosts, options.rate)
            for case in CASES[: options.cases]:
                found: dict[str, list[float]] = {each: [] for each in PLACEMENTS}
                for _ in range(options.repeats):
                    for each in PLACEMENTS:
                        found[each].append(measure(hosts, case, each, folder))
                figures.append({"case": list(case), **found})
                print(f"\n{terminal(hosts_table(figures, options.rate))}", flush=True)
    if options.json:
        write_figures(options.json, {"rate": options.rate, "figures": figures})
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
