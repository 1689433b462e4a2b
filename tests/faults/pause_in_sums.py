"""Figure 13: sums of known values through BytePS while a rank is stopped at random."""

from __future__ import annotations

import re

from tests.faults.figure import Damage, Parts, Program, Setting, Tally, endless, named
from tests.faults.jobs import ONE_THREAD
from tests.processes import ROOT, run_ranks

WORKER = ROOT / "tests" / "comm" / "byteps" / "race_worker.py"
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


def attempt(setting: Setting, parts: Parts) -> Tally:
    """Both of the project's ways to sum, in the same ranks, which are stopped at random."""
    kinds = {UNPROTECTED: ["name"], LEFT_OUT: ["communicator"]}.get(
        setting.damage, ["channels", "communicator"]
    )
    result = run_ranks(
        setting.patch or WORKER,
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
        return Tally.of(wrong[0], tried=sums)  # the ranks end at the first
    result.check()
    right = [kind for kind in kinds if f"{kind}: no wrong sum of {sums}\n" in result.ranks[0].stdout]
    assert right == kinds, result.describe()
    return Tally.of(tried=sums * len(kinds))


PROGRAM = Program(
    "13",
    "BytePS's race: known sums while a rank is stopped at random",
    "0 of 10,000 wrong",
    weight=0.5,
    seconds=25,
    backends=("byteps",),
    cases=endless({"rounds": ROUNDS}),
    attempt=attempt,
    damages={
        UNPROTECTED: Damage(named(rounds=300, seed=1), "in place of"),
        LEFT_OUT: Damage(named(rounds=10, seed=1), "in place of", PATCH),
    },
)
