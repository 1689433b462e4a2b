"""Addresses at which rank 0 listens so that every rank reaches it, and few others do.

Ranks that are all on one machine meet on its loopback interface. Else rank 0 listens on the networks that it
shares with all of them: on those of the interfaces that the launcher's variables name, if they name any, and
on private ones only, if there are any. Where it shares none with all (routers lie in between), it listens on
each address that is left. psutil is imported when it is needed.
"""

from __future__ import annotations

import hashlib
import importlib
import ipaddress
import os
import socket
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Sequence, Union

from comm.watch.run_processes import uses_byteps

MOST = 24  # interfaces that are looked at
_LISTS = ("OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_oob_tcp_if_include", "HOROVOD_GLOO_IFACE")

Network = Union[ipaddress.IPv4Interface, ipaddress.IPv6Interface]


class Interface(NamedTuple):
    """An address of this machine: its interface's name, and the address with its network, as 10.0.0.7/24."""

    name: str
    address: Network


def machine(proc: Path = Path("/proc")) -> str:
    """A text that two processes have in common when one's loopback interface is the other's: a digest of the
    machine's latest start and the network namespace. Where /proc does not say it, one that nobody shares."""
    try:
        start = (proc / "sys/kernel/random/boot_id").read_text(encoding="ascii")
        namespace = os.stat(proc / "self/ns/net").st_ino
    except OSError:
        return os.urandom(16).hex()
    return hashlib.sha256(f"{start} {namespace}".encode()).hexdigest()[:32]


def interfaces() -> list[Interface]:
    """This machine's addresses, IPv4 first; neither loopback nor those that need a scope (fe80::)."""
    psutil: Any = importlib.import_module("psutil")
    found = []
    for name, entries in psutil.net_if_addrs().items():
        for entry in entries:
            if entry.family not in (socket.AF_INET, socket.AF_INET6) or "%" in entry.address:
                continue
            address = ipaddress.ip_interface(f"{entry.address}/{_prefix(entry.netmask, entry.family)}")
            if not address.is_loopback and not address.is_link_local:
                found.append(Interface(name, address))
    return sorted(found, key=lambda each: each.address.version)[:MOST]


def candidates(own: Sequence[Interface], environ: Mapping[str, str]) -> list[Interface]:
    """Those of a machine's `own` that the launcher's variables name; all where none does.

    Variables: DMLC_NODE_HOST, DMLC_INTERFACE (BytePS), OMPI_MCA_btl_tcp_if_include and
    OMPI_MCA_oob_tcp_if_include (Open MPI: names or networks), HOROVOD_GLOO_IFACE, NCCL_SOCKET_IFNAME.
    """
    for wanted in _named(environ):
        chosen = [each for each in own if any(_matches(each, word) for word in wanted)]
        if chosen:
            return chosen
    return list(own)


def shares(own: Sequence[Interface], address: str) -> bool:
    """Tests whether a machine with its `own` addresses is on the network of another's `address` (with its
    network). An address that both have, as Docker gives to each machine, leads from neither to the other."""
    other = ipaddress.ip_interface(address)
    if any(each.address.ip == other.ip for each in own):
        return False
    return any(each.address.network == other.network for each in own)


def choose(addresses: Sequence[str], shared: Sequence[bool]) -> list[str]:
    """The addresses, without their networks, at which to listen.

    Args:
        addresses: rank 0's candidates, with their networks.
        shared: for each of them, whether every rank is on its network.
    """
    known = [ipaddress.ip_interface(each) for each in addresses]
    usable = [each for each, by_all in zip(known, shared) if by_all] or known
    private = [each for each in usable if not each.ip.is_global]
    # Where nothing is shared, a router may lead to the public address only.
    chosen = private if private and any(shared) else usable
    return [str(each.ip) for each in chosen]


def _named(environ: Mapping[str, str]) -> list[list[str]]:
    """Words of the variables, the most precise first: names of interfaces, addresses or networks."""
    named = []
    if uses_byteps(environ):
        named += [[environ.get(name, "")] for name in ("DMLC_NODE_HOST", "DMLC_INTERFACE")]
    named += [environ.get(name, "").split(",") for name in _LISTS]
    nccl = environ.get("NCCL_SOCKET_IFNAME", "")
    if not nccl.startswith("^"):
        named.append([word.lstrip("=").partition(":")[0] for word in nccl.split(",")])
    return [[word.strip() for word in words if word.strip()] for words in named]


def _matches(interface: Interface, word: str) -> bool:
    if interface.name == word:
        return True
    try:
        network = ipaddress.ip_network(word, strict=False)
    except ValueError:
        return False
    return network.version == interface.address.version and interface.address.ip in network


def _prefix(netmask: str | None, family: int) -> int:
    """Length of a network's prefix from psutil's netmask; IPv6's is written like an address."""
    if netmask is None:
        return 32 if family == socket.AF_INET else 128
    return bin(int(ipaddress.ip_address(netmask))).count("1")
