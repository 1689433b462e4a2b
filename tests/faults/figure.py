"""A figure of reliability, the program that measures it, and the deliberate damage that it must notice."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, ContextManager, Iterator, Mapping, Sequence

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
    `note` says what must be known to read the numbers."""

    number: str
    name: str
    goal: str
    backend: str
    tried: int = 0
    held: int = 0
    failures: tuple[Failure, ...] = ()
    note: str = ""

    @property
    def holds(self) -> bool:
        """Whether it was tried and never failed."""
        return self.tried > 0 and self.held == self.tried and not self.failures


@dataclass(frozen=True)
class Tally:
    """Outcome of a case: how many things it tried, how many held, and a text for each that did not."""

    tried: int = 1
    held: int = 1
    failures: tuple[str, ...] = ()

    @classmethod
    def of(cls, failure: str) -> Tally:
        """One thing that was tried; it held if there is no text."""
        return cls(1, 0, (failure,)) if failure else cls()


@dataclass(frozen=True)
class Setting:
    """Surroundings of a figure's cases.

    `work`: an empty folder of the figure. `shared`: a folder for what several figures use, kept until the end
    of the command. `seconds`: the time that is left for the figure. `damage`: the name of a deliberate one,
    empty for none."""

    backend: str
    seed: int
    work: Path
    shared: Path
    seconds: float
    damage: str = ""

    @property
    def launcher(self) -> str:
        return LAUNCHERS[self.backend]


Attempt = Callable[[str], Tally]  # one case, by its name, which holds all that is random in it


@dataclass(frozen=True)
class Damage:
    """Something that is broken deliberately, the case that has to notice it, and a regular expression for
    what is said then. `backends`: those with which it can be tried; empty for all."""

    case: str
    noticed: str
    backends: tuple[str, ...] = ()


@dataclass(frozen=True)
class Program:
    """The program of a figure.

    `weight`: its share of the time, relative to the other programs'. `seconds`: what a case takes on two
    cores, roughly. `cases`: names of cases in the order of a setting's seed; endless if it likes. `opened`: a
    context with the function that tries one. `damages`: by name."""

    number: str
    name: str
    goal: str
    cases: Callable[[Setting], Iterator[str]]
    opened: Callable[[Setting], ContextManager[Attempt]]
    weight: float = 1.0
    seconds: float = 30.0
    backends: Sequence[str] = tuple(BACKENDS)
    damages: Mapping[str, Damage] = field(default_factory=dict)
    note: str = ""

    def empty(self, backend: str, note: str = "") -> Figure:
        """The figure before anything was tried."""
        return Figure(self.number, self.name, self.goal, backend, note=note or self.note)
