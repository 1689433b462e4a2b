"""A run over BytePS: the parts on given hosts, and public addresses at which they listen. Standard library
only.

ps-lite binds the scheduler to DMLC_PS_ROOT_URI, every server and worker to DMLC_NODE_HOST or, without it, to
the address of DMLC_INTERFACE. Bytes that are not its own protocol's abort it, and with it the run
(docs/network.md).
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import socket
import struct
import uuid
from dataclasses import dataclass, replace
from typing import Callable, Collection, Sequence

from base.command_line import whole
from base.errors import InputError
from base.launchers import is_number, number_in
from base.options import option
from hosts.addresses import LOOPBACK, addresses, free_port, is_address, is_here, is_loopback
from hosts.launching.parts import (
    DEFAULT_PORT,
    Access,
    Part,
    Rendezvous,
    Wiring,
    choose_num_servers,
    plan_parts,
)

FEW_CORES = 4
_SIOCGIFADDR = 0x8915  # Linux: an interface's IPv4 address
_EVERYWHERE = "0.0.0.0"


@dataclass(frozen=True)
class Servers:
    """Options that only BytePS has."""

    number: int | None = option(
        "byteps: servers, placed on the hosts in turn (default: one a host, BytePS's recommendation for "
        "servers that share their hosts with workers: each host's network then carries the same load)",
        whole(0, 4096, "BytePS's largest networks have hundreds"),
        metavar="N",
        name="num_servers",
    )
    scheduler: str | None = option(
        "byteps: host and port of the scheduler (default: the first host; a free port if that is this "
        f"machine, else {DEFAULT_PORT})",
        metavar="HOST[:PORT]",
    )

    def without(self, left_out: Collection[str], workers: int) -> Servers:
        """These options for a run that has lost hosts: the scheduler's may be one of those `left_out`, and a
        single worker that remains needs neither."""
        if not left_out:
            return self
        if workers == 1:
            return Servers()
        host = self.scheduler and _scheduler(self.scheduler, "")[0]
        return replace(self, scheduler=None) if host in left_out else self


def plan(
    workers: Sequence[tuple[str, int]],
    command: Sequence[str],
    wiring: Wiring,
    servers: Servers,
    say: Callable[[str], None],
) -> tuple[list[Part], Access]:
    """Lists the processes of a run, and the means of starting them. `workers`: host and slots of each, all
    with the same slots (`check_workers`); `command`: what each rank runs.

    Raises:
        InputError: hosts or options that do not go together, or a host without an address.
    """
    extra = dict(wiring.extra)
    forced = extra.get("BYTEPS_FORCE_DISTRIBUTED", os.environ.get("BYTEPS_FORCE_DISTRIBUTED", "0"))
    distributed = len(workers) > 1 or forced.strip() not in ("", "0")
    num_servers = choose_num_servers(servers.number, workers, distributed)
    rendezvous = None
    numeric: dict[str, str] = {}
    hosts = [host for host, _ in workers]
    if distributed:
        rendezvous, numeric = _rendezvous(wiring, hosts, servers.scheduler, say)
        hosts.append(rendezvous.host)
    elif servers.scheduler:
        raise InputError(f"--scheduler {servers.scheduler}: a single worker needs no scheduler; leave it out")
    here = frozenset(host for host in hosts if is_here(host))
    if wiring.interface:
        extra["DMLC_INTERFACE"] = wiring.interface
        # A run on this machine alone keeps to loopback; it has no network to choose.
        numeric = numeric if set(numeric.values()) == {LOOPBACK} else {}
    defaults = {"PYTHONUNBUFFERED": "1"}  # Python keeps lines back that go into a pipe
    if here and rendezvous is not None and len(os.sched_getaffinity(0)) <= FEW_CORES:
        defaults["BYTEPS_SERVER_ENGINE_THREAD"] = "1"
    extra = {**{name: value for name, value in defaults.items() if name not in os.environ}, **extra}
    run_id = uuid.uuid4().hex[:8]
    parts = plan_parts(workers, num_servers, rendezvous, numeric, command, run_id)
    return parts, Access(wiring.ssh, here, os.getcwd(), os.environ, extra)


def _rendezvous(
    wiring: Wiring, workers: Sequence[str], scheduler: str | None, say: Callable[[str], None]
) -> tuple[Rendezvous, dict[str, str]]:
    """The scheduler's place, and the numeric addresses of all hosts (with --dry_run a name without one)."""
    name, port = _scheduler(scheduler, workers[0])
    hosts = [*workers, name]
    numeric = addresses(hosts, wiring.hostfile, lenient=wiring.only_show or bool(wiring.interface))
    address = numeric[name]
    if wiring.only_show:
        for host in [host for host in numeric if not is_address(numeric[host])]:
            say(f"{host} has no address here; its name is printed, a run would stop here")
    # With an interface each of the other hosts determines its own address.
    elif not is_address(address) or (is_loopback(address) and not all(map(is_here, hosts))):
        raise InputError(f"{name} has no address here for the others; write it: --scheduler ADDRESS")
    if port is None:
        port = free_port(address) if is_here(name) else DEFAULT_PORT
    return Rendezvous(name, address, port), numeric


def _scheduler(given: str | None, first: str) -> tuple[str, int | None]:
    """Host and port of --scheduler; `first` and None where it is left out."""
    if given is None:
        return first, None
    host, colon, port = given.rpartition(":")
    if not colon:
        return given, None
    if not host or not is_number(port) or not 0 < int(port) < 65536:
        raise InputError(f"--scheduler {given}: write HOST or HOST:PORT, with a port from 1 to 65535")
    return host, int(port)


def warning(parts: Sequence[Part], access: Access) -> str:
    """A line about the public addresses at which the parts of a run are going to listen; empty where there
    are none. An interface on another host is not known here."""
    exposed: dict[str, list[str]] = {}
    for part in parts:
        address = listening_address(part, access)
        with contextlib.suppress(ValueError):  # none, or a name, in a dry run
            known = ipaddress.ip_address(address)
            if known.is_global or known.is_unspecified:
                exposed.setdefault(address, []).append(part.name)
    if not exposed:
        return ""
    places = "; ".join(
        f"{'all addresses of its host' if address == _EVERYWHERE else address} ({', '.join(names)})"
        for address, names in exposed.items()
    )
    return (
        f"BytePS listens where the public may connect, and anyone who does can end the run: {places}; "
        "let only the run's hosts through (docs/network.md), or use a private network"
    )


def listening_address(part: Part, access: Access) -> str:
    """Address that ps-lite binds a part's port to; empty where there is none, or it cannot be known here."""
    environment = access.environment(part)
    if "DMLC_PS_ROOT_URI" not in environment:
        return ""
    if part.role == "scheduler":
        everywhere = number_in(environment, "DMLC_USE_KUBERNETES") > 0
        return _EVERYWHERE if everywhere else environment["DMLC_PS_ROOT_URI"]
    interface = environment.get("DMLC_INTERFACE", "") if part.host in access.here else ""
    return environment.get("DMLC_NODE_HOST", "") or interface_address(interface)


def interface_address(name: str) -> str:
    """The IPv4 address of one of this machine's interfaces; empty if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError:
            return ""
    return socket.inet_ntoa(answer[20:24])
