"""Limits of this machine that the parts of a run would meet: processes and open files. Linux, standard
library."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Sequence

from base.control_groups import PROC, read_text, tightest
from base.errors import InputError
from base.launchers import BYTEPS
from hosts.addresses import is_here

_FILES_OF_PART = 5  # three pipes and two files
_FILES_OF_RANK = 3  # of mpirun: three pipes


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


def allow_open_files() -> None:
    """Raises the limit of open files as far as it may be: each part takes several."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _read_pids(directory: Path) -> float | None:
    most = read_text(directory / "pids.max")
    return float(most) if most.isdigit() else None
