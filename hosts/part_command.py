"""How a part is started on its host: the words of the command and its environment. Standard library only."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Mapping, Sequence

from hosts.hostfile import HostsError
from hosts.parts import DECIDED, Part, python_of

SUPERVISE = str(Path(__file__).resolve().with_name("supervise.py"))
# BatchMode: fail instead of asking for a password. ServerAlive: a host that is gone is noticed within 45 s.
SSH_OPTIONS = (
    *("-o", "BatchMode=yes", "-o", "ConnectTimeout=30"),
    *("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=3"),
)
PASSED_ON = re.compile(
    r"(DMLC|BYTEPS|MXNET|NCCL|PS)_\w+|OMP_NUM_THREADS|PYTHONUNBUFFERED|PATH|PYTHONPATH|LD_LIBRARY_PATH"
)


@dataclass(frozen=True)
class Access:
    """How to reach the hosts.

    `ssh`: the remote shell's words, without a host. `here`: the hosts that are this machine. `directory`: the
    working directory, on every host. `environ`: the launcher's own variables. `extra`: what --env adds to
    them.
    """

    ssh: tuple[str, ...]
    here: frozenset[str]
    directory: str
    environ: Mapping[str, str]
    extra: Mapping[str, str]

    def environment(self, part: Part) -> dict[str, str]:
        """All variables of a local part; for a remote one, those that are sent along."""
        inherited = {name: value for name, value in self.environ.items() if name not in DECIDED}
        if part.host not in self.here:
            inherited = {name: value for name, value in inherited.items() if PASSED_ON.fullmatch(name)}
        return {**inherited, **self.extra, **part.environment}

    def start(self, part: Part, supervision: Sequence[str]) -> tuple[list[str], dict[str, str] | None]:
        """Command and environment (None: this process's own) that start a part under hosts/supervise.py.

        `supervision`: its options."""
        # -I -S: it needs nothing but the standard library, and starts in half the time.
        supervise = [python_of(part.command), "-I", "-S", SUPERVISE, *supervision, "--", *part.command]
        if part.host in self.here:
            return supervise, self.environment(part)
        return self._remote(part, supervise), None

    def by_hand(self, part: Part) -> str:
        """The same as text for a shell, without the supervision."""
        if part.host not in self.here:
            return shlex.join(self._remote(part, part.command))
        variables = {**self.extra, **part.environment}
        words = [f"{name}={value}" for name, value in variables.items()]
        return shlex.join(["env", *words, *part.command])

    def _remote(self, part: Part, command: Sequence[str]) -> list[str]:
        words = [f"{name}={value}" for name, value in self.environment(part).items()]
        text = f"cd {shlex.quote(self.directory)} && exec {shlex.join(['env', *words, *command])}"
        return [*self.ssh, part.host, text]


def ssh_words(given: str, only_show: bool = False) -> tuple[str, ...]:
    """The words of --ssh; with OpenSSH's own client, the options that a launcher needs. `only_show`: it need
    not be here.

    Raises:
        HostsError: it is empty, cannot be read, or its program is not to be found.
    """
    try:
        words = shlex.split(given)
    except ValueError as error:
        raise HostsError(f"--ssh {given}: {error}") from None
    if not words:
        raise HostsError("--ssh: is empty; write for example: --ssh 'ssh -p 2222'")
    if shutil.which(words[0]) is None and not only_show:
        raise HostsError(f"--ssh {given}: there is no program {words[0]} here")
    if os.path.basename(words[0]) == "ssh":
        return (words[0], *SSH_OPTIONS, *words[1:])
    return tuple(words)


def check_command(command: Sequence[str]) -> None:
    """Raise HostsError when the ranks' program, or the script that an interpreter shall read, is not here.
    The other hosts are expected to have it at the same place."""
    if not command:
        raise HostsError("the command of the ranks is missing; write it after --, for example: "
                         "-- python run_pretraining_byteps.py --ckpt_dir ckpt")  # fmt: skip
    if shutil.which(command[0]) is None:
        raise HostsError(f"{command[0]}: there is no such program")
    interpreted = python_of(command) == command[0] and len(command) > 1
    if interpreted and command[1].endswith(".py") and not os.path.isfile(command[1]):
        raise HostsError(f"{command[1]}: there is no such script in {os.getcwd()}")
