"""The facts of this machine that a command to be pasted here depends on. Standard library only."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Iterable, NamedTuple

from hosts.addresses import is_here

VENV = ".venv/bin"  # in the folder in which the command is pasted


class Machine(NamedTuple):
    """`root`: commands are typed by the superuser. `gpus`: there are NVIDIA's devices. `venv`: the working
    directory has the environment of `make setup`."""

    root: bool
    gpus: bool
    venv: bool

    @property
    def python(self) -> str:
        """The interpreter's word in a command."""
        return f"{VENV}/python" if self.venv else "python"


def this_machine(hosts: Iterable[tuple[str, int]]) -> Machine | None:
    """What is known of the machine that all `hosts` (name and slots) are; None where another is among them,
    of which nothing is known here."""
    if not all(is_here(name) for name, _ in hosts):
        return None
    gpus = any(Path("/dev").glob("nvidia[0-9]*"))
    return Machine(os.geteuid() == 0, gpus, os.access(f"{VENV}/python", os.X_OK))
