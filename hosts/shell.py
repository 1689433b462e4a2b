"""Jobs and hosts as data, and their commands as text for a shell. Standard library only."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Iterable, Mapping, Sequence, Union

from hosts.addresses import is_here
from hosts.networks import Network

VENV = ".venv/bin"  # in the folder in which the command is pasted
NEXT, DEEPER = " \\\n    ", " \\\n        "


@dataclass(frozen=True)
class Required:
    """A value that the user must set in a variable; where it is unset, the shell stops with `reason`.

    The value reaches the program unchanged: the shell expands no globs in it.
    """

    variable: str
    reason: str


Word = Union[str, Required]


@dataclass(frozen=True)
class Job:
    """A script to start on every rank, with its options."""

    title: str
    comment: tuple[str, ...]  # lines; the first continues the title
    script: str
    options: tuple[tuple[Word, ...], ...]  # in lines

    def header(self) -> str:
        """Title and comment as lines of shell comment."""
        first, *more = self.comment
        return "\n".join([f"# {self.title}: {first}", *(f"# {line}" for line in more)])


@dataclass(frozen=True)
class Machine:
    """Facts of this machine on which a command that is pasted here depends.

    `root`: commands are typed by the superuser. `gpus`: there are NVIDIA devices. `venv`: the working
    directory has the environment of `make setup`.
    """

    root: bool
    gpus: bool
    venv: bool


@dataclass(frozen=True)
class Cluster:
    """Hosts to start a job on.

    `hosts`: names and slots, a line of the host file each or merged by host, as the launcher needs them.
    `sockets`: CPU sockets of a host, None: by the number of slots. `interface`: the network interface between
    hosts, None: by the launcher's rule. `machine`: this machine, where all hosts are; None where another host
    is among them, of which nothing is known. `network`: what --network chooses, None: the libraries choose.
    """

    hostfile: str
    hosts: tuple[tuple[str, int], ...]
    sockets: int | None = None
    interface: str | None = None
    machine: Machine | None = None
    network: Network | None = None

    @property
    def python(self) -> str:
        """The interpreter's word in a command."""
        return f"{VENV}/python" if self.machine and self.machine.venv else "python"


def this_machine(hosts: Iterable[tuple[str, int]]) -> Machine | None:
    """Facts of this machine if all `hosts` (name and slots) are this machine, else None."""
    if not all(is_here(name) for name, _ in hosts):
        return None
    gpus = any(Path("/dev").glob("nvidia[0-9]*"))
    return Machine(os.geteuid() == 0, gpus, os.access(f"{VENV}/python", os.X_OK))


def quote(word: str) -> str:
    """`shlex.quote`, except that the caret of ^openib, which is plain text to sh and bash, stays bare."""
    return word if re.fullmatch(r"[\w@%+=:,./^-]+", word, re.ASCII) else shlex.quote(word)


def text_of(word: Word) -> str:
    """A word as text for one shell."""
    if isinstance(word, Required):
        return f'"${{{word.variable}:?{word.reason}}}"'
    return quote(word)


def text_for_two_shells(word: Word) -> str:
    """A word as text for a shell that passes it to a second one, where the variables are exported."""
    if isinstance(word, Required):
        return f"'\"${word.variable}\"'"
    return quote(text_of(word))


def assignments(environment: Mapping[str, Word]) -> list[str]:
    """NAME=VALUE for each variable, as text for a shell."""
    return [f"{name}={text_of(value)}" for name, value in environment.items()]


def texts(lines: Sequence[Sequence[Word]], text_of: Callable[[Word], str] = text_of) -> list[str]:
    """Lines of a command's words as lines of text; empty lines are left out."""
    return [" ".join(map(text_of, line)) for line in lines if line]


def command_text(lines: Sequence[str], options: Sequence[str]) -> str:
    """One command over several lines: `options`, of the script that `lines` end with, are indented deeper."""
    return NEXT.join(lines) + "".join(f"{DEEPER}{line}" for line in options)
