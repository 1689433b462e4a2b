"""Makes a loss or a gradient of one rank infinite, NaN or far too large, in either stage of a run, and
compares all ranks' steps (figure 6).

The real scripts run both stages on random tokens; before a step's gradients are averaged, the rank whose turn
it is gets a bad number. Each rank records, for each step, whether it was applied, its loss scale, and the
digest of its parameters after it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from tests.faults.figure import Damage, Parts, Program, Setting, Tally, named
from tests.faults.jobs import SCRIPTS, patched
from tests.processes import ROOT, run_ranks

KINDS = ("loss nan", "loss inf", "loss 1e6", "gradient nan", "gradient inf", "gradient -inf")
# Run in each rank when damage has been done: what is recorded is above it.
_RECORD = """
import hashlib, json, os
import numpy as np
import training.step as step_module
poisons, folder = {poisons!r}, {folder!r}
names = ("OMPI_COMM_WORLD_RANK", "HOROVOD_RANK", "DMLC_WORKER_ID")
rank = int(next(os.environ[name] for name in names if name in os.environ))
Step = step_module.TrainStep
call, compute = Step.__call__, Step._forward_and_backward

def poisoned(self, step, batches):
    kind, _, value = poisons.get((step, rank), "").partition(" ")
    task = self._task
    if kind == "loss":
        def inputs(batch, device):
            weights = batch.masked_weights.copy()
            weights[0, 0] = float(value)
            return type(task).inputs(task, batch._replace(masked_weights=weights), device)
        task.inputs = inputs  # and not `count`, which all ranks would get
    found = compute(self, step, batches)
    vars(task).pop("inputs", None)
    if kind == "gradient":
        self.gradients[len(self.gradients) // 2].reshape((-1,))[3] = float(value)
    return found

def recorded(self, step, *given, **named):
    result = call(self, step, *given, **named)
    digest = hashlib.sha256()
    for parameter in self._network.collect_params().values():
        digest.update(parameter.data().asnumpy().tobytes())
    line = [step, result.applied, self._scaler.scale, digest.hexdigest()]
    with open(os.path.join(folder, f"rank-{{rank}}.jsonl"), "a") as file:
        file.write(json.dumps(line) + "\\n")
    return result

Step._forward_and_backward, Step.__call__ = poisoned, recorded
"""


class Poison(NamedTuple):
    """A bad number: in which step, on which rank, and of KINDS."""

    step: int
    rank: int
    kind: str


def plan(ranks: int) -> tuple[int, dict[int, list[Poison]]]:
    """Steps of a stage, and the poisons of both: every kind on every rank, two and a sound step in turn."""
    pairs = [(rank, kind) for kind in KINDS for rank in range(ranks)]
    steps = 2 + len(pairs) * 3 // 2 + 2
    places = [step for step in range(2, steps) if step % 3][: len(pairs)]
    return steps, {
        stage: [Poison(place + stage * steps - steps, *pair) for place, pair in zip(places, pairs)]
        for stage in (1, 2)
    }


def attempt(setting: Setting, parts: Parts) -> Tally:
    """A run with a bad number in two of three steps."""
    from tests.training.small_runs import command  # imports mxnet, which the command itself does without

    ranks, folder = int(parts["ranks"]), setting.folder("run")
    steps, poisons = plan(ranks)
    every = [poison for of_stage in poisons.values() for poison in of_stage]
    record = _RECORD.format(
        poisons={(poison.step, poison.rank): poison.kind for poison in every}, folder=str(folder)
    )
    words = command(
        folder / "run", "--stages", "both", "--dummy_data_len", "8,16", "--num_steps", f"{steps},{steps}",
        "--ckpt_interval", "1000", "--log_interval", "1", "--seed", "3", "--comm_timeout", "300",
        "--end_lr", "0.001",
    )  # fmt: skip
    code = patched(ROOT / SCRIPTS[setting.launcher], setting.patch + record)
    result = run_ranks(code, ranks, setting.launcher, args=words)
    recorded = [_lines(folder / f"rank-{rank}.jsonl") for rank in range(ranks)]
    faults = faults_of(recorded, every, 2 * steps)
    if result.returncode:
        return Tally(len(every), 0, (*faults[:3], result.describe()))
    return Tally(len(every), max(0, len(every) - len(faults)), tuple(faults[:3]))


def faults_of(recorded: list[list[Any]], poisons: list[Poison], last: int) -> list[str]:
    """Sentences on what is not as it should be: ranks that differ, poisoned steps that were applied or have
    changed a parameter, sound steps that were skipped or have changed none."""
    faults = []
    for rank, lines in enumerate(recorded):
        if lines != recorded[0]:
            steps = [one[0] for one, other in zip(lines, recorded[0]) if one != other]
            faults.append(f"ranks 0 and {rank} differ from step {steps[0] if steps else 'the last'} on")
    steps = [line[0] for line in recorded[0]]
    if steps != list(range(1, last + 1)):
        faults.append(f"steps {steps} instead of 1 to {last}")
    bad = {poison.step: poison for poison in poisons}
    before = None
    for step, applied, _, digest in recorded[0]:
        if applied == (step in bad):
            faults.append(f"step {step} {'applied' if applied else 'skipped'}: {bad.get(step, 'sound')}")
        if before is not None and (digest == before) != (step in bad):
            faults.append(f"step {step}: parameters {'as before' if digest == before else 'changed'}")
        before = digest
    return faults


def _lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


CASE = named(ranks=2)
PROGRAM = Program(
    "6",
    "not finite, or far off, on one rank: loss or gradient, each rank, both stages",
    "all ranks skip that step alike",
    weight=0.3,
    seconds=30,
    # All kinds of numbers on every rank in both stages: one run of two ranks, and one of three.
    cases=lambda setting: [named(ranks=ranks) for ranks in (2, 3)],
    attempt=attempt,
    damages={
        "a rank goes by its own gradients": Damage(
            CASE,
            "differ from step",
            """
import training.step as of_steps
agreed = of_steps.TrainStep.__call__
def alone(self, *given, **named):
    own = self._communicator
    average = own.scaled_average
    own.scaled_average = lambda arrays: 1.0
    try:
        return agreed(self, *given, **named)
    finally:
        own.scaled_average = average
of_steps.TrainStep.__call__ = alone
""",
        ),
        "a step is taken whatever its gradients are": Damage(
            CASE,
            "applied: Poison",
            """
import math
import training.step as of_steps
norm_of = of_steps.global_norm
def finite(*given):
    norm = norm_of(*given)
    return norm if math.isfinite(norm) else 1.0
of_steps.global_norm = finite
""",
        ),
    },
)
