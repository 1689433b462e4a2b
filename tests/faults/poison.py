"""Makes a loss or a gradient of one rank infinite or NaN, in either stage of a run, and compares all ranks'
steps (figure 6).

The real scripts run both stages on random tokens; before a step's gradients are averaged, the rank whose turn
it is gets a bad number. Each rank records, for each step, whether it was applied, its loss scale, and the
digest of its parameters after it.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any, Iterator, NamedTuple
from unittest import mock

from tests.faults.disagree import SCRIPTS
from tests.faults.figure import Attempt, Damage, Program, Setting, Tally
from tests.faults.jobs import named, parsed
from tests.processes import ROOT, run_ranks
from tests.training.small_runs import command

KINDS = ("loss nan", "loss inf", "gradient nan", "gradient inf", "gradient -inf")
_STARTER = """
import hashlib, json, os, runpy, sys
script, poisons, folder = {script!r}, {poisons!r}, {folder!r}
sys.path.insert(0, {root!r})
sys.argv = [script, *sys.argv[1:]]
names = ("OMPI_COMM_WORLD_RANK", "HOROVOD_RANK", "DMLC_WORKER_ID")
rank = int(next(os.environ[name] for name in names if name in os.environ))
import base.threads
set_threads = base.threads.set_threads

def then_change():
    set_threads()
    import numpy as np
    import training.step as step_module
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

base.threads.set_threads = then_change
runpy.run_path(os.path.join({root!r}, script), run_name="__main__")
"""


class Poison(NamedTuple):
    """A bad number: in which step, on which rank, and of KINDS."""

    step: int
    rank: int
    kind: str


class Report(NamedTuple):
    """The poisons of a run, by stage, and the faults that were found; there should be none. `complete`:
    whether the run came to its end."""

    poisons: dict[int, list[Poison]]
    faults: list[str]
    complete: bool = True


def plan(ranks: int) -> tuple[int, dict[int, list[Poison]]]:
    """Steps of a stage, and the poisons of both: every kind on every rank, two and a sound step in turn."""
    pairs = [(rank, kind) for kind in KINDS for rank in range(ranks)]
    steps = 2 + len(pairs) * 3 // 2 + 2
    places = [step for step in range(2, steps) if step % 3][: len(pairs)]
    return steps, {
        stage: [Poison(place + stage * steps - steps, *pair) for place, pair in zip(places, pairs)]
        for stage in (1, 2)
    }


def attack(launcher: str, ranks: int, folder: Path) -> Report:
    """One run with all poisons; its files go to `folder`, which is empty."""
    steps, poisons = plan(ranks)
    every = [poison for of_stage in poisons.values() for poison in of_stage]
    code = _STARTER.format(
        script=SCRIPTS[launcher],
        poisons={(poison.step, poison.rank): poison.kind for poison in every},
        folder=str(folder),
        root=str(ROOT),
    )
    words = command(
        folder / "run", "--stages", "both", "--dummy_data_len", "8,16", "--num_steps", f"{steps},{steps}",
        "--ckpt_interval", "1000", "--log_interval", "1", "--seed", "3", "--comm_timeout", "300",
        "--end_lr", "0.001",
    )  # fmt: skip
    result = run_ranks(code, ranks, launcher, args=words)
    recorded = [_lines(folder / f"rank-{rank}.jsonl") for rank in range(ranks)]
    faults = faults_of(recorded, every, 2 * steps)
    if result.returncode:
        faults.append(result.describe())
    return Report(poisons, faults, complete=result.returncode == 0)


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


# --- The figure.


ALONE = "a rank goes by its own gradients"
TAKEN = "a step is taken whatever its gradients are"
# Indented as the part of tests/faults/poison.py that they become.
PATCHES = {
    ALONE: """
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
    TAKEN: """
    import math
    import training.step as of_steps
    norm_of = of_steps.global_norm
    def finite(*given):
        norm = norm_of(*given)
        return norm if math.isfinite(norm) else 1.0
    of_steps.global_norm = finite
""",
}
BEFORE = "    import training.step as step_module\n"


def cases(setting: Setting) -> Iterator[str]:
    """All kinds of numbers on every rank in both stages: one run of two ranks, and one of three."""
    return (named(ranks=ranks) for ranks in (2, 3))


@contextlib.contextmanager
def opened(setting: Setting) -> Iterator[Attempt]:
    """Tries a case: a run with a bad number in two of three steps."""
    # Damage comes below the recording of steps.
    patch = PATCHES.get(setting.damage, "").replace("{", "{{").replace("}", "}}")
    starter = _STARTER.replace(BEFORE, f"{patch}\n{BEFORE}", 1)
    assert BEFORE in _STARTER

    def attempt(case: str) -> Tally:
        folder = setting.work / "run"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        report = attack(setting.launcher, int(parsed(case)["ranks"]), folder)
        tried = sum(map(len, report.poisons.values()))
        held = tried - len(report.faults) if report.complete else 0
        return Tally(tried, max(0, held), tuple(report.faults[:3]))

    with mock.patch.object(sys.modules[__name__], "_STARTER", starter):
        yield attempt


CASE = named(ranks=2)
PROGRAM = Program(
    "6",
    "not finite on one rank: loss or gradient, each rank, both stages",
    "all ranks skip that step alike",
    weight=0.3,
    seconds=30,
    cases=cases,
    opened=opened,
    damages={
        ALONE: Damage(CASE, "differ from step"),
        TAKEN: Damage(CASE, "applied: Poison"),
    },
)
