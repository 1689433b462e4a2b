"""Figure 11: ranks that are about to do different things are rejected (tests/faults/disagree.py)."""

from __future__ import annotations

import contextlib
import random
from typing import Iterator
from unittest import mock

from tests.faults.figure import Attempt, Damage, Program, Setting, Tally
from tests.faults.jobs import corpus, named, parsed

NOT_COMPARED = "the ranks do not compare what they are about to do"
CONTENT = "of vocabularies and data only the names are compared"
COMPARED = {
    NOT_COMPARED: "None",
    CONTENT: "agree({name: each for name, each in given[0].items() if name.startswith('--')}, *given[1:])",
}
PATCH = """
import base.threads
_set_threads = base.threads.set_threads
def _set_and_damage(*given):
    chosen = _set_threads(*given)
    import training.agreement, training.run, training.train, training.inputs
    agree = training.agreement.agree
    for module in (training.agreement, training.run, training.train, training.inputs):
        if hasattr(module, "agree"):
            module.agree = lambda *given, **named: COMPARED
    return chosen
base.threads.set_threads = _set_and_damage
"""
RUNPY = "runpy.run_path("


def cases(setting: Setting) -> Iterator[str]:
    """Every kind of disagreement, of either rank."""
    from tests.faults.disagree import kinds, make_files

    text = corpus(setting)
    files = make_files(setting.work / "names", text / "corpus" / "eval.txt", text / "vocab.txt")
    every = [named(differs=rank, kind=kind) for kind in kinds(files) for rank in (1, 0)]
    random.Random(setting.seed).shuffle(every)
    return iter(every)


@contextlib.contextmanager
def opened(setting: Setting) -> Iterator[Attempt]:
    """Tries a case: a run of two ranks, of which one differs."""
    from tests.faults import disagree

    text = corpus(setting)
    files = disagree.make_files(setting.work / "files", text / "corpus" / "eval.txt", text / "vocab.txt")
    starter = disagree._STARTER
    if setting.damage:
        patch = PATCH.strip().replace("COMPARED", COMPARED[setting.damage])
        starter = starter.replace(RUNPY, f"{patch}\n{RUNPY}".replace("{", "{{").replace("}", "}}"), 1)

    def attempt(case: str) -> Tally:
        parts = parsed(case)
        outcome = disagree.attack(setting.launcher, files, parts["kind"], int(parts["differs"]))
        return Tally.of(outcome.fault and f"{outcome.fault}: {outcome.message}")

    with mock.patch.object(disagree, "_STARTER", starter):
        yield attempt


CASE = named(differs=1, kind="lr")
UNNOTICED = "it trained|nobody says|it saved|had to be ended"
PROGRAM = Program(
    "11",
    "ranks that disagree: options, data, vocabulary, code, versions",
    "rejected with 2, naming what differs and where",
    weight=0.7,
    seconds=15,
    cases=cases,
    opened=opened,
    damages={
        NOT_COMPARED: Damage(CASE, UNNOTICED),
        CONTENT: Damage(named(differs=1, kind="shuffled vocabulary"), UNNOTICED),
    },
)
