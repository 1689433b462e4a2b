"""The processes of a run over BytePS, as data: who runs where, with which variables. Standard library only.

A line of the host file is a worker, its slots are the worker's ranks. With several workers their sums are
formed by servers, and everybody finds everybody through one scheduler. With one worker there is neither.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from typing import Mapping, Sequence

from hosts.hostfile import HostsError

DEFAULT_PORT = 9091  # of a scheduler on another host, where nobody here can look for a free one
SERVER = ("-c", "import byteps.server")  # which of the two it is, scheduler or server, DMLC_ROLE says
# What a run decides for its parts; values that are already set here are of no meaning to it.
DECIDED = (
    *("DMLC_ROLE", "DMLC_NUM_WORKER", "DMLC_NUM_SERVER", "DMLC_WORKER_ID", "DMLC_NODE_HOST"),
    *("DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT"),
    *("BYTEPS_LOCAL_RANK", "BYTEPS_LOCAL_SIZE", "BYTEPS_GLOBAL_RANK", "RANKS_ON_HOST"),
    "BYTEPS_RUN_ID",
)


@dataclass(frozen=True)
class Part:
    """One process. `host` is as written in the host file; `environment` is what it needs beyond the
    launcher's."""

    role: str  # "scheduler", "server" or "rank"
    index: int
    host: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.role if self.role == "scheduler" else f"{self.role} {self.index}"

    @property
    def directory(self) -> str:
        """Its folder below --log_dir."""
        return self.role if self.role == "scheduler" else f"{self.role}.{self.index}"


@dataclass(frozen=True)
class Rendezvous:
    """Where the scheduler runs, and the numeric address and port at which it is found."""

    host: str
    address: str
    port: int


def check_workers(workers: Sequence[tuple[str, int]], hostfile: str) -> None:
    """Raise HostsError unless all workers have the same number of ranks, as BytePS takes for granted: it
    computes a rank as worker * slots + local rank."""
    counts = {slots for _, slots in workers}
    if len(counts) > 1:
        first, second = workers[0], next(worker for worker in workers if worker[1] != workers[0][1])
        raise HostsError(
            f"--hostfile {hostfile}: {first[0]} has {first[1]} slots and {second[0]} has {second[1]}; "
            "BytePS needs the same number on every line"
        )


def choose_num_servers(given: int | None, workers: Sequence[tuple[str, int]], distributed: bool) -> int:
    """How many servers to start: as many as hosts unless `given` says otherwise, none for a single worker.

    Raises:
        HostsError: `given` is below one, or there is nothing for a server to do.
    """
    if not distributed:
        if given:
            raise HostsError(
                f"--num_servers {given}: the host file has one line, and a single worker needs no server; "
                "leave the option out"
            )
        return 0
    if given is None:
        return len({host for host, _ in workers})
    if given < 1:
        raise HostsError(f"--num_servers {given}: several workers need at least one server")
    return given


def plan_parts(
    workers: Sequence[tuple[str, int]],
    num_servers: int,
    rendezvous: Rendezvous | None,
    addresses: Mapping[str, str],
    command: Sequence[str],
    run_id: str,
) -> list[Part]:
    """All processes: the scheduler, the servers in turn over the hosts, the ranks.

    Args:
        workers: host and slots of each worker, all with the same slots.
        num_servers: 0 for a run of one worker, which has no scheduler either (`rendezvous` is None).
        rendezvous: the scheduler's place.
        addresses: each host's own numeric address. A host that is missing finds its own, through
            DMLC_INTERFACE.
        command: what each rank runs.
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

    parts = []
    server = (python_of(command), *SERVER)
    hosts = list(dict.fromkeys(host for host, _ in workers))
    if rendezvous is not None:
        # The scheduler's own address is the one at which it is found.
        parts.append(Part("scheduler", 0, rendezvous.host, server, {"DMLC_ROLE": "scheduler", **shared}))
        for index in range(num_servers):
            host = hosts[index % len(hosts)]
            parts.append(Part("server", index, host, server, variables("server", host)))
    for worker, (host, slots) in enumerate(workers):
        on_host = sum(count for name, count in workers if name == host)
        for local_rank in range(slots):
            rank = worker * slots + local_rank
            environment = variables(
                "worker",
                host,
                DMLC_WORKER_ID=worker,
                BYTEPS_LOCAL_RANK=local_rank,
                BYTEPS_LOCAL_SIZE=slots,
                BYTEPS_GLOBAL_RANK=rank,
                RANKS_ON_HOST=on_host,
            )
            parts.append(Part("rank", rank, host, tuple(command), environment))
    return parts


def python_of(command: Sequence[str]) -> str:
    """The interpreter for the servers: the ranks' own, where their command begins with one."""
    name = command[0].rpartition("/")[2]
    return command[0] if re.fullmatch(r"python[0-9.]*", name) else sys.executable
