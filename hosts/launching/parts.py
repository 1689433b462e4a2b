"""The processes of a run, as data: place, variables, command. Standard library only.

Over BytePS a line of the host file is a worker, its slots are the worker's ranks. With several workers their
sums are formed by servers, and all processes meet through one scheduler. With one worker there is neither.
Over Horovod mpirun is the one process that the launcher starts.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Mapping, Sequence

from base import failures
from base.errors import InputError
from base.launchers import RUN_HOSTS, announced_hosts
from hosts.hostfile import merged
from hosts.networks import Network

DEFAULT_PORT = 9091  # of a scheduler on another host, where no free one can be looked for from here
MPIRUN, RANK = "mpirun", "rank"
KILL_AFTER = 5.0  # seconds from SIGTERM to SIGKILL for the parts of a run that has failed
RANK_KILL_AFTER = 20.0  # the same for ranks, one of which saves first
MPIRUN_SIGKILL = 10  # seconds from a rank's failure to mpirun's SIGTERM to the others, and again to SIGKILL
MPIRUN_KILL_AFTER = 2 * MPIRUN_SIGKILL + 3.0
SERVER = ("-c", "import byteps.server")  # or the scheduler: DMLC_ROLE decides
# Variables that a run decides for its parts; values that are already set here are ignored.
DECIDED = (
    *("DMLC_ROLE", "DMLC_NUM_WORKER", "DMLC_NUM_SERVER", "DMLC_WORKER_ID", "DMLC_NODE_HOST"),
    *("DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT"),
    *("BYTEPS_LOCAL_RANK", "BYTEPS_LOCAL_SIZE", "BYTEPS_GLOBAL_RANK", "RANKS_ON_HOST"),
    *("BYTEPS_RUN_ID", RUN_HOSTS, failures.FOLDER),
)
LINE = 30.0  # seconds for which the launcher's machine may acknowledge nothing that another host sends it
SUPERVISE = str(Path(__file__).resolve().parents[1] / "supervise.py")
# BatchMode: fail instead of asking for a password. ServerAlive: a host that is gone is noticed within 40 s.
SSH_OPTIONS = (
    *("-o", "BatchMode=yes", "-o", "ConnectTimeout=30"),
    *("-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=3"),
)
PASSED_ON = re.compile(
    r"(DMLC|BYTEPS|HOROVOD|MXNET|NCCL|PS)_\w+|OMP_NUM_THREADS|PYTHONUNBUFFERED|PATH|PYTHONPATH|LD_LIBRARY_PATH"
)


@dataclass(frozen=True)
class Part:
    """One process. `host` is as written in the host file; `environment` adds to the launcher's.

    mpirun is a part, too, which starts its ranks itself. `ranks`: their hosts. `folders`: made for it, and
    removed when it has ended. `silence`: seconds for which another host may acknowledge nothing, or None.
    `files`: written before it starts, in one of its folders; paths and texts.
    """

    role: str  # "scheduler", "server", "rank" or "mpirun"
    index: int
    host: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    ranks: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    silence: float | None = None
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """As in messages and prefixes."""
        return self.role if self.role in ("scheduler", MPIRUN) else f"{self.role} {self.index}"

    @property
    def trains(self) -> bool:
        """Whether it is a rank, or starts ranks: it decides when the run ends, and obeys signals."""
        return self.role in (RANK, MPIRUN)

    @property
    def kill_after(self) -> float:
        """Seconds from SIGTERM to SIGKILL when the run has failed."""
        return {MPIRUN: MPIRUN_KILL_AFTER, RANK: RANK_KILL_AFTER}.get(self.role, KILL_AFTER)

    def order(self, name: str) -> str:
        """The signal that makes it stop as `name` ("INT", "TERM", "USR1") should: mpirun passes none but
        USR1 on to its ranks; of the others it kills them."""
        return "USR1" if self.role == MPIRUN else name


@dataclass(frozen=True)
class Wiring:
    """Options about the way to the hosts. `hostfile`: its path, for messages. `interface`: the network
    interface between them. `network`: what --network chooses. `ssh`: words of the remote shell. `extra`:
    variables of --env. `only_show`: nothing will be started."""

    hostfile: str
    interface: str | None
    ssh: tuple[str, ...]
    extra: Mapping[str, str]
    only_show: bool = False
    network: Network | None = None


@dataclass(frozen=True)
class Rendezvous:
    """The scheduler's host, numeric address and port."""

    host: str
    address: str
    port: int


def check_workers(workers: Sequence[tuple[str, int]], hostfile: str) -> None:
    """Raises InputError unless all workers have as many ranks.

    BytePS assumes it: a rank is worker * slots + local rank.
    """
    first, slots = workers[0]
    for host, others in workers:
        if others != slots:
            raise InputError(
                f"--hostfile {hostfile}: {first} has {slots} slots and {host} has {others}; BytePS needs the "
                "same number on every line"
            )


def choose_num_servers(given: int | None, workers: Sequence[tuple[str, int]], distributed: bool) -> int:
    """Number of servers: `given`, or as many as hosts; none for a single worker.

    Raises:
        InputError: `given` is below one, or a single worker has no use for servers.
    """
    if not distributed:
        if given:
            raise InputError(
                f"--num_servers {given}: the host file has one line, and a single worker needs no server; "
                "leave the option out"
            )
        return 0
    if given is None:
        return len({host for host, _ in workers})
    if given < 1:
        raise InputError(f"--num_servers {given}: several workers need at least one server")
    return given


def plan_parts(
    workers: Sequence[tuple[str, int]],
    num_servers: int,
    rendezvous: Rendezvous | None,
    addresses: Mapping[str, str],
    command: Sequence[str],
    run_id: str,
) -> list[Part]:
    """Lists all processes: the scheduler, the servers in turn over the hosts, the ranks, which run `command`.

    Args:
        workers: host and slots of each worker, all with the same slots.
        num_servers: 0 for a run of one worker, which has no scheduler either (`rendezvous` is None).
        addresses: each host's own numeric address. A missing one is determined on the host, from
            DMLC_INTERFACE.
        run_id: any text that no other run on these hosts has: it keeps the sockets of local ranks apart.
    """
    shared = {"DMLC_NUM_WORKER": str(len(workers)), "BYTEPS_RUN_ID": run_id}
    if rendezvous is not None:
        shared["DMLC_NUM_SERVER"] = str(num_servers)
        shared["DMLC_PS_ROOT_URI"] = rendezvous.address
        shared["DMLC_PS_ROOT_PORT"] = str(rendezvous.port)

    def variables(role: str, host: str, **more: object) -> dict[str, str]:
        own = {"DMLC_NODE_HOST": addresses[host]} if rendezvous is not None and host in addresses else {}
        return {"DMLC_ROLE": role, **shared, **own, **{name: str(value) for name, value in more.items()}}

    run_hosts = announced_hosts(workers)
    parts = []
    server = (python_of(command), *SERVER)
    ranks_on = dict(merged(workers))
    hosts = list(ranks_on)
    if rendezvous is not None:
        # The scheduler's own address is that of the rendezvous.
        parts.append(Part("scheduler", 0, rendezvous.host, server, {"DMLC_ROLE": "scheduler", **shared}))
        for index in range(num_servers):
            host = hosts[index % len(hosts)]
            parts.append(Part("server", index, host, server, variables("server", host)))
    for worker, (host, slots) in enumerate(workers):
        for local_rank in range(slots):
            rank = worker * slots + local_rank
            environment = variables(
                "worker",
                host,
                DMLC_WORKER_ID=worker,
                BYTEPS_LOCAL_RANK=local_rank,
                BYTEPS_LOCAL_SIZE=slots,
                BYTEPS_GLOBAL_RANK=rank,
                RANKS_ON_HOST=ranks_on[host],
                RUN_HOSTS=run_hosts,
            )
            parts.append(Part(RANK, rank, host, tuple(command), environment))
    return parts


def python_of(command: Sequence[str]) -> str:
    """Interpreter for the servers: the ranks' own, where their command begins with one."""
    name = command[0].rpartition("/")[2]
    return command[0] if re.fullmatch(r"python[0-9.]*", name) else sys.executable


@dataclass(frozen=True)
class Access:
    """Means of starting parts on the hosts.

    `ssh`: the remote shell's words, without a host. `here`: the hosts that are this machine. `directory`: the
    working directory, on every host. `environ`: the launcher's own variables. `extra`: variables of --env.
    """

    ssh: tuple[str, ...]
    here: frozenset[str]
    directory: str
    environ: Mapping[str, str]
    extra: Mapping[str, str]

    def environment(self, part: Part) -> dict[str, str]:
        """All variables of a local part; of a remote one, those that are sent along."""
        inherited = {name: value for name, value in self.environ.items() if name not in DECIDED}
        if part.host not in self.here:
            inherited = {name: value for name, value in inherited.items() if PASSED_ON.fullmatch(name)}
        return {**inherited, **self.extra, **part.environment}

    def start(self, part: Part, supervision: Sequence[str]) -> tuple[list[str], dict[str, str] | None]:
        """Command and environment (None: this process's own) that start a part under hosts/supervise.py.

        `supervision`: options of hosts/supervise.py.
        """
        # -I -S: it needs nothing but the standard library, and starts in half the time.
        supervise = [python_of(part.command), "-I", "-S", SUPERVISE, *supervision]
        supervise += [word for folder in part.folders for word in ("--folder", folder)]
        supervise += [] if part.silence is None else ["--silence", str(part.silence)]
        supervise += ["--wake"] if part.role == MPIRUN else []
        supervise += [] if part.host in self.here else ["--line", str(LINE)]
        supervise += ["--grace", str(part.kill_after), "--", *part.command]
        if part.host in self.here:
            return supervise, self.environment(part)
        return self._remote(part, supervise), None

    def by_hand(self, part: Part) -> str:
        """Command of a part as text for a shell, without the supervision."""
        if part.host not in self.here:
            return shlex.join(self._remote(part, part.command))
        variables = {**self.extra, **part.environment}
        words = [f"{name}={value}" for name, value in variables.items()]
        written = [f"mkdir -p {shlex.join(part.folders)}"] if part.folders else []
        for path, text in part.files.items():
            written.append(f"printf %s {shlex.quote(text)} > {shlex.quote(path)}")
        return "\n".join([*written, shlex.join(["env", *words, *part.command])])

    def _remote(self, part: Part, command: Sequence[str]) -> list[str]:
        words = [f"{name}={value}" for name, value in self.environment(part).items()]
        text = f"cd {shlex.quote(self.directory)} && exec {shlex.join(['env', *words, *command])}"
        return [*self.ssh, part.host, text]


def words_of(flag: str, given: str, example: str) -> list[str]:
    """Words of an option's value, as a shell would split it. Raises InputError if there are none."""
    try:
        words = shlex.split(given)
    except ValueError as error:
        raise InputError(f"{flag} {given}: {error}") from None
    if not words:
        raise InputError(f"{flag}: is empty; write for example: {flag} '{example}'")
    return words


def ssh_words(given: str, only_show: bool = False) -> tuple[str, ...]:
    """Words of --ssh, with the options that a launcher needs if it is OpenSSH's client.

    Raises:
        InputError: it is empty, cannot be split as by a shell, or names no program (unless `only_show`).
    """
    words = words_of("--ssh", given, "ssh -p 2222")
    if shutil.which(words[0]) is None and not only_show:
        raise InputError(f"--ssh {given}: there is no program {words[0]} here")
    if os.path.basename(words[0]) == "ssh":
        return (*words, *SSH_OPTIONS)  # of an option that is there twice, ssh takes the first
    return tuple(words)


def check_command(command: Sequence[str]) -> None:
    """Raises InputError when the ranks' program, or an interpreter's script, does not exist.

    The other hosts are expected to have it at the same place.
    """
    if not command:
        raise InputError("the command of the ranks is missing; write it after --, for example: "
                         "-- python run_pretraining_byteps.py --ckpt_dir ckpt")  # fmt: skip
    if shutil.which(command[0]) is None:
        raise InputError(f"{command[0]}: there is no such program")
    interpreted = python_of(command) == command[0] and len(command) > 1
    if interpreted and command[1].endswith(".py") and not os.path.isfile(command[1]):
        raise InputError(f"{command[1]}: there is no such script in {os.getcwd()}")
