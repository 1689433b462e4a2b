"""One training step of BERT on this machine's CPU: ours against its peers, in one interleaved run.

    python -m bench.step [--models base large] [--lengths 128 512] [--dtypes float32 bfloat16] [--rounds 7]

Work: 8 sequences of 128 tokens with 20 masked positions each, or 2 of 512 with 80 (--lengths 512), dropout
0.1, both losses, update included. Every
contestant is a process that waits until it is to take a step, so that only one computes at a time; a
round is one step of each. Ratios are taken within a round, and the table shows medians and quartiles: a slow
minute of the machine then meets all of them. Where memory does not hold all workers, they meet ours in turn.

"to ours" is how many times as long as ours the contestant's step takes. Hugging Face scores the vocabulary
for all positions, ours and GluonNLP's for the masked ones, and on the fused operators the top layer
ends with the positions that are looked at: GFLOP counts the matrix products that a step has, and "per FLOP"
compares the time per operation. The share of the step outside products is measured against a contestant that
does our products by weights and nothing else.

In bfloat16x3 our step computes in float32 but for products by weights, which are three of bfloat16 each; the
peers compute in float32. --contestants torch_high is PyTorch with its own such setting.

The peers on PyTorch need an environment of their own with torch and transformers; without one they are left
out. Without --dtypes, bfloat16 is measured where the processor multiplies it (AVX-512 BF16, AMX). On two
cores at 2.8 GHz all of it takes about 10 minutes for a dtype, --models base alone 5, --quick 1.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from typing import Any, Mapping, NamedTuple, Sequence

from base import machine
from base.command_line import positive_int
from base.memory import available_bytes
from base.tables import Row, Table, terminal
from bench import workers
from bench.harness import (
    Measurement,
    Round,
    Spread,
    begin,
    finish,
    note,
    ratio_shown,
    ratios,
    spread,
    take_rounds,
    to_ours,
)
from bench.trainings import OURS
from bench.work import BATCHES, DTYPES, MODELS, SPLIT, VOCABULARY, Work, native_dtypes
from bench.workers import Contestants
from bert import memory
from training.entry import exit_code

PRODUCTS = "products"
LARGE = 2e8  # parameters from which on half of the rounds and one warm-up must do
WARM_UPS = 2  # steps: the first plans memory, the second finds it planned
QUICK_MODEL = "bert_1_64_1"
LIBRARIES = 0.6e9  # bytes of a process beside the model
HEAD = ("", "s/step (quartiles)", "tokens/s", "to ours (quartiles)", "per FLOP", "GFLOP", "GFLOP/s", "GiB")


class Contestant(NamedTuple):
    """A worker, by its key on the command line."""

    title: str
    module: str = workers.OURS


CONTESTANTS = {
    OURS: Contestant("ours"),
    "ours_mxnet": Contestant("ours, MXNet's operators"),
    "torch": Contestant("Hugging Face on PyTorch", workers.TORCH),
    "torch_masked": Contestant("the same, masked positions", workers.TORCH),
    "torch_high": Contestant("PyTorch, matmul precision high", workers.TORCH),
    "gluonnlp": Contestant("GluonNLP", "bench.peer_gluonnlp"),
    PRODUCTS: Contestant("our matrix products alone"),  # which trains nothing
}
# A large model's step takes long, and the peers differ there as they do on a small one.
DEFAULTS = {"large": (OURS, "torch", "gluonnlp", PRODUCTS)}
DEFAULT = (OURS, "ours_mxnet", "torch", "torch_masked", "gluonnlp", PRODUCTS)


def plan_sessions(keys: Sequence[str], work: Work, available: float) -> list[list[str]]:
    """Contestants whose workers live at the same time: as many as the memory allows. Each session has ours,
    if it takes part: ratios are taken within one. Where no two fit, everybody is alone.

    Raises:
        ValueError: not even one worker fits.
    """
    # What a process is likely to need at most: weights, gradients and two moments; libraries; MXNet's
    # activations in 32 bits, with scores of the vocabulary for all tokens, as Hugging Face has them.
    batch = memory.Batch(work.batch.sequences, work.length, work.length)
    activations = memory.activation_bytes(work.config, VOCABULARY, batch, memory.MXNET, memory.FLOAT32)
    most = 1.2 * (16 * memory.parameter_count(work.config, VOCABULARY) + LIBRARIES) + activations
    if most > available:
        raise ValueError(f"needs about {most / 2**30:.0f} GiB, {available / 2**30:.0f} GiB are available")
    room = int(available // most) - 1  # beside ours
    if not room:
        return [[key] for key in keys]
    base = OURS if OURS in keys else keys[0]
    others = [key for key in keys if key != base]
    return [[base, *others[at : at + room]] for at in range(0, len(others), room)] or [[base]]


def run_session(
    work: Work, keys: Sequence[str], rounds: int, warm_ups: int, torch_python: str | None
) -> tuple[Contestants, list[dict[str, float]]]:
    """Starts the contestants one after the other, warms each up, takes the rounds, ends them.

    Returns:
        The contestants, which have ended, and in every round the seconds of a step, by contestant.
    """
    with Contestants(torch_python) as running:
        for key in keys:
            name = f"{CONTESTANTS[key].title} ({work})"
            running.start(key, name, CONTESTANTS[key].module, ["step", key, *map(str, work)])
            answers = [running.step(key) for _ in range(warm_ups)]
            warm = [answer["seconds"] for answer in answers if answer is not None]
            if key in running.keys:
                running.facts[key]["warm_up_s"] = warm
                note(f"  {name}: ready, warm-up {' '.join(f'{each:.2f}' for each in warm)} s")

        taken = take_rounds(running.keys, rounds, lambda key, _: running.step(key))
        running.end()
    for key in running.facts:
        running.facts[key]["losses"] = [each[key]["loss"] for each in taken if key in each]
    return running, [{key: answer["seconds"] for key, answer in each.items()} for each in taken]


def measure(
    work: Work, keys: Sequence[str], rounds: int, torch_python: str | None
) -> tuple[dict[str, Any], bool]:
    """The figures of one work, and whether every contestant that began came through."""
    warm_ups = WARM_UPS
    if memory.parameter_count(work.config, VOCABULARY) > LARGE:
        rounds, warm_ups = math.ceil(rounds / 2), 1
    plan = plan_sessions(keys, work, available_bytes())
    note(f"{work}: " + "; ".join(", ".join(CONTESTANTS[k].title for k in s) for s in plan))
    # Everybody alone, all twice: a slow minute then does not meet only one of them, and the first step of one
    # is set against the others' first.
    alone = len(plan) > 1 and all(len(chosen) == 1 for chosen in plan)
    repeats = 2 if alone else 1
    others = machine.Others()
    ended, merged = [], []
    for _ in range(repeats):
        sessions = [
            run_session(work, chosen, math.ceil(rounds / repeats), warm_ups, torch_python) for chosen in plan
        ]
        ended += [running for running, _ in sessions]
        found = [rows for _, rows in sessions]
        # The rows of those alone stand side by side.
        together = zip(*found) if alone else ((row,) for rows in found for row in rows)
        merged += [{key: seconds for row in rows for key, seconds in row.items()} for rows in together]
    # Children count when they have ended and been waited for, which all of them have.
    shares = others.shares()
    facts = {key: value for each in ended for key, value in each.facts.items()}
    waiting = [each for each in ended if len(each.facts) > 1]  # for each other
    result = {
        **work._asdict(),
        "work": str(work),
        "rounds": rounds,
        "together": None if alone else plan,
        "idle": sum(each.waited_cpu for each in waiting) / max(1e-9, sum(each.waited for each in waiting)),
        **shares,
        **summarize(merged, {key: facts[key] for key in keys if key in facts}, work.batch.tokens),
        "seconds": merged,
        "left_out": {key: why for each in ended for key, why in each.left_out.items()},
    }
    return result, not any(each.failed for each in ended)


def summarize(rounds: Sequence[Round], facts: Mapping[str, Mapping[str, Any]], tokens: int) -> dict[str, Any]:
    """The figures of a model and dtype by contestant, with its facts; "peak_gflops", 10^9 operations a second
    that count as 100%, if that is known; "outside_products", the share of our step that is no product of a
    matrix by weights. Contestants without a single step are left out. `tokens`: of a step."""
    peak = max((each["square_gflops"] for each in facts.values() if "square_gflops" in each), default=None)
    result: dict[str, Any] = {}
    for key, known in facts.items():
        seconds = [each[key] for each in rounds if key in each]
        if not seconds:
            continue
        step, gflop = spread(seconds), known["gflop"]
        figures: dict[str, Any] = {"step_s": step._asdict(), "gflop": gflop, "gflops": gflop / step.median}
        if peak:
            figures["of_peak"] = figures["gflops"] / peak
        if key != PRODUCTS:
            figures["tokens_per_s"] = tokens / step.median
        figures.update(to_ours(rounds, key))
        if "to_ours" in figures:
            figures["to_ours_per_flop"] = figures["to_ours"]["median"] * facts[OURS]["gflop"] / gflop
        result[key] = {**figures, "title": CONTESTANTS[key].title, **known}
    outside = [1 - ratio for ratio in ratios(rounds, PRODUCTS, OURS)]
    return {
        "peak_gflops": peak,
        "contestants": result,
        "outside_products": spread(outside)._asdict() if outside else None,
    }


def table(result: Mapping[str, Any]) -> Table:
    """A result for people; `result` as in the JSON file."""
    rows = []
    for key, figures in result["contestants"].items():
        of_peak = f" ({figures['of_peak']:.0%})" if "of_peak" in figures else ""
        cells = [CONTESTANTS[key].title, Spread(**figures["step_s"]).shown(3)]
        cells.append(f"{figures['tokens_per_s']:.0f}" if key != PRODUCTS else "")
        cells.append("1" if key == OURS else ratio_shown(figures))
        cells.append(f"{figures['to_ours_per_flop']:.2f}" if "to_ours" in figures and key != PRODUCTS else "")
        cells += [f"{figures['gflop']:.0f}", f"{figures['gflops']:.0f}{of_peak}"]
        cells.append(f"{figures['peak_bytes'] / 2**30:.1f}" if figures.get("peak_bytes") else "")
        rows.append(Row(cells))
    notes = []
    if result["outside_products"]:
        median, low, high = (100 * value for value in result["outside_products"].values())
        notes.append(
            f"outside products of a matrix by weights: {median:.0f}% of our step ({low:.0f} to {high:.0f})"
        )
    if result["peak_gflops"]:
        peak = f"{result['peak_gflops']:.0f} GFLOP/s, the fastest square product"
        notes.append(f"100% of the matrix peak: {peak}")
    notes.append(
        f"{result['rounds']} rounds; other programs took {result['others']:.1%} of the machine,"
        f" its host {result['stolen']:.1%}; waiting workers {result['idle']:.1%} of a core"
    )
    for key, why in result["left_out"].items():
        said = why.splitlines()
        notes.append(f"{CONTESTANTS[key].title}: " + " ".join(dict.fromkeys([said[0], said[-1]])))
    return Table(result["work"], HEAD, rows, notes=notes)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Measurement("step", __doc__, f"{QUICK_MODEL}, 2 rounds")
    add, option, lengths = parser.add_argument, parser.option, [*BATCHES]
    names = {"nargs": "+", "metavar": "MODEL"}
    option("--models", list(MODELS), [QUICK_MODEL], "base, large, bert_LAYERS_UNITS_HEADS", **names)
    chosen = {"nargs": "+", "type": positive_int, "choices": lengths}
    option("--lengths", lengths, lengths[:1], "tokens of a sequence", **chosen)
    text = "default: what the CPU multiplies"
    add("--dtypes", nargs="+", choices=[*DTYPES, SPLIT], help=text)
    text = f"of {', '.join(CONTESTANTS)}"
    add("--contestants", nargs="+", choices=CONTESTANTS, metavar="NAME", help=text)
    option("--rounds", 7, 2, "steps of each; of large, half", type=positive_int, metavar="N")
    parser.contestants_options()
    options = parser.settle(parser.parse_args(arguments))
    for model in options.models:
        Work(model, lengths[0], DTYPES[0]).config  # noqa: B018
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    here = begin(options)
    dtypes = options.dtypes or native_dtypes(here)
    results, sound = [], True
    for work in itertools.starmap(Work, itertools.product(options.models, options.lengths, dtypes)):
        keys = options.contestants or list(DEFAULTS.get(work.model, DEFAULT))
        if options.torch_python is None:
            keys = [key for key in keys if CONTESTANTS[key].module != workers.TORCH]
        if not keys:
            continue
        try:
            result, whole = measure(work, keys, options.rounds, options.torch_python)
        except ValueError as error:
            print(f"{work}: left out: {error}\n", flush=True)
            continue
        results.append(result)
        sound &= whole
        print(terminal(table(result)) + "\n", flush=True)
    if set(DTYPES) - set(dtypes) and not options.dtypes:
        print(
            "bfloat16 was left out: this processor does not multiply it; --dtypes bfloat16 measures it anyway"
        )
    finish(options, {"machine": here, "threads": options.threads, "results": results})
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(exit_code(main))
