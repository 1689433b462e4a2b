"""Reading Open MPI host files. Standard library only."""

from __future__ import annotations

import re
from typing import Iterable, Iterator

from base.command_line import MOST_PROCESSES, MOST_RANKS
from base.errors import InputError
from base.json_files import read_regular

_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@-]*")
_SLOTS = re.compile(r"slots=([0-9]{1,6})")
_MOST_BYTES = 16 << 20
_MOST_LINES = 4096  # hosts; no cluster is so large, and their names have to fit a command line
_SPARE = re.compile(r"\s*#\s*spare:(.*)")
_MAX_SLOTS = re.compile(r"max[-_]?slots=[0-9]+")


def read_hostfile(path: str) -> list[tuple[str, int]]:
    """Hosts of an Open MPI host file with their slots, in the file's order.

    A host that is listed twice has the sum of its slots. For the form of a line and for errors see
    `read_host_lines`.
    """
    return merged(read_host_lines(path))


def merged(lines: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Hosts once each, with the sum of their slots."""
    hosts: dict[str, int] = {}
    for name, slots in lines:
        hosts[name] = hosts.get(name, 0) + slots
    return list(hosts.items())


def read_host_lines(path: str) -> list[tuple[str, int]]:
    """Host and slots of each line of an Open MPI host file; a host that is listed twice comes twice.

    A line is `host slots=N`, optionally with `max-slots=M`, which is ignored: it does not change how many
    processes are started. `#` begins a comment. Where `slots=` is missing, Open MPI counts the host's cores;
    that cannot be done from here, so it has to be written.

    Raises:
        InputError: no such file, no host in it, a line that is none of the above (with its number), or more
            hosts or slots than any cluster has.
    """
    hosts = [(name, slots) for name, slots, _ in _read(path, spares=False)]
    if not hosts:
        raise InputError(f"--hostfile {path}: names no host; write lines like: node-1 slots=8")
    return hosts


def read_spares(path: str) -> list[tuple[str, int]]:
    """Spare hosts with their slots: lines `# spare: host slots=N`, which Open MPI takes for comments.

    Raises:
        InputError: no such file, what follows `# spare:` is not a host with its slots, or a host is listed
            twice.
    """
    used = {name for name, _ in read_host_lines(path)}
    found = []
    for name, slots, where in _read(path, spares=True):
        if name in used:
            raise InputError(f"{where}: {name} is listed already; a spare host has one line")
        used.add(name)
        found.append((name, slots))
    return found


def _read(path: str, spares: bool) -> Iterator[tuple[str, int, str]]:
    """Host and slots of each line, or of each comment that names a spare host, and where it stands. Too many
    are an error at the line with which they are, before anything is done for each."""
    content = read_regular(path, _MOST_BYTES, f"--hostfile {path}")
    try:
        lines = content.decode("utf-8").splitlines()
    except UnicodeDecodeError:
        raise InputError(f"--hostfile {path}: not a text file") from None
    hosts = ranks = 0
    for number, line in enumerate(lines, 1):
        where, spare = f"--hostfile {path}, line {number}", _SPARE.match(line)
        if spares != bool(spare):
            continue
        words = re.sub(r"\s*=\s*", "=", (spare[1] if spare else line).split("#", 1)[0]).split()
        if spare and not words:
            raise InputError(f"{where}: names no spare host; write: # spare: node-9 slots=8")
        if words:
            name, slots = _read_line(words, where)
            hosts, ranks = hosts + 1, ranks + slots
            if hosts > _MOST_LINES:
                raise InputError(f"{where}: more than {_MOST_LINES:,} hosts, and no cluster is so large")
            if ranks > MOST_RANKS:
                said = f"with it there are {ranks:,} ranks, at most {MOST_RANKS:,} are started"
                raise InputError(f"{where}: {said}")
            yield name, slots, where


def _read_line(words: list[str], where: str) -> tuple[str, int]:
    name, *settings = words
    if not _HOST.fullmatch(name):
        raise InputError(f"{where}: {name!r} is not a host's name")
    slots = 0
    for setting in settings:
        match = _SLOTS.fullmatch(setting)
        if match:
            slots = int(match.group(1))
            if slots < 1:
                raise InputError(f"{where}: {setting}: a host has at least one slot, or no line")
            if slots > MOST_PROCESSES:
                raise InputError(
                    f"{where}: {setting}: at most {MOST_PROCESSES:,}, more than any machine has cores or GPUs"
                )
        elif not _MAX_SLOTS.fullmatch(setting):
            raise InputError(f"{where}: {setting!r} is not understood; write: {name} slots=N")
    if not slots:
        raise InputError(f"{where}: slots are missing; write: {name} slots=N (N = its GPUs)")
    return name, slots
