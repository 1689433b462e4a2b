"""Memory of a run over many steps (tests/faults/memory.py): no process of it grows."""

from __future__ import annotations

import contextlib
import shutil
from typing import Iterator
from unittest import mock

from tests.faults.figure import Attempt, Damage, Program, Setting, Tally
from tests.faults.jobs import SCRIPTS, corpus, named, parsed, patched
from tests.processes import ROOT

STEPS = 20_000
LEAK = "a step leaves 2 KB"
PATCH = """
import training.step
kept = []
call = training.step.TrainStep.__call__
def leaking(self, *given, **named):
    kept.append(bytearray(2048))
    kept[-1][::64] = bytes([1]) * 32
    return call(self, *given, **named)
training.step.TrainStep.__call__ = leaking
"""


def cases(setting: Setting) -> Iterator[str]:
    """One run."""
    return iter([named(steps=STEPS)])


@contextlib.contextmanager
def opened(setting: Setting) -> Iterator[Attempt]:
    """Tries a case: a run, each of whose processes is one thing that is tried."""
    from tests.faults import memory

    backend = setting.backend.partition("_")[0]
    script = ROOT / SCRIPTS[backend]
    if setting.damage:
        target = setting.work / script.name
        target.write_text(patched(script, PATCH), encoding="utf-8")
        script = target

    def attempt(case: str) -> Tally:
        work = setting.work / "run"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        slopes = memory.of_a_run(backend, int(parsed(case)["steps"]), corpus(setting), work)
        assert slopes, "no process was measured"
        growing = [str(each) for each in slopes if each.grows]
        return Tally(len(slopes), len(slopes) - len(growing), tuple(growing))

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(memory.LAUNCHERS, {backend: setting.launcher}))
        stack.enter_context(mock.patch.dict(memory.SCRIPTS, {backend: str(script)}))
        yield attempt


PROGRAM = Program(
    "memory",
    "memory of each process of a run over 20,000 steps",
    "flat: under 64 bytes a step",
    weight=2,
    seconds=400,
    cases=cases,
    opened=opened,
    damages={LEAK: Damage(named(steps=2000), "bytes a step")},
)
