"""Which hosts are this machine, and the numeric addresses of all of them. Standard library only.

ps-lite, which BytePS talks through, gives the address of each process to ZeroMQ to bind to, and ZeroMQ binds
to numbers and interfaces, not to names.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import Iterable

from hosts.hostfile import HostsError

LOOPBACK = "127.0.0.1"


def bare(host: str) -> str:
    """The host of `user@host`."""
    return host.rpartition("@")[2]


def is_loopback(host: str) -> bool:
    """localhost, 127.*, ::1."""
    try:
        return ipaddress.ip_address(bare(host)).is_loopback
    except ValueError:
        return bare(host).lower() in ("localhost", "localhost.localdomain", "ip6-localhost")


def is_address(text: str) -> bool:
    """Whether it is an IPv4 address in numbers."""
    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return True


def is_here(host: str) -> bool:
    """Whether it is this machine: loopback, its own name (with or without domain) or an address of its own.
    With `user@` it is not: somebody wants to be another user there."""
    if "@" in host:
        return False
    own = socket.gethostname()
    return is_loopback(host) or host.lower() in (own.lower(), own.lower().partition(".")[0]) or _is_own(host)


def addresses(hosts: Iterable[str], hostfile: str, lenient: bool = False) -> dict[str, str]:
    """The IPv4 address of each host, by which the others reach it; 127.0.0.1 when all are this machine.

    Args:
        lenient: leave a name that has no address here as it is.

    Raises:
        HostsError: a host cannot be resolved, or one of several is a loopback address.
    """
    names = list(dict.fromkeys(hosts))
    if all(map(is_here, names)):
        return dict.fromkeys(names, LOOPBACK)
    for name in names:
        if is_loopback(name):
            raise HostsError(
                f"--hostfile {hostfile}: {name} means another machine on each host; "
                "write the name or address by which the other hosts reach it"
            )
    found = {name: _resolve(bare(name)) for name in names}
    unknown = [name for name, address in found.items() if address is None]
    if unknown and not lenient:
        raise HostsError(
            f"--hostfile {hostfile}: {unknown[0]} has no IPv4 address here; correct it or write an address"
        )
    known = {name: address or bare(name) for name, address in found.items()}
    peer = next((known[name] for name in names if name not in unknown and not is_here(name)), None)
    if peer is None:
        return known
    # Debian's /etc/hosts gives a machine's own name a loopback address.
    return {name: _towards(peer) if is_loopback(address) else address for name, address in known.items()}


def free_port(address: str) -> int:
    """A TCP port that nobody uses now on this machine. Raises OSError if `address` is not its own."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


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
            raise HostsError(f"there is no route from this machine to {peer}: {error.strerror}") from None
        return str(probe.getsockname()[0])


def _is_own(host: str) -> bool:
    if not is_address(host):
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
    return True
