"""Numeric addresses of hosts, and the hosts that are this machine. Standard library only.

ps-lite, which BytePS talks through, gives the address of each process to ZeroMQ to bind to, and ZeroMQ binds
to numbers and interfaces, not to names.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import random
import socket
from pathlib import Path
from typing import Iterable

from base.errors import InputError

LOOPBACK = "127.0.0.1"


def bare(host: str) -> str:
    """Name of the host in `user@host`."""
    return host.rpartition("@")[2]


def is_loopback(host: str) -> bool:
    """Tests for a loopback name or address: localhost, 127.*, ::1."""
    try:
        return ipaddress.ip_address(bare(host)).is_loopback
    except ValueError:
        return bare(host).lower() in ("localhost", "localhost.localdomain", "ip6-localhost")


def is_address(text: str) -> bool:
    """Tests for an IPv4 address in numbers."""
    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return True


def is_here(host: str) -> bool:
    """Tests whether `host` is this machine: loopback, its name or one of its addresses.

    The name may lack its domain. `user@host` never is: it may be another user.
    """
    if "@" in host:
        return False
    own = socket.gethostname().lower()
    if is_loopback(host) or host.lower() in (own, own.partition(".")[0]):
        return True
    if not is_address(host):
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((host, 0))  # which others' addresses cannot be
        except OSError:
            return False
    return True


def addresses(hosts: Iterable[str], hostfile: str, lenient: bool = False) -> dict[str, str]:
    """The IPv4 address of each host, by which the others reach it; 127.0.0.1 when all are this machine.

    Args:
        hosts: as in the host file, `user@` included.
        hostfile: its path, for messages.
        lenient: leave a name that has no address here as it is.

    Raises:
        InputError: a host cannot be resolved, or one of several is a loopback address.
    """
    names = list(dict.fromkeys(hosts))
    if all(map(is_here, names)):
        return dict.fromkeys(names, LOOPBACK)
    for name in names:
        if is_loopback(name):
            raise InputError(
                f"--hostfile {hostfile}: {name} means another machine on each host; "
                "write the name or address by which the other hosts reach it"
            )
    resolved = {name: _resolve(bare(name)) for name in names}
    unknown = [name for name, address in resolved.items() if address is None]
    if unknown and not lenient:
        raise InputError(
            f"--hostfile {hostfile}: {unknown[0]} has no IPv4 address here; correct it or write an address"
        )
    known = {name: address or bare(name) for name, address in resolved.items()}
    peer = next((known[name] for name in names if name not in unknown and not is_here(name)), None)
    if peer is None:
        return known
    # Debian's /etc/hosts gives a machine's own name a loopback address.
    return {name: _towards(peer) if is_loopback(address) else address for name, address in known.items()}


def free_port(address: str) -> int:
    """A free TCP port of this machine, which will still be free when the scheduler listens there.

    Raises OSError if `address` is not one of its own.
    """
    # Connections of other programs take ports of the kernel's own range at any moment, those beyond it never.
    kernels = range(0)
    with contextlib.suppress(OSError, ValueError):
        first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text("ascii").split())
        kernels = range(first, last + 1)
    ports = [port for port in range(20000, 65536) if port not in kernels]
    for port in [*random.SystemRandom().sample(ports, min(50, len(ports))), 0]:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((address, port))
            except OSError as error:
                if error.errno == errno.EADDRINUSE and port:
                    continue
                raise
            return int(probe.getsockname()[1])
    raise AssertionError("port 0 either binds or raises")


def _resolve(name: str) -> str | None:
    try:
        return str(socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
    except (OSError, UnicodeError):
        return None


def _towards(peer: str) -> str:
    """This machine's address on the way to `peer`; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((peer, 9))
        except OSError as error:
            raise InputError(f"there is no route from this machine to {peer}: {error.strerror}") from None
        return str(probe.getsockname()[0])
