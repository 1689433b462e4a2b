"""A figure of reliability, the program that measures it, and the deliberate damage that it must notice."""

from __future__ import annotations

import contextlib
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, ContextManager, Iterable, Iterator, Mapping, Sequence

BACKENDS = {"hvd_mpi": "Horovod over MPI", "hvd_gloo": "Horovod over Gloo", "byteps": "BytePS"}
LAUNCHERS = {"hvd_mpi": "mpirun", "hvd_gloo": "gloo", "byteps": "byteps"}  # of tests/processes.py
ONCE = "any"  # in place of a backend: the figure is the same with all of them


@dataclass(frozen=True)
class Failure:
    """A case that did not hold: what happened, and the command that tries it again."""

    what: str
    command: str


@dataclass(frozen=True)
class Figure:
    """A figure for one backend, or for all of them (`ONCE`): how often it was tried, and how often it held.
    `note` says what must be known to read the numbers, `measured` has numbers of its own. `cases`: those of
    the seed's order that were tried; the next piece goes on behind them."""

    number: str
    name: str
    goal: str
    backend: str
    tried: int = 0
    held: int = 0
    failures: tuple[Failure, ...] = ()
    note: str = ""
    measured: tuple[str, ...] = ()
    cases: int = 0

    @property
    def holds(self) -> bool:
        """Whether it was tried and never failed."""
        return self.tried > 0 and self.held == self.tried and not self.failures


@dataclass(frozen=True)
class Tally:
    """Outcome of a case: how many things it tried, how many held, and a text for each that did not.
    `measured`: what it found out besides, for people."""

    tried: int = 1
    held: int = 1
    failures: tuple[str, ...] = ()
    measured: str = ""

    @classmethod
    def of(cls, *texts: str, tried: int = 1, measured: str = "") -> Tally:
        """So many things, each text that is not empty being of one that did not hold."""
        failures = tuple(filter(None, texts))
        return cls(tried, tried - min(tried, len(failures)), failures, measured)


@dataclass(frozen=True)
class Setting:
    """Surroundings of a figure's cases.

    `work`: an empty folder of the figure. `shared`: a folder for what several figures use, kept until the end
    of the command. `damage`: the name of a deliberate one, empty for none; `patch`: its Python, that is run
    in each rank before the script's own work. `calm`: the machine does nothing else, so that seconds mean
    something."""

    backend: str
    seed: int
    work: Path
    shared: Path
    damage: str = ""
    patch: str = ""
    calm: bool = True

    @property
    def launcher(self) -> str:
        return LAUNCHERS[self.backend]

    def folder(self, name: str) -> Path:
        """A folder in `work`, empty again."""
        folder = self.work / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder


Parts = Mapping[str, str]  # of a case's name, `name=value,name=value`, which holds all that is random in it


@dataclass(frozen=True)
class Damage:
    """Something that is broken deliberately, the case that has to notice it, and a regular expression for
    what is said then. `patch`: Python that breaks it, in each rank; `broken`: a context in which it is,
    elsewhere. `backends`: those with which it can be tried; empty for all."""

    case: str
    noticed: str
    patch: str = ""
    broken: Callable[[], ContextManager[Any]] = contextlib.nullcontext
    backends: tuple[str, ...] = ()


@dataclass(frozen=True)
class Program:
    """The program of a figure.

    `cases`: names of cases in the order of a setting's seed; endless if it likes. `attempt`: tries one.
    `weight`: its share of the time, relative to the other programs'. `seconds`: what a case takes on two
    cores, roughly. `damages`: by name. `by_hand`: tried only where it is named."""

    number: str
    name: str
    goal: str
    cases: Callable[[Setting], Iterable[str]]
    attempt: Callable[[Setting, Parts], Tally]
    weight: float = 1.0
    seconds: float = 30.0
    backends: Sequence[str] = tuple(BACKENDS)
    damages: Mapping[str, Damage] = field(default_factory=dict)
    note: str = ""
    by_hand: bool = False

    def empty(self, backend: str, note: str = "") -> Figure:
        """The figure before anything was tried."""
        return Figure(self.number, self.name, self.goal, backend, note=note or self.note)


def parsed(case: str) -> Parts:
    """The parts of a case's name."""
    return dict(part.split("=", 1) for part in case.split(","))


def named(**parts: Any) -> str:
    """A case's name."""
    return ",".join(f"{name}={value}" for name, value in parts.items())


def endless(*cases: Mapping[str, Any]) -> Callable[[Setting], Iterator[str]]:
    """Cases in turns, with another seed each."""

    def drawn(setting: Setting) -> Iterator[str]:
        draw = random.Random(setting.seed)
        while True:
            for each in cases:
                yield named(**each, seed=draw.randrange(10**6))

    return drawn


def shuffled(cases: Iterable[str], setting: Setting) -> list[str]:
    """Cases, once each, in an order by the setting's seed."""
    every = list(cases)
    random.Random(setting.seed).shuffle(every)
    return every
