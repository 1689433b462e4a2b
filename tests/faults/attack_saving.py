"""Figures 3 and 9: kills and failing writes at every moment of saving (tests/faults/kill_saving.py)."""

from __future__ import annotations

import contextlib
import random
import shutil
from typing import Iterator

from tests.faults.figure import ONCE, Attempt, Damage, Program, Setting, Tally
from tests.faults.jobs import named, parsed

KILLS = 50  # of a case
DAMAGES = {  # of tests/faults/kill_saving.py
    "files are written under their own names": "careless",
    "older checkpoints are deleted before the new one is there": "hasty",
}


def cases_of_kills(setting: Setting) -> Iterator[str]:
    """Endless: kills at other moments each."""
    draw = random.Random(setting.seed)
    while True:
        yield named(kills=KILLS, seed=draw.randrange(10**6))


def cases_of_disks(setting: Setting) -> Iterator[str]:
    """All writes with all ways to fail, once: of checkpoints, and of whole commands."""
    return iter([named(disks="all"), named(commands="all")])


@contextlib.contextmanager
def opened(setting: Setting) -> Iterator[Attempt]:
    """Tries a case, in a process of its own."""
    from tests.faults import fill_disk, kill_saving

    def attempt(case: str) -> Tally:
        parts = parsed(case)
        work = setting.work / "saving"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        if "commands" in parts:
            outcome = fill_disk.run(work)
            return Tally(outcome.tried, outcome.held, tuple(outcome.failures[:3]))
        words = ["--number", parts["kills"], "--seed", parts["seed"]] if "kills" in parts else []
        more = ["--damage", DAMAGES[setting.damage]] if setting.damage else []
        outcome = kill_saving.run("kills" if words else "disks", work, *words, *more)
        return Tally(outcome.tried, outcome.held, tuple(outcome.failures[:3]))

    yield attempt


KILLED = Program(
    "3",
    "SIGKILL at random moments while checkpoints are saved",
    "500 of 500: no half file loaded, at most one checkpoint lost",
    weight=0.3,
    seconds=15,
    backends=(ONCE,),
    cases=cases_of_kills,
    opened=opened,
    damages={name: Damage(named(kills=20, seed=1), "step") for name in DAMAGES},
)
DISKS = Program(
    "9",
    "disk full, read-only, over a limit, at each write of a run, and of commands that prepare",
    "a clear error, the last checkpoint whole",
    weight=0.2,
    seconds=60,
    backends=(ONCE,),
    cases=cases_of_disks,
    opened=opened,
    damages={name: Damage(named(disks="all"), "Error|left|saved|step") for name in DAMAGES},
)
