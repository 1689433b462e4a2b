"""Figure 10: every option of every command with values that it cannot take (tests/faults/bad_values.py)."""

from __future__ import annotations

import argparse
import contextlib
import os
import random
from typing import Any, Iterator
from unittest import mock

from base.command_line import OptionParser
from tests.faults.figure import ONCE, Attempt, Damage, Program, Setting, Tally
from tests.faults.jobs import named, parsed

UNCHECKED = "values are not looked at when options are parsed"
USAGE = "a wrong option prints the usage"
ALL = named(all="parsed")
# Of one command, whose parsing does nothing else: with values unchecked, others would go on to their work.
ONE = named(command="run_pretraining_hvd.py")


def cases(setting: Setting) -> Iterator[str]:
    """All of them by the commands' own parsing, then each as a process."""
    from tests.faults.bad_values import all_cases

    yield ALL
    order = list(range(len(all_cases())))
    random.Random(setting.seed).shuffle(order)
    yield from (named(number=number) for number in order)


@contextlib.contextmanager
def opened(setting: Setting) -> Iterator[Attempt]:
    """Tries a case: one command, or all of them in this process."""
    from tests.faults import bad_values

    every = bad_values.all_cases()

    def outcome_of(case: Any, outcome: Any) -> str:
        if outcome.good:
            return ""
        lines = outcome.error.splitlines()
        said = f"{len(lines)} lines, the last: {lines[-1][:200]}" if lines else "without a word"
        return f"{case.line}: code {outcome.code} after {outcome.seconds:.2f} s, {said}"

    def parsing(case: Any) -> str:
        try:
            return outcome_of(case, bad_values.parse(case))
        except Exception as error:  # what would be a traceback
            return f"{case.line}: {type(error).__name__}: {error}"

    def attempt(case: str) -> Tally:
        parts = parsed(case)
        if "number" not in parts:
            chosen = [each for each in every if parts.get("command", each.command) == each.command]
            wrong = [text for each in chosen for text in [parsing(each)] if text]
            return Tally(len(chosen), len(chosen) - len(wrong), tuple(wrong))
        one = every[int(parts["number"])]
        return Tally.of(outcome_of(one, bad_values.run(one)))

    with contextlib.ExitStack() as stack:
        # A command that takes a bad value goes on to work, and may write files where it is.
        stack.callback(os.chdir, os.getcwd())
        os.chdir(setting.work)
        if setting.damage == UNCHECKED:
            stack.enter_context(
                mock.patch.object(argparse.ArgumentParser, "_get_value", lambda self, action, text: text)
            )
        if setting.damage == USAGE:
            stack.enter_context(mock.patch.object(OptionParser, "error", argparse.ArgumentParser.error))
        yield attempt


PROGRAM = Program(
    "10",
    "bad values of every option of every command",
    "code 2, one line, under 1 s",
    weight=0.5,
    seconds=3,
    backends=(ONCE,),
    cases=cases,
    opened=opened,
    damages={UNCHECKED: Damage(ONE, "code |TypeError"), USAGE: Damage(ONE, r"code 2 after \S+ s, \d+ lines")},
)
