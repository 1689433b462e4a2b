"""Memory that processes can still take here, the machine's and what the control groups leave of it, and what
a process has taken. Linux; standard library only."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import NamedTuple

from base.control_groups import MOUNT, PROC, read_text, tightest
from base.errors import InputError

_UNLIMITED = 1 << 60  # version 1 writes no limit as a number close to 2^63
# Bytes of addresses that a process with MXNet maps, at least, and beside them those of malloc's arenas, where
# MALLOC_ARENA_MAX is not set. Measured with predict.py and one thread: 956 and 262 MiB.
LOADED, ARENAS = 850 << 20, 250 << 20


class Available(NamedTuple):
    """Bytes, and what sets the limit, for people."""

    bytes: int
    source: str


def available_memory(proc: Path = PROC, cgroup: Path = MOUNT) -> Available:
    """Memory for new processes on this host without swapping. Pages that only cache files count as free."""
    lines = read_text(proc / "meminfo").splitlines()
    machine = 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    group = tightest("memory", _read_v2, _read_v1, proc, cgroup)
    if group is not None and group < machine:
        return Available(int(group), "left by this control group's limit")
    return Available(machine, "available on this machine")


def available_bytes() -> int:
    """The bytes of `available_memory`, and no more than this process may still map."""
    limit = address_limit()
    found = available_memory().bytes
    return found if limit is None else min(found, max(0, limit - _size_of("VmSize")))


def address_limit() -> int | None:
    """Bytes of addresses that this process may map (RLIMIT_AS, `ulimit -v`); None without a limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if limit == resource.RLIM_INFINITY else limit


def check_addresses(least: int, arenas: int, what: str) -> None:
    """Raises InputError where a process would certainly map more than it may. To be called before MXNet is
    loaded, which ends in a segmentation fault where it cannot map its parts.

    Args:
        least: bytes that it maps in any case. arenas: those in malloc's arenas, at least.
        what: what maps them, for the message.
    """
    limit = address_limit()
    arenas = 0 if os.environ.get("MALLOC_ARENA_MAX") else arenas
    if limit is None or least + arenas <= limit:
        return
    hint = f"; MALLOC_ARENA_MAX=1 in the environment saves {arenas >> 20:,} MiB" if arenas else ""
    raise InputError(
        f"{what}: a process maps at least {(least + arenas) >> 20:,} MiB of addresses, and ulimit -v allows "
        f"{limit >> 20:,} MiB; raise that limit{hint}"
    )


def peak_of(process: int | str = "self") -> int:
    """The greatest size of a process in memory so far, in bytes; 0 when it has ended."""
    return _size_of("VmHWM", process)


def _size_of(field: str, process: int | str = "self") -> int:
    try:
        status = Path(f"/proc/{process}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    sizes = [line.split()[1] for line in status.splitlines() if line.startswith(f"{field}:")]
    return 1024 * int(sizes[0]) if sizes else 0  # a zombie has none


def _read_v2(directory: Path) -> float | None:
    return _room(directory, "memory.max", "memory.current", ("inactive_file", "active_file"))


def _read_v1(directory: Path) -> float | None:
    names = ("total_inactive_file", "total_active_file")
    return _room(directory, "memory.limit_in_bytes", "memory.usage_in_bytes", names)


def _room(directory: Path, limit: str, usage: str, cached: tuple[str, ...]) -> float | None:
    most, used = read_text(directory / limit), read_text(directory / usage)
    if not most.isdigit() or not used.isdigit() or int(most) >= _UNLIMITED:
        return None
    rows = (line.split() for line in read_text(directory / "memory.stat").splitlines())
    pages = sum(int(row[1]) for row in rows if len(row) == 2 and row[0] in cached)
    return max(0, int(most) - max(0, int(used) - pages))
