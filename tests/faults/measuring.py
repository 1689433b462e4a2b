"""The programs one after the other within a number of minutes: each has its share, and what one leaves of it
the next ones have. A case that has begun is brought to its end; none is begun that would not fit."""

from __future__ import annotations

import re
import shutil
import signal
import sys
import time
import traceback
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Callable, Mapping, NoReturn, Sequence

from tests.faults.figure import ONCE, Failure, Figure, Program, Setting, Tally, parsed

QUICK = 2.0  # seconds; figures with cases so short show only some of them
SHOWN = 5  # failures of a figure whose text is kept


@dataclass(frozen=True)
class Caught:
    """A damage and whether its figure noticed it: `said` is what the figure says of it, or why it was not
    tried."""

    number: str
    damage: str
    backend: str
    noticed: bool | None
    said: str


class Clock:
    """The time of the whole program."""

    def __init__(self, minutes: float):
        self._begin = time.monotonic()
        self._end = self._begin + 60 * minutes
        self._said = -QUICK
        self.stopped_by = 0  # the number of a signal

    @property
    def left(self) -> float:
        """Seconds."""
        return self._end - time.monotonic()

    def stop(self, number: int, frame: object) -> NoReturn:
        """Ends the command in order, as the handler of a signal: contexts end their processes, the table
        shows what there is. Where a generator that is being closed swallows the exception, the case is the
        last."""
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_IGN)
        self.stopped_by, self._end = number, 0.0
        raise SystemExit(128 + number)

    def say(self, text: str, often: bool = False) -> None:
        """Prints a line of progress, with the time left; of those that come `often` not every one."""
        if often and time.monotonic() - self._said < 2 * QUICK:
            return
        self._said = time.monotonic()
        left = max(0, round(self.left))
        print(f"[{left // 60:3d}:{left % 60:02d} left] {text}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Plan:
    """Programs with backends, one seed, the folder for all files, and the figures of earlier pieces with that
    seed, by number and backend, which are continued."""

    units: Sequence[tuple[Program, str]]
    seed: int
    folder: Path
    earlier: Mapping[tuple[str, str], Figure] = field(default_factory=dict)

    def setting(self, program: Program, backend: str, damage: str = "") -> Setting:
        """The setting of a program, with a new folder."""
        name = f"{program.number}-{backend}{'-damaged' if damage else ''}"
        work = self.folder / name
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        shared = self.folder / "shared"
        shared.mkdir(exist_ok=True)
        patch = program.damages[damage].patch if damage else ""
        return Setting(backend, self.seed, work, shared, damage, patch)


def units_of(programs: Sequence[Program], backends: Sequence[str]) -> list[tuple[Program, str]]:
    """Every program with each of `backends` that it is about; those that are about none, once."""
    return [
        (program, backend)
        for program in programs
        for backend in program.backends
        if backend == ONCE or backend in backends
    ]


def measure(plan: Plan, clock: Clock, keep: Callable[[Figure], None]) -> None:
    """Measures each unit of the plan; `keep` receives the figure as it stands, also when this is
    interrupted."""
    for index, (program, backend) in enumerate(plan.units):
        rest = sum(each.weight for each, _ in plan.units[index:])
        left = clock.left
        figure = plan.earlier.get((program.number, backend))
        if left < program.seconds:
            note = f"not tried: a case takes about {program.seconds:g} s"
            keep(figure or program.empty(backend, note))
            continue
        end = time.monotonic() + max(left * program.weight / rest, program.seconds)
        setting = plan.setting(program, backend)
        figure = replace(figure or program.empty(backend), note=program.note)
        took: list[float] = []
        try:
            for case in islice(program.cases(setting), figure.cases, None):
                if clock.stopped_by:
                    break
                # The first one also makes what all of them need.
                if took and time.monotonic() + max(took[1:] or [min(took[0], program.seconds)]) > end:
                    break
                begin = time.monotonic()
                figure = added(figure, program, setting, case, tally_of(program, setting, case))
                took.append(time.monotonic() - begin)
                keep(figure)
                clock.say(
                    f"{program.number} {backend}: {figure.held} of {figure.tried} held; last {case}"
                    f" in {took[-1]:.1f} s",
                    often=took[-1] < QUICK,
                )
        except Exception:  # the program itself: the others shall go on
            figure = added(figure, program, setting, "", Tally.of(traceback.format_exc()))
        finally:
            keep(figure)
            shutil.rmtree(setting.work, ignore_errors=True)


def tally_of(program: Program, setting: Setting, case: str) -> Tally:
    """Tries a case; what it raises is its failure."""
    try:
        return program.attempt(setting, parsed(case))
    except AssertionError as error:
        return Tally.of(str(error) or traceback.format_exc())
    except Exception:
        return Tally.of(traceback.format_exc())


def added(figure: Figure, program: Program, setting: Setting, case: str, tally: Tally) -> Figure:
    """The figure with one more case."""
    failures = figure.failures
    for what in tally.failures:
        print(f"FAILED {program.number} {setting.backend} {case}\n{what}", file=sys.stderr, flush=True)
        failures += (Failure(f"{case}: {shortened(what)}", command(program, setting, case)),)
    return replace(
        figure,
        tried=figure.tried + tally.tried,
        held=figure.held + tally.held,
        failures=failures[:SHOWN],
        measured=(*figure.measured, *filter(None, [tally.measured])),
        cases=figure.cases + bool(case),
    )


def command(program: Program, setting: Setting, case: str) -> str:
    """The command that tries a case again."""
    backend = "" if setting.backend == ONCE else f" --backends {setting.backend}"
    which = f" --case '{case}'" if case else ""
    return f"python -m tests.faults --figures {program.number}{backend} --seed {setting.seed}{which}"


def shortened(text: str, limit: int = 300) -> str:
    """The text in one line, its beginning and its end."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit // 3]} […] {line[-2 * limit // 3 :]}"


def try_damages(plan: Plan, clock: Clock, keep: Callable[[Caught], None]) -> None:
    """Breaks what each figure is about, once for each damage, and looks whether the figure notices."""
    for program, backend in plan.units:
        for name, damage in program.damages.items():
            if damage.backends and backend not in damage.backends:
                continue
            if clock.left < program.seconds:
                keep(Caught(program.number, name, backend, None, "not tried: no time left"))
                continue
            setting = plan.setting(program, backend, name)
            try:
                with damage.broken():
                    said = "; ".join(tally_of(program, setting, damage.case).failures)
            finally:
                shutil.rmtree(setting.work, ignore_errors=True)
            caught = bool(re.search(damage.noticed, said))
            found = re.search(f".*?({damage.noticed}).*", said)
            shown = shortened(found[0] if found else said or "nothing", 160)
            keep(Caught(program.number, name, backend, caught, shown))
            clock.say(f"{program.number} {backend}: {name}: {'caught' if caught else 'NOT CAUGHT'}: {shown}")
