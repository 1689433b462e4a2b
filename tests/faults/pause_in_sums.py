"""Figure 13: sums of known values through BytePS while a rank is stopped at random."""

from __future__ import annotations

import contextlib
import random
import re
from typing import Iterator

from tests.faults.figure import Attempt, Damage, Program, Setting, Tally
from tests.faults.jobs import ONE_THREAD, named, parsed
from tests.processes import ROOT, run_ranks

WORKER = ROOT / "tests" / "comm" / "race_worker.py"
ROUNDS = 60
TENSORS = 8  # in each round, of the worker's own sizes
UNPROTECTED = "the sums of a tensor all have one name, as BytePS's own trainer has it"
LEFT_OUT = "the last tensor of a step is not summed"
PATCH = f"""
import runpy, sys
from comm.byteps.communicator import BytePSCommunicator
average = BytePSCommunicator.average
BytePSCommunicator.average = lambda self, arrays: average(self, arrays[:-1])
sys.argv[0] = {str(WORKER)!r}
runpy.run_path({str(WORKER)!r}, run_name="__main__")
"""


def cases(setting: Setting) -> Iterator[str]:
    """Launches with other moments of stopping each."""
    draw = random.Random(setting.seed)
    while True:
        yield named(rounds=ROUNDS, seed=draw.randrange(10**6))


@contextlib.contextmanager
def opened(setting: Setting) -> Iterator[Attempt]:
    """Tries a case: both of the project's ways to sum, in the same ranks."""
    kinds = {UNPROTECTED: ["name"], LEFT_OUT: ["communicator"]}.get(
        setting.damage, ["channels", "communicator"]
    )

    def attempt(case: str) -> Tally:
        parts = parsed(case)
        result = run_ranks(
            PATCH if setting.damage == LEFT_OUT else WORKER,
            2,
            "byteps",
            timeout=200,
            args=["--seed", parts["seed"], parts["rounds"], *kinds],
            env=ONE_THREAD,
            grace=10,
        )
        sums = int(parts["rounds"]) * TENSORS
        wrong = [line for rank in result.ranks for line in re.findall(r".* in place of .*", rank.stdout)]
        if wrong:
            return Tally(sums, sums - 1, tuple(wrong[:1]))  # the ranks end at the first
        result.check()
        right = [kind for kind in kinds if f"{kind}: no wrong sum of {sums}\n" in result.ranks[0].stdout]
        assert right == kinds, result.describe()
        return Tally(sums * len(kinds), sums * len(kinds))

    yield attempt


PROGRAM = Program(
    "13",
    "BytePS's race: known sums while a rank is stopped at random",
    "0 of 10,000 wrong",
    weight=0.5,
    seconds=25,
    backends=("byteps",),
    cases=cases,
    opened=opened,
    damages={
        UNPROTECTED: Damage(named(rounds=300, seed=1), "in place of"),
        LEFT_OUT: Damage(named(rounds=10, seed=1), "in place of"),
    },
)
