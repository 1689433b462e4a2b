"""Training in bfloat16 against float32: loss curves of real runs from the same seeds.

    python -m bench.bfloat16 [--seeds 3] [--num_steps 200] [--max_seq_length 32] [--plot bfloat16.png]
                             [--json bfloat16.json]
    python -m bench.bfloat16 --option optimizer_state

Each seed is pretrained twice on the embedded English text by run_pretraining_hvd.py in one process, once in
each dtype, with the same initial parameters, batches and dropout masks. The seeds show how large noise is:
a difference between the dtypes means something only where it stands out from the differences between seeds.
With --option optimizer_state all products are float32, and the optimizer's moments are of each dtype.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING, Any, Sequence

from base.command_line import OptionParser, at_least, path_name
from base.errors import InputError
from base.files import replacing
from bench.quick import NOTICE, add_quick, settle, write_figures
from data.embedded import build as build_embedded
from training.entry import exit_code

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DTYPES = ("float32", "bfloat16")
OPTIONS = ("dtype", "optimizer_state")  # of the training script, for what has that dtype
EVERY = 10  # steps between two points of a curve


def main(arguments: Sequence[str] | None = None) -> int:
    parser = OptionParser(
        prog="python -m bench.bfloat16",
        description="Pretrains in float32 and bfloat16 from the same seeds and compares the losses.",
    )
    parser.add_argument("--seeds", type=at_least(2), help="runs in each dtype (default: 3)")
    parser.add_argument("--num_steps", type=at_least(EVERY), help="steps of each run (default: 200)")
    parser.add_argument(
        "--option", choices=OPTIONS, default=OPTIONS[0], help="what has each dtype (default: dtype)"
    )
    parser.add_argument("--model", default="bert_2_128_2", help="default: %(default)s")
    parser.add_argument(
        "--max_seq_length", type=at_least(8), default=32,
        help="tokens of a sequence, at most 512; a batch has 16 such sequences and at least 2048 tokens "
        "(default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--plot", type=path_name, default="bfloat16.png", help="where the curves go (default: %(default)s)"
    )
    parser.add_argument("--json", type=path_name, help="also write all numbers to this file")
    add_quick(parser, "2 seeds, 20 steps")
    options = parser.parse_args(arguments)
    settle(options, {"seeds": 3, "num_steps": 200}, {"seeds": 2, "num_steps": 20})
    with tempfile.TemporaryDirectory() as scratch:
        build_embedded(os.path.join(scratch, "text"))
        runs = [
            {"dtype": dtype, "seed": seed, **pretrain(options, scratch, dtype, seed)}
            for seed in range(options.seeds)
            for dtype in DTYPES
        ]
    figures = summary(runs)
    print(table(runs, figures))
    draw(runs, options)
    print(f"curves     {options.plot}")
    if options.quick:
        print(NOTICE)
    if options.json:
        write_figures(options.json, {"runs": runs, "summary": figures})
    return 0


def pretrain(options: argparse.Namespace, scratch: str, dtype: str, seed: int) -> dict[str, Any]:
    """One run's curve of MLM losses and its loss on held-out text, in nats.

    Raises:
        InputError: the run failed; its last lines are in the message.
    """
    model, num_steps, length = options.model, options.num_steps, options.max_seq_length
    text, directory = os.path.join(scratch, "text"), os.path.join(scratch, f"{dtype}-{seed}")
    command = [
        sys.executable, os.path.join(ROOT, "run_pretraining_hvd.py"), "--raw",
        "--data", os.path.join(text, "corpus", "train-*.txt"),
        "--data_eval", os.path.join(text, "corpus", "eval.txt"),
        "--vocab", os.path.join(text, "vocab.txt"), "--cache_dir", os.path.join(scratch, "cache"),
        "--model", model, f"--{options.option}", dtype, "--max_seq_length", str(length),
        "--batch_size", str(max(2048, 16 * length)), "--use_avg_len",
        "--lr", "0.014", "--warmup_ratio", "0.1", "--num_steps", str(num_steps),
        "--log_interval", str(EVERY), "--ckpt_interval", str(num_steps), "--ckpt_dir", directory,
        "--seed", str(seed), "--peak_tflops", "1",  # not shown: measuring it takes a second
    ]  # fmt: skip
    print(f"{dtype}, seed {seed} ...", file=sys.stderr, flush=True)
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode != 0:
        raise InputError(f"{' '.join(command)} failed:\n" + "\n".join(result.stdout.splitlines()[-5:]))
    with open(os.path.join(directory, "metrics.jsonl")) as file:
        lines = [json.loads(line) for line in file]
    curve = [(line["step"], line["mlm_loss"]) for line in lines if "mlm_loss" in line]
    evaluations = [line["eval_mlm_loss"] for line in lines if "eval_mlm_loss" in line]
    return {
        "steps": [step for step, _ in curve],
        "losses": [loss for _, loss in curve],
        "eval": evaluations[-1],
    }


def summary(runs: list[dict[str, Any]]) -> dict[str, float]:
    """Final losses of both dtypes and how far apart they are, beside how far apart the seeds are."""
    final = {dtype: [run["eval"] for run in runs if run["dtype"] == dtype] for dtype in DTYPES}
    differences = [low - full for full, low in zip(final["float32"], final["bfloat16"])]
    return {
        **{f"{dtype}_mean": statistics.mean(losses) for dtype, losses in final.items()},
        **{f"{dtype}_stdev_over_seeds": statistics.stdev(losses) for dtype, losses in final.items()},
        "difference_mean": statistics.mean(differences),
        "difference_largest": max(differences, key=abs),
    }


def table(runs: list[dict[str, Any]], figures: dict[str, float]) -> str:
    """The losses of every seed, and `figures` of `summary`."""
    lines = ["held-out MLM loss (nats)   float32  bfloat16  difference"]
    pairs = zip(*[[run for run in runs if run["dtype"] == dtype] for dtype in DTYPES])
    for full, low in pairs:
        losses = f"{full['eval']:>8.4f}{low['eval']:>10.4f}{low['eval'] - full['eval']:>+12.4f}"
        lines.append(f"  seed {full['seed']:<20}{losses}")
    lines.append(
        f"standard deviation over seeds {figures['float32_stdev_over_seeds']:.4f} and"
        f" {figures['bfloat16_stdev_over_seeds']:.4f}, mean difference {figures['difference_mean']:+.4f}"
    )
    return "\n".join(lines)


def draw(runs: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Writes the curves of all runs to --plot."""
    what = "" if options.option == OPTIONS[0] else " moments"
    title = f"{options.model}: training losses from the same seeds in float32 and bfloat16{what}"
    figure = curves(runs, title)
    with replacing(options.plot) as file:
        figure.savefig(file, dpi=110, format="png")


def curves(runs: list[dict[str, Any]], title: str) -> Figure:
    """One line for each run, each in the legend: a colour for each seed, a style for each dtype. Below them
    how far bfloat16 is from float32, which the lines themselves are too close to show."""
    from matplotlib import colormaps
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 6.5), layout="constrained")
    FigureCanvasAgg(figure)
    upper, lower = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": (2, 1)})
    # Wide and pale below narrow and dashed: both can be seen where they are equal.
    styles: dict[str, dict[str, Any]] = {
        "float32": {"linestyle": "-", "linewidth": 4.0, "alpha": 0.4},
        "bfloat16": {"linestyle": "--", "linewidth": 1.4},
    }
    palette = colormaps["tab10"].colors
    pairs = list(zip(*[[run for run in runs if run["dtype"] == dtype] for dtype in DTYPES]))
    for place, pair in enumerate(pairs):
        color = palette[place % len(palette)]
        for run in pair:
            label = f"seed {run['seed']}, {run['dtype']}"
            upper.plot(run["steps"], run["losses"], color=color, label=label, **styles[run["dtype"]])
        full, low = (run["losses"] for run in pair)
        lower.plot(
            pair[0]["steps"], [b - a for a, b in zip(full, low)], ".-", color=color, linewidth=1.0,
            label=f"seed {pair[0]['seed']}",
        )  # fmt: skip
    upper.set(ylabel="MLM loss (nats)", title=title)
    upper.legend(ncols=len(pairs) if len(pairs) <= 3 else 3, fontsize=9)
    lower.set(xlabel="step", ylabel="bfloat16 less float32 (nats)")
    lower.axhline(0.0, color="grey", linewidth=0.8)
    lower.legend(ncols=min(len(pairs), 6), fontsize=9)
    for axes in (upper, lower):
        axes.grid(alpha=0.3)
    return figure


if __name__ == "__main__":
    sys.exit(exit_code(main))
