"""Figure "a step": part of a run is killed at a random moment, and no more is lost than the step that had
been begun: one of the ranks that are left saves what all have (training/rescue.py). No checkpoint is due but
those at the ends of the stages, where the run also evaluates."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import time
from pathlib import Path
from typing import Iterator

from tests.faults.attack_pipelines import KILLED, RANKS, STEPS, Case, undisturbed
from tests.faults.figure import Damage, Parts, Program, Setting, Tally, endless, named
from tests.faults.jobs import LAST, NOT_RESCUED, Job, find, last_step, wait_for_step, whole
from tests.processes import Run, until
from training.pipeline.options import SCHEDULES
from training.pipeline.placement import PLACEMENTS

NEVER = 1000  # steps between checkpoints
LONGEST = 0.03  # seconds from the line of a step to the kill; a step takes about as long
BETWEEN = "between the stages"  # evaluating, saving, beginning the second: so many seconds
LONGER = 0.6
STAGES = "stages"  # any rank of a pipeline
WHO = {
    "hvd_mpi": ("0", "1", "launcher", STAGES),
    "hvd_gloo": ("0", "1"),
    "byteps": ("0", "1", "server", "scheduler"),
}


def attempt(setting: Setting, parts: Parts) -> Tally:
    """A run that is killed once and resumed."""
    draw, who, directory = random.Random(int(parts["seed"])), parts["who"], setting.folder("run")
    if who == STAGES:
        case = Case(draw.randrange(RANKS), KILLED, STEPS, 0, draw.choice(SCHEDULES), draw.choice(PLACEMENTS))
        expected, job, options, ranks = undisturbed(setting, case), Job(setting, 2), case.options, RANKS
        who = str(case.who)
    else:
        expected, job, options, ranks = whole(setting), Job(setting), {}, 2
    words = job.words(directory, ckpt_interval=NEVER, **options)
    with job.start(words, ranks) as run:
        wait_for_step(run, directory, 1)
        victim = victim_of(run, setting.launcher, who)
        between = parts["when"] == BETWEEN
        wait_for_step(run, directory, LAST // 2 if between else draw.randrange(1, LAST - 1))
        time.sleep(draw.uniform(0, LONGER if between else LONGEST))
        os.kill(victim, signal.SIGKILL)
        result = run.wait()
    logged = last_step(directory)
    resumed = job.start(words, ranks).finish()
    # Before its first step: one that began anew comes to the second stage, too.
    begin = re.split(r"stage \d, step", resumed.stdout)[0]
    found = re.search(r"(?:continuing|stage 2 begins) after step (\d+)", begin)
    if found is None or int(found[1]) < logged:
        said = "".join(rank.stderr[-500:] for rank in result.ranks)
        return Tally.of(f"step {logged} is lost: {said}{result.describe(1500)}")
    last = [f"{LAST:07d}{extension}" for extension in (".params", ".states.npz")]
    differ = [name for name in last if (directory / name).read_bytes() != (expected / name).read_bytes()]
    return Tally.of(f"not the undisturbed run's: {', '.join(differ)}" if differ else "")


def victim_of(run: Run, launcher: str, who: str) -> int:
    """Process id of who is to be killed; "launcher" is the mpirun that hosts/launch.py has started."""
    if who == "launcher":
        return until(lambda: [pid for pid in run.pids() if _name(pid) == "mpirun"], run)[0]
    return find(run, launcher, who)


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def cases(setting: Setting) -> Iterator[str]:
    """Everybody in turn, twice in the steps for once between the stages, which a pipeline does not have."""
    found = [
        {"who": who, "when": when} for when in ("steps", BETWEEN, "steps") for who in WHO[setting.backend]
    ]
    return endless(*(each for each in found if tuple(each.values()) != (STAGES, BETWEEN)))(setting)


CASE = named(who="1", when="steps", seed=1)
PROGRAM = Program(
    "a step",
    "a rank, server, scheduler, mpirun killed at random moments, no checkpoint being due",
    "100 of 100: one step lost at most, resumed to the undisturbed run's bits",
    weight=3,
    seconds=30,
    cases=cases,
    attempt=attempt,
    damages={
        "nobody saves": Damage(CASE, "is lost", NOT_RESCUED),
        "the position in the data is the step's before": Damage(
            CASE,
            "not the undisturbed run's",
            """
import training.rescue
save = training.rescue.save
def moved(place, step, parameters, states, facts):
    return save(place, step, parameters, states, {**facts, "blocks": facts["blocks"] - 1})
training.rescue.save = moved
""",
        ),
        "a step is saved in the middle of its update": Damage(
            CASE,
            "not the undisturbed run's",
            """
import training.rescue
take = training.rescue.Rescue.complete
training.rescue.Rescue.complete = lambda self, step, ended: take(self, step + 1, ended)
""",
        ),
    },
    note="mpirun killed: under hosts/launch.py; its ranks have a second left, after which PMIx ends them",
)
