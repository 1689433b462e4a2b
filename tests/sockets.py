"""TCP sockets of processes, read from /proc."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
from pathlib import Path
from typing import Iterable, Iterator, NamedTuple

_LISTEN = "0A"


class Listening(NamedTuple):
    """A socket that listens: the process that has it, and where."""

    pid: int
    address: str
    port: int

    @property
    def is_loopback(self) -> bool:
        return ipaddress.ip_address(self.address).is_loopback


def listening(pids: Iterable[int]) -> list[Listening]:
    """The listening TCP sockets of the processes, each in its own network namespace."""
    return sorted({Listening(pid, *_place(words[1])) for pid, words in _tables(pids) if words[3] == _LISTEN})


def unacknowledged(pids: Iterable[int]) -> list[tuple[int, str, int]]:
    """The processes' connections on which bytes have not been acknowledged: process, address and port of the
    other end."""
    lines = [(pid, words) for pid, words in _tables(pids) if words[3] != _LISTEN]
    return sorted((pid, *_place(words[2])) for pid, words in lines if int(words[4].partition(":")[0], 16))


def _tables(pids: Iterable[int]) -> Iterator[tuple[int, list[str]]]:
    """The kernel's line of each TCP socket of the processes, in words; each in its own network namespace."""
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended
            inodes = _sockets(pid)
            for name in ("tcp", "tcp6"):
                for line in Path(f"/proc/{pid}/net/{name}").read_text(encoding="ascii").splitlines()[1:]:
                    words = line.split()
                    if words[9] in inodes:
                        yield pid, words


def _sockets(pid: int) -> set[str]:
    inodes = set()
    for entry in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            match = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{entry}"))
            if match:
                inodes.add(match[1])
    return inodes


def _place(text: str) -> tuple[str, int]:
    """`0100007F:1F90` as 127.0.0.1 and 8080: words of four bytes, each in the machine's order."""
    digits, _, port = text.partition(":")
    words = [bytes.fromhex(digits[start : start + 8])[::-1] for start in range(0, len(digits), 8)]
    return str(ipaddress.ip_address(b"".join(words))), int(port, 16)
