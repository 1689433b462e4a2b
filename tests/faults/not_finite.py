"""Figure 6: a loss or gradient that is not finite on one rank alone: all ranks skip that step alike
(tests/faults/poison.py)."""

from __future__ import annotations

import contextlib
import shutil
from typing import Iterator
from unittest import mock

from tests.faults.figure import Attempt, Damage, Program, Setting, Tally
from tests.faults.jobs import named, parsed

ALONE = "a rank goes by its own gradients"
TAKEN = "a step is taken whatever its gradients are"
# Indented as the part of tests/faults/poison.py that they become.
PATCHES = {
    ALONE: """
    import training.step as of_steps
    agreed = of_steps.TrainStep.__call__
    def alone(self, *given, **named):
        own = self._communicator
        average = own.average
        own.average = lambda arrays: None
        try:
            return agreed(self, *given, **named)
        finally:
            own.average = average
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
    from tests.faults import poison

    # Damage comes below the recording of steps.
    patch = PATCHES.get(setting.damage, "").replace("{", "{{").replace("}", "}}")
    starter = poison._STARTER.replace(BEFORE, f"{patch}\n{BEFORE}", 1)
    assert BEFORE in poison._STARTER

    def attempt(case: str) -> Tally:
        folder = setting.work / "run"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        report = poison.attack(setting.launcher, int(parsed(case)["ranks"]), folder)
        tried = sum(map(len, report.poisons.values()))
        held = tried - len(report.faults) if report.complete else 0
        return Tally(tried, max(0, held), tuple(report.faults[:3]))

    with mock.patch.object(poison, "_STARTER", starter):
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
