"""Figure 2: every sample once an epoch, whatever the number of ranks after each kill (tests/elastic.py)."""

from __future__ import annotations

import contextlib
import random
import shutil
from typing import Iterator

from tests.reliability.figure import ONCE, Attempt, Damage, Program, Setting, Tally
from tests.reliability.jobs import named, parsed

KINDS = ("pretraining", "finetuning")
KILLS = 10
DAMAGES = {
    "a position in the data is one too far": 1,
    "a position in the data is one too early": -1,
}


def cases(setting: Setting) -> Iterator[str]:
    """Endless: runs of other data, batches and numbers of ranks each."""
    draw = random.Random(setting.seed)
    while True:
        for kind in KINDS:
            yield named(kind=kind, seed=draw.randrange(10**6))


@contextlib.contextmanager
def opened(setting: Setting) -> Iterator[Attempt]:
    """Tries a case: a run that is killed ten times and goes on with another number of ranks."""
    from tests import elastic

    def damage(position: int) -> int:
        return max(0, position + DAMAGES.get(setting.damage, 0))

    def attempt(case: str) -> Tally:
        parts = parsed(case)
        folder = setting.work / "run"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        seed = int(parts["seed"])
        if parts["kind"] == "pretraining":
            outcome = elastic.pretraining(folder, seed, KILLS, damage)
        else:
            outcome = elastic.finetuning(seed, KILLS, damage)
        return Tally.of("; ".join(outcome.errors[:3]))

    yield attempt


CASE = named(kind="pretraining", seed=3)
PROGRAM = Program(
    "2",
    "10 kills, each followed by another number of ranks (1 to 4): samples and masks of every step",
    "each sample once an epoch",
    weight=0.5,
    seconds=3,
    backends=(ONCE,),
    cases=cases,
    opened=opened,
    damages={name: Damage(CASE, "has other|samples come") for name in DAMAGES},
    note="by the feeds of all ranks, in one process",
)
