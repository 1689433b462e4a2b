"""Training in bfloat16 against training in float32: curves of real runs, from the same seeds.

    python -m bench.bfloat16 [--seeds 3] [--num_steps 200] [--plot bfloat16.png] [--json bfloat16.json]

Each seed is pretrained twice on the embedded English text by run_pretraining_hvd.py in one process, once in
each dtype, with the same initial parameters, batches and dropout masks. The seeds show how large noise is:
a difference between the dtypes means something only where it stands out from the differences between seeds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from typing import Any

from base.errors import InputError
from base.files import replacing
from data.embedded import build as build_embedded

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DTYPES = ("float32", "bfloat16")
EVERY = 10  # steps between two points of a curve


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.bfloat16",
        description="Pretrains in float32 and bfloat16 from the same seeds and compares the losses.",
    )
    parser.add_argument("--seeds", type=int, default=3, help="runs in each dtype (default: 3)")
    parser.add_argument("--num_steps", type=int, default=200, help="steps of each run (default: 200)")
    parser.add_argument("--model", default="bert_2_128_2", help="default: %(default)s")
    parser.add_argument("--plot", default="bfloat16.png", help="where the curves go (default: %(default)s)")
    parser.add_argument("--json", help="also write all numbers to this file")
    options = parser.parse_args()
    if options.seeds < 2 or options.num_steps < EVERY:
        print(
            f"bench.bfloat16: use --seeds of at least 2 and --num_steps of at least {EVERY}", file=sys.stderr
        )
        return 2
    with tempfile.TemporaryDirectory() as scratch:
        build_embedded(os.path.join(scratch, "text"))
        runs = [
            {"dtype": dtype, "seed": seed, **pretrain(options.model, options.num_steps, scratch, dtype, seed)}
            for seed in range(options.seeds)
            for dtype in DTYPES
        ]
    figures = summary(runs)
    print(table(runs, figures))
    draw(runs, options.plot)
    print(f"curves     {options.plot}")
    if options.json:
        with replacing(options.json) as file:
            file.write(json.dumps({"runs": runs, "summary": figures}, indent=1).encode() + b"\n")
    return 0


def pretrain(model: str, num_steps: int, scratch: str, dtype: str, seed: int) -> dict[str, Any]:
    """One run's curve of MLM losses and its loss on held-out text, in nats.

    Raises:
        InputError: the run failed; its last lines are in the message.
    """
    text, directory = os.path.join(scratch, "text"), os.path.join(scratch, f"{dtype}-{seed}")
    command = [
        sys.executable, os.path.join(ROOT, "run_pretraining_hvd.py"), "--raw",
        "--data", os.path.join(text, "corpus", "train-*.txt"),
        "--data_eval", os.path.join(text, "corpus", "eval.txt"),
        "--vocab", os.path.join(text, "vocab.txt"), "--cache_dir", os.path.join(scratch, "cache"),
        "--model", model, "--dtype", dtype, "--max_seq_length", "32", "--batch_size", "2048",
        "--use_avg_len", "--lr", "0.014", "--warmup_ratio", "0.1", "--num_steps", str(num_steps),
        "--log_interval", str(EVERY), "--ckpt_interval", str(num_steps), "--ckpt_dir", directory,
        "--seed", str(seed),
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


def draw(runs: list[dict[str, Any]], path: str) -> None:
    """One line for each run; a colour for each dtype."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    styles = {"float32": ("tab:blue", "-"), "bfloat16": ("tab:orange", "--")}
    for run in runs:
        color, line = styles[run["dtype"]]
        label = run["dtype"] if run["seed"] == 0 else None
        axes.plot(run["steps"], run["losses"], line, color=color, label=label, linewidth=1.2)
    axes.set(xlabel="step", ylabel="MLM loss (nats)", title="the same seeds in float32 and bfloat16")
    axes.grid(alpha=0.3)
    axes.legend()
    with replacing(path) as file:
        figure.savefig(file, dpi=110, format="png")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except InputError as error:
        print(f"bench.bfloat16: {error}", file=sys.stderr)
        sys.exit(1)
