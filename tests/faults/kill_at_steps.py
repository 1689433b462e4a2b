"""Figure 1: killed at every step, resumed, and the same to the last bit."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Iterator

from tests.faults.figure import Attempt, Damage, Program, Setting, Tally
from tests.faults.jobs import INTERVAL, LAST, SECONDS, Job, differences, named, parsed, whole
from tests.faults.kill_at_boundary import metrics
from training.checkpoint import list_steps

ACCUMULATE = (1, 3)
BETWEEN = 2 * INTERVAL  # steps between the kills of one run: what a resumed process did is in a checkpoint
PATCHES = {
    "a sequence is left out where a run is resumed": """
import training.run
place = training.run.position_to_continue
def skip(start, *rest, **named):
    position, messages = place(start, *rest, **named)
    return position + (start.step > 0), messages
training.run.position_to_continue = skip
""",
    "the optimizer's states begin anew": """
import training.run
training.run.restore_states = lambda *given, **named: None
""",
    "a process draws other dropout masks than the one before": """
import os, training.loop
training.loop.dropout_seed = lambda seed, step, rank: os.getpid() + step
""",
    "metrics after the checkpoint are written a second time": """
import training.report
training.report._keep_before = lambda *given, **named: None
""",
}


def cases(setting: Setting) -> Iterator[str]:
    """Every step with every number of micro-batches: runs by the first step at which they are killed."""
    every = [(first, accumulate) for first in range(1, BETWEEN + 1) for accumulate in ACCUMULATE]
    random.Random(setting.seed).shuffle(every)
    return (named(first=first, accumulate=accumulate) for first, accumulate in every)


@contextlib.contextmanager
def opened(setting: Setting) -> Iterator[Attempt]:
    """Tries a case: a run that is killed as soon as it has logged a step, resumed, killed so many steps
    later, and so on to the end. Each kill shows there: it is continued from what the one before has saved."""

    def attempt(case: str) -> Tally:
        first, accumulate = (int(parsed(case)[name]) for name in ("first", "accumulate"))
        expected = whole(setting, accumulate)
        job = Job(setting, accumulate, PATCHES.get(setting.damage, ""))
        directory = setting.work / "run"
        shutil.rmtree(directory, ignore_errors=True)
        kills = range(first, LAST + 1, BETWEEN)
        saved = 0
        for step in kills:
            kill_at(step, job, directory)
            newest = max(list_steps(str(directory)), default=0)
            assert newest > saved or step == first, f"nothing was saved in {BETWEEN} steps"
            saved = newest
        with job.start(directory) as run:
            run.wait().check()
        texts = differences(directory, expected)
        return Tally(len(kills), len(kills) - bool(texts), (texts,) if texts else ())

    yield attempt


def kill_at(step: int, job: Job, directory: Path) -> None:
    """Starts or resumes a run, and kills all its processes when it has logged a step."""
    end = time.monotonic() + SECONDS
    with job.start(directory) as run:
        while run.poll() is None and not any(
            each["step"] == step and "lr" in each for each in metrics(directory)
        ):
            assert time.monotonic() < end, f"step {step} never came"
            time.sleep(0.001)
        assert run.poll() is None or step == LAST, run.wait().describe()
        for pid in run.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


CASE = named(first=7, accumulate=1)
PROGRAM = Program(
    "1",
    "killed at every step 1 to 20 and resumed: parameters, states and metrics",
    "100% byte-identical",
    weight=3,
    seconds=60,
    cases=cases,
    opened=opened,
    damages={name: Damage(CASE, "not the undisturbed run's") for name in PATCHES},
)
