"""Public addresses at which BytePS's processes listen. Standard library only.

ps-lite binds the scheduler to DMLC_PS_ROOT_URI, every server and worker to DMLC_NODE_HOST or, without it, to
the address of DMLC_INTERFACE. Bytes that are not its own protocol's abort it, and with it the run
(docs/network.md).
"""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from typing import Sequence

from base.launchers import number_in
from hosts.launching.parts import Access, Part

_SIOCGIFADDR = 0x8915  # Linux: an interface's IPv4 address
_EVERYWHERE = "0.0.0.0"


def warning(parts: Sequence[Part], access: Access) -> str:
    """A line about the public addresses at which the parts of a run are going to listen; empty where there
    are none. An interface on another host is not known here."""
    exposed: dict[str, list[str]] = {}
    for part in parts:
        address = listening_address(part, access)
        if _is_public(address):
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
    if not name:
        return ""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError:
            return ""
    return socket.inet_ntoa(answer[20:24])


def _is_public(address: str) -> bool:
    try:
        known = ipaddress.ip_address(address)
    except ValueError:  # a name, in a dry run
        return False
    return known.is_global or known.is_unspecified
