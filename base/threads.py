"""Number of threads that MXNet may use in this process. It is set before mxnet is imported, which reads
OMP_NUM_THREADS once and by itself takes half of the machine's cores, however many ranks share them.

Standard library only.
"""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import Mapping, MutableMapping

from base.control_groups import MOUNT, PROC, read_text, tightest
from base.errors import InputError
from base.launchers import is_number, local_size

# Set to 1 for processes that are bound to a core, a socket or another part of the machine: by Open MPI 4 for
# those that it has bound, by users who want bpslaunch to bind. Open MPI 5 does not say; the CPUs of a process
# are then compared with those of its daemon, which is not bound.
_DAEMON = "PRTE_LAUNCHED"
_BOUND = ("OMPI_MCA_orte_bound_at_launch", "BYTEPS_NUMA_ON", _DAEMON)


def set_threads(environ: MutableMapping[str, str] = os.environ) -> int:
    """Sets OMP_NUM_THREADS in `environ` for this process and returns it. Raises InputError when
    OMP_NUM_THREADS is given and is no positive number, RuntimeError when mxnet has already been imported."""
    if environ is os.environ and "mxnet" in sys.modules:
        raise RuntimeError("set_threads must be called before mxnet is imported")
    threads = choose_threads(
        environ,
        affinity_count=len(os.sched_getaffinity(0)),
        cpu_count=len(os.sched_getaffinity(os.getppid())) if _DAEMON in environ else os.cpu_count() or 1,
        local_size=local_size(environ),
        cpu_quota=read_cpu_quota(),
    )
    environ["OMP_NUM_THREADS"] = str(threads)
    return threads


def choose_threads(
    environ: Mapping[str, str],
    affinity_count: int,
    cpu_count: int,
    local_size: int,
    cpu_quota: float | None = None,
) -> int:
    """Threads for this process, at least 1. An explicit OMP_NUM_THREADS wins.

    affinity_count: CPUs this process may run on. cpu_count: CPUs of the machine. local_size: ranks on this
    host. cpu_quota: CPUs' worth of time that the control group allows all of them together, None for no
    limit.

    Without binding all local ranks share the CPUs this process may run on. With binding, `affinity_count` of
    `cpu_count` CPUs are shared by their proportion of the local ranks: 8 ranks bound to the two sockets of a
    machine are 4 to a socket, bound to cores each has its own.
    """
    explicit = environ.get("OMP_NUM_THREADS", "").strip()
    if explicit:
        # OpenMP allows a list, one number for each nesting level.
        first = explicit.split(",")[0].strip()
        if not (is_number(first) and int(first) > 0):
            raise InputError(f"OMP_NUM_THREADS={explicit}: not a positive number; correct it or unset it")
        return int(first)
    sharing = local_size
    if any(environ.get(name) == "1" for name in _BOUND) and affinity_count < cpu_count:
        sharing = math.ceil(local_size * affinity_count / cpu_count)
    threads = affinity_count // max(1, sharing)
    if cpu_quota is not None:
        threads = min(threads, int(cpu_quota / local_size))
    return max(1, threads)


def read_cpu_quota(proc: Path = PROC, cgroup: Path = MOUNT) -> float | None:
    """CPUs' worth of time that this process's control groups allow (version 1 or 2, the tightest of the group
    and its ancestors), None without a limit."""
    return tightest("cpu", _read_v2, _read_v1, proc, cgroup)


def _read_v2(directory: Path) -> float | None:
    words = read_text(directory / "cpu.max").split()
    if len(words) != 2 or words[0] == "max":
        return None
    return int(words[0]) / int(words[1])


def _read_v1(directory: Path) -> float | None:
    quota, period = read_text(directory / "cpu.cfs_quota_us"), read_text(directory / "cpu.cfs_period_us")
    if not quota or not period or int(quota) <= 0:  # -1: no limit
        return None
    return int(quota) / int(period)
