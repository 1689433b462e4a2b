"""Figure 10: every option of every command with values that it cannot take: one line, exit code 2, at once.

`all_cases` lists them from the commands' own parsers, so that an option which is added is attacked too.
`parse` tries a case in this process, by the command's own parsing; `run` starts the command.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import time
from functools import partial
from typing import Any, Callable, Iterator, NamedTuple
from unittest import mock

import convert
import finetune_classifier
import finetune_squad
import hparams
import predict
import results
import score as score_pairs
from base.command_line import OptionParser
from base.errors import InputError
from bench import finetune, gpu, latency, loader, pretraining, questions, startup, step, tokenize_text
from comparison.backends import BACKENDS
from comparison.options import parse_options as parse_comparison
from data import build_corpus, convert_npz, embedded, inspect, prepare, train_vocab
from data.classification import embedded as embedded_pairs
from data.questions import cloze, score
from hosts import check, kubernetes, launch, pod, sagemaker, slurm
from tests.faults.figure import ONCE, Damage, Parts, Program, Setting, Tally, named, shuffled
from tests.processes import ROOT, run_command
from training import profile
from training.finetuning.options import parse as parse_finetuning
from training.options import parse_options

LONG, DIGITS = 5_000, "9" * 26
_UNKNOWN = "--no_such_option"


class Case(NamedTuple):
    """An option with a value that it cannot take. `line`: as it would be typed."""

    command: str
    option: str
    value: str

    @property
    def line(self) -> str:
        shown = self.value if len(self.value) < 60 else f"{self.value[:20]}... ({len(self.value)})"
        return f"{self.command} {self.option}={shown!r}"


class Outcome(NamedTuple):
    """The exit code, what was written to standard error, and seconds: of CPU time of a process, of the clock
    otherwise."""

    option: str
    code: int | None
    error: str
    seconds: float

    @property
    def good(self) -> bool:
        """Exit code 2, one line that names the option, under a second."""
        one_line = len(self.error.splitlines()) == 1 and self.option in self.error
        return self.code == 2 and one_line and self.seconds < 1


# Scripts, and modules for `python -m`, by name: each with what parses its options in this process.
COMMANDS: dict[str, Callable[[list[str]], Any]] = {
    "run_pretraining_hvd.py": partial(parse_options, description=""),
    "run_pretraining_byteps.py": partial(parse_options, description=""),
    "finetune_squad.py": partial(parse_finetuning, finetune_squad.SCRIPT),
    "finetune_classifier.py": partial(parse_finetuning, finetune_classifier.SCRIPT),
    "compare.py": partial(parse_comparison, backends=BACKENDS),
    "hparams.py": hparams.main,
    "convert.py": convert.parse,
    "predict.py": predict.parse,
    "score.py": score_pairs.parse,
    "results.py": results.parse_options,
    "hosts/launch.py": launch.main,
    "hosts/slurm.py": slurm.main,
    "hosts/kubernetes.py": kubernetes.main,
    "hosts/sagemaker.py": sagemaker.main,
    "hosts/check.py": check.main,
    "data.prepare": prepare.parse,
    **{
        module.__name__: module.main
        for module in (
            *(pod, build_corpus, train_vocab, inspect, embedded, convert_npz, cloze, score, embedded_pairs),
            *(profile, step, latency, loader, tokenize_text, questions, finetune, gpu, pretraining, startup),
        )
    },
}


def all_cases() -> list[Case]:
    """Each option that takes a value, of each command, with each value that is bad for its kind."""
    return [
        Case(name, action.option_strings[0], value)
        for name, command in COMMANDS.items()
        for action in options_of(command)
        for value in bad_values(action)
    ]


def options_of(command: Callable[[list[str]], Any]) -> list[argparse.Action]:
    """Options of a command that take a value, from the parser that it makes."""
    made: list[argparse.ArgumentParser] = []
    original = argparse.ArgumentParser.parse_known_args

    def noting(self: argparse.ArgumentParser, *words: Any, **keywords: Any) -> Any:
        made.append(self)
        return original(self, *words, **keywords)

    with mock.patch.object(argparse.ArgumentParser, "parse_known_args", noting):
        _attempt(command, [_UNKNOWN])
    found: dict[str, argparse.Action] = {}
    # The longest first: others may read one of its options in advance, as text.
    for parser in sorted(made, key=lambda parser: -len(parser._actions)):
        assert isinstance(parser, OptionParser)
        for action in parser._actions:
            if action.option_strings and action.nargs != 0:
                found.setdefault(action.option_strings[0], action)
    return list(found.values())


def bad_values(action: argparse.Action) -> Iterator[str]:
    """Values that no option of this kind takes. argparse itself drops the second."""
    yield from ("", "--")
    if action.choices is not None:
        yield "nonsense"
    elif _takes(action, "x"):  # a name or a path
        yield "x" * (LONG if not _takes(action, "x" * LONG) else 70_000)
    else:
        yield from ("x", "nan", "-inf", "1e999", "9" * 60, "-" + "9" * 60, "0x10", "1;2", "1_0", "\u0663")
        if not _takes(action, "0.5"):
            yield DIGITS


def parse(case: Case) -> Outcome:
    """The case in this process. A command that takes the value and goes on to work is not stopped."""
    return _attempt(COMMANDS[case.command], [f"{case.option}={case.value}"], case.option)


def run(case: Case) -> Outcome:
    """The case as a command of its own; its seconds are the CPU time of the process and what it started."""
    before = sum(os.times()[2:4])
    name = [case.command] if case.command.endswith(".py") else ["-m", case.command]
    result = run_command([sys.executable, *name, f"{case.option}={case.value}"], cwd=ROOT)
    return Outcome(case.option, result.returncode, result.stderr, sum(os.times()[2:4]) - before)


def _takes(action: argparse.Action, text: str) -> bool:
    if action.type is None:
        return len(text) <= LONG
    assert callable(action.type)
    try:
        action.type(text)
    except (ValueError, TypeError, argparse.ArgumentTypeError):
        return False
    return True


def _attempt(command: Callable[[list[str]], Any], words: list[str], option: str = "") -> Outcome:
    begun, code = time.process_time(), None
    error, output = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with contextlib.redirect_stderr(error), contextlib.redirect_stdout(output):
        try:
            found = command(words)
            code = found if isinstance(found, int) else None
        except InputError as bad:
            code = 2
            print(f"error: {bad}", file=sys.stderr)
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 1
    return Outcome(option, code, error.buffer.getvalue().decode("utf-8"), time.process_time() - begun)


# --- The figure.


def cases(setting: Setting) -> Iterator[str]:
    """All of them by the commands' own parsing, then each as a process."""
    yield named(all="parsed")
    yield from shuffled((named(number=number) for number in range(len(all_cases()))), setting)


def attempt(setting: Setting, parts: Parts) -> Tally:
    """One command as a process, or all of them, or those of one command, in this process."""
    every = all_cases()
    if "number" in parts:
        return Tally.of(_fault(every[int(parts["number"])], run))
    chosen = [each for each in every if parts.get("command", each.command) == each.command]
    before = os.getcwd()
    os.chdir(setting.work)  # a command that takes a bad value goes on to work, and may write files
    try:
        return Tally.of(*(_fault(each, parse) for each in chosen), tried=len(chosen))
    finally:
        os.chdir(before)


def _fault(case: Case, try_it: Callable[[Case], Outcome]) -> str:
    try:
        outcome = try_it(case)
    except Exception as error:  # what would be a traceback
        return f"{case.line}: {type(error).__name__}: {error}"
    if outcome.good:
        return ""
    lines = outcome.error.splitlines()
    said = f"{len(lines)} lines, the last: {lines[-1][:200]}" if lines else "without a word"
    return f"{case.line}: code {outcome.code} after {outcome.seconds:.2f} s, {said}"


# Of one command, whose parsing does nothing else: with values unchecked, others would go on to their work.
ONE = named(command="run_pretraining_hvd.py")
PROGRAM = Program(
    "10",
    "bad values of every option of every command",
    "code 2, one line, under 1 s",
    weight=0.5,
    seconds=3,
    backends=(ONCE,),
    cases=cases,
    attempt=attempt,
    damages={
        "values are not looked at when options are parsed": Damage(
            ONE,
            "code |TypeError",
            broken=lambda: mock.patch.object(
                argparse.ArgumentParser, "_get_value", lambda self, action, text: text
            ),
        ),
        "a wrong option prints the usage": Damage(
            ONE,
            r"code 2 after \S+ s, \d+ lines",
            broken=lambda: mock.patch.object(OptionParser, "error", argparse.ArgumentParser.error),
        ),
    },
)
