"""Networks between hosts, by the value of --network, as variables with the reason for each. Standard library
only.

tcp             any interface but loopback and Docker's; --interface names one
tcp:NAME        TCP over this interface
tcp:A,B         TCP over several interfaces, rails: each connection is on one of them, and all are used
efa             Amazon's Elastic Fabric Adapter: GPUs' gradients travel through NCCL's plug-in for libfabric
infiniband      InfiniBand or RoCE: GPUs' gradients travel through NCCL's verbs
infiniband:A,B  the same over these adapters (mlx5_0,mlx5_1), which are rails too

Nothing is chosen without the option: by itself NCCL takes what it finds, and falls back to TCP with a line
in its log. Without GPUs gradients travel through MPI and BytePS, over TCP. None of these variables has been
tried on such a network; they are those that NCCL's, libfabric's and Open MPI's manuals name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from base.errors import InputError

TCP, EFA, INFINIBAND = KINDS = ("tcp", "efa", "infiniband")
_DEVICE = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
RULE = (
    "tcp[:INTERFACE[,INTERFACE...]], efa, or infiniband[:ADAPTER[,ADAPTER...]]; the output says what each "
    "variable is for. Rule of thumb: name the fastest that all hosts have; on EC2 that is efa, where "
    "`ls /sys/class/infiniband` lists rdmap or efa devices"
)


class Setting(NamedTuple):
    """A variable of every rank, and why it is set."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True)
class Network:
    """`kind`: one of KINDS. `devices`: names of interfaces or adapters; empty: the library's choice."""

    kind: str
    devices: tuple[str, ...] = ()

    @property
    def interface(self) -> str | None:
        """Interfaces for TCP, with commas between them; None where they are not named."""
        return ",".join(self.devices) if self.kind == TCP and self.devices else None

    def settings(self) -> list[Setting]:
        """Variables of every rank; those of TCP's interfaces come from hosts/mpirun.py."""
        if self.kind == EFA:
            return [*_LIBFABRIC, *_SHOWN]
        if self.kind == INFINIBAND:
            reason = "these adapters only: the = takes names as they are, not as beginnings of names"
            adapters = [Setting("NCCL_IB_HCA", f"={','.join(self.devices)}", reason)] if self.devices else []
            return [*_VERBS, *adapters, *(_RAILS if len(self.devices) > 1 else ()), *_SHOWN]
        return [*_RAILS, *_SOCKETS, *_SHOWN] if len(self.devices) > 1 else []

    def comment(self) -> list[str]:
        """A line for each variable, with its reason."""
        return [f"{each.name}={each.value}: {each.reason}" for each in self.settings()]


_FORKS = "loaders of batches are forked: memory that the adapter writes to must stay with the rank"
_LIBFABRIC = (
    Setting("NCCL_NET", "AWS Libfabric", "NCCL fails without the plug-in, where it would take TCP"),
    Setting("FI_PROVIDER", "efa", "libfabric has EFA or nothing, where it would take TCP"),
    Setting("FI_EFA_FORK_SAFE", "1", _FORKS),
)
_VERBS = (
    Setting("NCCL_NET", "IB", "NCCL fails without an adapter, where it would take TCP"),
    Setting(
        "NCCL_IB_TIMEOUT",
        "22",
        "4 us x 2^22, 17 s of patience while a switch re-routes; by default 4 s or less",
    ),
    Setting("RDMAV_FORK_SAFE", "1", _FORKS),
)
_RAILS = (
    Setting("NCCL_CROSS_NIC", "0", "rails are networks of their own: a ring stays on one, from host to host"),
)
_SOCKETS = (
    Setting("NCCL_NSOCKS_PERTHREAD", "4", "a single TCP connection fills no 100 Gbit/s"),
    Setting("NCCL_SOCKET_NTHREADS", "2", "threads for them; times the line above at most 64"),
)
_SHOWN = (
    Setting("NCCL_DEBUG", "INFO", "NCCL's log names the network that it uses; look for NET/ in it"),
    Setting("NCCL_DEBUG_SUBSYS", "INIT,NET", "of all that it could say, only that"),
)


def read_network(given: str, backend: str, interface: str | None = None) -> Network:
    """The network that --network names. Raises InputError where there is none such, or the backend ("hvd" or
    "byteps") or --interface does not go with it."""
    kind, colon, names = given.partition(":")
    devices = tuple(names.split(",")) if colon else ()
    if kind not in KINDS or not all(map(_DEVICE.fullmatch, devices)) or len(set(devices)) < len(devices):
        raise InputError(f"--network {given}: write tcp[:INTERFACE,...], efa or infiniband[:ADAPTER,...]")
    if kind == EFA and devices:
        raise InputError(f"--network {given}: libfabric takes all EFA devices of a host; write --network efa")
    if backend == "byteps" and kind != TCP:
        raise InputError(
            f"--network {given}: BytePS is built for TCP here; write --network tcp:NAME, where an adapter "
            "has a network interface (ib0), or take Horovod"
        )
    if backend == "byteps" and len(devices) > 1:
        raise InputError(f"--network {given}: each of BytePS's processes has one address; name one interface")
    if kind == TCP and devices and interface is not None:
        raise InputError(f"--interface {interface}: --network {given} names the interface already")
    return Network(kind, devices)
