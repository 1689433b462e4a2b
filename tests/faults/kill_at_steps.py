"""Figure 1: killed at every step, resumed, and the same to the last bit."""

from __future__ import annotations

from tests.faults.figure import Damage, Parts, Program, Setting, Tally, named, shuffled
from tests.faults.jobs import INTERVAL, LAST, LOST_STATES, Job, differences, moved, wait_for_step, whole
from training.checkpoint import list_steps

ACCUMULATE = (1, 3)
BETWEEN = 2 * INTERVAL  # steps between the kills of one run: what a resumed process did is in a checkpoint


def attempt(setting: Setting, parts: Parts) -> Tally:
    """A run that is killed as soon as it has logged a step, resumed, killed so many steps later, and so on to
    the end. Each kill shows there: it is continued from what the one before has saved."""
    first, accumulate = int(parts["first"]), int(parts["accumulate"])
    expected, directory = whole(setting, accumulate), setting.folder("run")
    job = Job(setting, accumulate)
    kills = range(first, LAST + 1, BETWEEN)
    saved = 0
    for step in kills:
        with job.start(job.words(directory)) as run:
            wait_for_step(run, directory, step)
            assert run.poll() is None or step == LAST, run.wait().describe()
            # The end of the block kills every process.
        newest = max(list_steps(str(directory)), default=0)
        assert newest > saved or step == first, f"nothing was saved in {BETWEEN} steps"
        saved = newest
    job.start(job.words(directory)).finish()
    return Tally.of(differences(directory, expected), tried=len(kills))


PATCHES = {
    "a sequence is left out where a run is resumed": moved(1),
    "the optimizer's states begin anew": LOST_STATES,
    "a process draws other dropout masks than the one before": """
import os, training.loop
training.loop.dropout_seed = lambda seed, step, rank: os.getpid() + step
""",
    "metrics after the checkpoint are written a second time": """
import training.report
training.report._keep_before = lambda *given, **named: None
""",
}
CASE = named(first=7, accumulate=1)
# Runs by the first step at which they are killed.
EVERY = [named(first=first, accumulate=each) for first in range(1, BETWEEN + 1) for each in ACCUMULATE]
PROGRAM = Program(
    "1",
    "killed at every step 1 to 20 and resumed: parameters, states and metrics",
    "100% byte-identical",
    weight=3,
    seconds=60,
    cases=lambda setting: shuffled(EVERY, setting),
    attempt=attempt,
    damages={name: Damage(CASE, "not the undisturbed run's", patch) for name, patch in PATCHES.items()},
)
