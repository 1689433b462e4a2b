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
import os
import resource
import signal
import sys
import time
from dataclasses import dataclass, field
from typing import Any, Sequence

from base import machine
from base.command_line import path_name, positive_int
from base.errors import InputError
from base.memory import available_bytes
from base.threads import set_threads
from bench import contestants
from bench.contestants import CONTESTANTS, OURS, ROOT
from bench.quick import finish, measurement, settle
from bench.rounds import plan_sessions, summarize, table
from bench.work import BATCHES, DTYPES, MODELS, SPLIT, Work, native_dtypes, parameters, size_of
from bench.workers import Contestants, end_at, note
from training.entry import exit_code

LARGE = 2e8  # parameters from which on half of the rounds and one warm-up must do
WARM_UPS = 2  # steps: the first plans memory, the second finds it planned
QUICK_MODEL = "bert_1_64_1"


@dataclass
class Session:
    """Results of workers that lived at the same time. `rounds`: seconds of a step, by contestant."""

    rounds: list[dict[str, float]] = field(default_factory=list)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    failed: bool = False
    idle_cpu: float = 0.0  # of workers that wait, while another computes
    idle_wall: float = 0.0


def run_session(
    work: Work, keys: Sequence[str], rounds: int, warm_ups: int, torch_python: str | None
) -> Session:
    """Starts the contestants one after the other, warms each up, takes the rounds, ends them."""
    found = Session()
    with Contestants({key: CONTESTANTS[key].title for key in keys}) as running:
        for key in keys:
            words = contestants.command(key, work, torch_python)
            name = f"{CONTESTANTS[key].title} ({work})"
            peer = CONTESTANTS[key].module != CONTESTANTS[OURS].module
            running.start(key, name, words, contestants.environment(peer, os.environ))
            answers = [running.step(key) for _ in range(warm_ups)]
            warm = [answer["seconds"] for answer in answers if answer is not None]
            if key in running.keys:
                running.facts[key]["warm_up_s"] = warm
                note(f"  {name}: ready, warm-up {' '.join(f'{each:.2f}' for each in warm)} s")
        for number in range(rounds):
            seconds: dict[str, float] = {}
            for key in running.in_turns(number):
                waiting = [other for other in running.keys if other != key]
                before, begun = running.cpu_seconds(waiting), time.monotonic()
                answer = running.step(key)
                if answer is None:
                    continue
                found.idle_cpu += running.cpu_seconds(waiting) - before
                found.idle_wall += (time.monotonic() - begun) * len(waiting)
                seconds[key] = answer["seconds"]
                running.facts[key].setdefault("losses", []).append(answer["loss"])
            found.rounds.append(seconds)
        running.end()
    found.facts, found.left_out, found.failed = running.facts, running.left_out, running.failed
    return found


def measure(
    work: Work, keys: Sequence[str], rounds: int, torch_python: str | None
) -> tuple[dict[str, Any], bool]:
    """The figures of one work, and whether every contestant that began came through."""
    rounds, warm_ups = (math.ceil(rounds / 2), 1) if parameters(work.size) > LARGE else (rounds, WARM_UPS)
    plan = plan_sessions(keys, work, available_bytes())
    note(f"{work}: " + "; ".join(", ".join(CONTESTANTS[k].title for k in s) for s in plan.sessions))
    others, own = machine.Others(), _own_cpu_seconds()
    sessions: list[Session] = []
    merged: list[dict[str, float]] = []
    for _ in range(plan.repeats):
        in_repeat: list[list[dict[str, float]]] = []
        for chosen in plan.sessions:
            session = run_session(work, chosen, math.ceil(rounds / plan.repeats), warm_ups, torch_python)
            sessions.append(session)
            in_repeat.append(session.rounds)
        if plan.repeats > 1:  # each alone: its first step is set against the others' first
            merged += [{key: s for each in row for key, s in each.items()} for row in zip(*in_repeat)]
        else:
            merged += [row for each in in_repeat for row in each]
    # Children count when they have ended and been waited for, which all of them have.
    shares = others.shares(_own_cpu_seconds() - own)
    facts = {key: value for session in sessions for key, value in session.facts.items()}
    peak = max((each["square_gflops"] for each in facts.values() if "square_gflops" in each), default=None)
    result = {
        **work._asdict(),
        "work": str(work),
        "rounds": rounds,
        "together": plan.sessions if plan.repeats == 1 else None,
        "peak_gflops": peak,
        "idle": sum(s.idle_cpu for s in sessions) / max(1e-9, sum(s.idle_wall for s in sessions)),
        **shares,
        **summarize(
            merged, {key: facts[key]["gflop"] for key in keys if key in facts}, peak, work.batch.tokens
        ),
        "seconds": merged,
        "left_out": {key: why for session in sessions for key, why in session.left_out.items()},
    }
    for key, figures in result["contestants"].items():
        figures.update(title=CONTESTANTS[key].title, **facts[key])
    return result, not any(session.failed for session in sessions)


def _own_cpu_seconds() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = measurement("step", __doc__, f"{QUICK_MODEL}, 2 rounds")
    names = ", ".join(CONTESTANTS)
    parser.add_argument("--models", nargs="+", metavar="MODEL", help="base, large, bert_LAYERS_UNITS_HEADS")
    lengths = [*BATCHES]
    text = "tokens of a sequence (default: both)"
    parser.add_argument("--lengths", nargs="+", type=int, choices=lengths, metavar="TOKENS", help=text)
    parser.add_argument(
        "--dtypes", nargs="+", choices=[*DTYPES, SPLIT], help="default: what the CPU multiplies"
    )
    parser.add_argument("--contestants", nargs="+", choices=CONTESTANTS, metavar="NAME", help=f"of {names}")
    parser.add_argument(
        "--rounds", type=positive_int, metavar="N", help="steps of each (default 7; of large, half)"
    )
    parser.add_argument(
        "--torch_python", type=path_name, metavar="PATH", help="interpreter with torch and transformers"
    )
    options = parser.parse_args(arguments)
    usual = {"models": list(MODELS), "lengths": lengths, "rounds": 7}
    settle(options, usual, {"models": [QUICK_MODEL], "lengths": lengths[:1], "rounds": 2})
    try:
        for model in options.models:
            size_of(model)
        options.torch_python = contestants.find_torch_python(options.torch_python, os.environ)
        options.threads = set_threads()
    except (ValueError, InputError) as error:
        parser.error(str(error))
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    end_at(signal.SIGTERM)  # with all workers
    here = machine.describe(ROOT)
    dtypes = options.dtypes or native_dtypes(here)
    kept = " ".join(f"{name}={value}" for name, value in contestants.KEEPS_MEMORY.items())
    heading = f"{machine.line(here)}\nevery contestant has {options.threads} threads; peers also {kept}"
    print(heading + f"; load before the start {here['load_before']}\n", flush=True)
    results, sound = [], True
    for work in itertools.starmap(Work, itertools.product(options.models, options.lengths, dtypes)):
        keys = options.contestants or list(contestants.DEFAULTS.get(work.model, contestants.DEFAULT))
        if options.torch_python is None:
            keys = [key for key in keys if not CONTESTANTS[key].needs_torch]
        if not keys:
            continue
        try:
            result, whole = measure(work, keys, options.rounds, options.torch_python)
        except ValueError as error:
            print(f"{work}: left out: {error}\n", flush=True)
            continue
        results.append(result)
        sound &= whole
        print(table(result) + "\n", flush=True)
    if options.torch_python is None:
        print(contestants.NO_TORCH)
    if set(DTYPES) - set(dtypes) and not options.dtypes:
        print(
            "bfloat16 was left out: this processor does not multiply it; --dtypes bfloat16 measures it anyway"
        )
    finish(options, {"machine": here, "threads": options.threads, "results": results})
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(exit_code(main))
