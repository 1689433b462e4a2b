"""Open MPI's host files, and the limits of this machine that their ranks would meet. Linux; standard library
only."""

from __future__ import annotations

import os
import re
import resource
from pathlib import Path
from typing import Iterable, Iterator, Sequence

from base.command_line import MOST_PROCESSES, MOST_RANKS
from base.control_groups import PROC, read_text, tightest
from base.errors import InputError
from base.json_files import read_regular
from base.launchers import BYTEPS
from hosts.addresses import is_here

_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@-]*")
_SLOTS = re.compile(r"slots=([0-9]{1,6})")
_MOST_BYTES = 16 << 20
_MOST_LINES = 4096  # hosts; no cluster is so large, and their names have to fit a command line
_SPARE = re.compile(r"\s*#\s*spare:(.*)")
_MAX_SLOTS = re.compile(r"max[-_]?slots=[0-9]+")
_FILES_OF_PART = 5  # three pipes and two files
_FILES_OF_RANK = 3  # of mpirun: three pipes


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


def check_limits(lines: Sequence[tuple[str, int]], backend: str, hostfile: str) -> None:
    """Raises InputError where the ranks are more than this machine can have processes, or open files beside
    them. What else is running here is not counted."""
    here = sum(slots for host, slots in lines if is_here(host))
    ranks = sum(slots for _, slots in lines)
    over_byteps = backend == BYTEPS
    # Over BytePS each has hosts/supervise.py beside it, and the ranks of other hosts an ssh here.
    processes = ranks + here if over_byteps else here
    files = ranks * _FILES_OF_PART if over_byteps else here * _FILES_OF_RANK
    limits = [(int(read_text(PROC / "sys/kernel/pid_max") or 1 << 22), "kernel.pid_max")]
    group = tightest("pids", _read_pids, _read_pids)
    if group is not None:
        limits.append((int(group), "pids.max of this control group"))
    most, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if most != resource.RLIM_INFINITY and os.geteuid() != 0:  # root is not held to it
        limits.append((most, "ulimit -u"))
    limit, name = min(limits)
    if processes > limit:
        raise InputError(
            f"--hostfile {hostfile}: {ranks:,} ranks, {here:,} of them here, are {processes:,} processes of "
            f"this machine, which allows {limit:,} ({name}); list fewer slots"
        )
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and files > most:
        raise InputError(
            f"--hostfile {hostfile}: {ranks:,} ranks, {here:,} of them here, need {files:,} open files, and "
            f"{most:,} are allowed (ulimit -Hn); list fewer slots, or raise that limit"
        )


def _read_pids(directory: Path) -> float | None:
    most = read_text(directory / "pids.max")
    return float(most) if most.isdigit() else None
