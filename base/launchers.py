"""Places of processes as the usual launchers announce them in their variables. Standard library only."""

from __future__ import annotations

import re
from typing import Mapping, Sequence

# A process's rank: Open MPI, horovodrun, MPICH and Intel MPI, srun --mpi=pmix. BytePS announces it in two
# variables. SLURM_PROCID is none of them: a job script's shell and processes without MPI have it too.
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "HOROVOD_RANK", "PMI_RANK", "PMIX_RANK")
# Number of processes.
SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "HOROVOD_SIZE")
# Ranks on this host: hosts/launch.py (several workers may share a host), Open MPI, MPICH and Intel
# MPI, MVAPICH2, horovodrun, bpslaunch, Slurm ("4", or "4(x2),3" for several hosts: the first number is this
# host's unless the hosts differ).
LOCAL_SIZE_VARIABLES = (
    "RANKS_ON_HOST",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "MV2_COMM_WORLD_LOCAL_SIZE",
    "HOROVOD_LOCAL_SIZE",
    "BYTEPS_LOCAL_SIZE",
    "SLURM_STEP_TASKS_PER_NODE",
)
# Hosts of a run in the order of its ranks, name:ranks with commas, as hosts/launch.py announces them.
RUN_HOSTS = "RUN_HOSTS"

_STEP_SIZE = "SLURM_STEP_NUM_TASKS"  # srun's; SLURM_NTASKS is often the whole job's
_MOST_DIGITS = 18
_RANKS = re.compile(r"[0-9]{1,6}")  # of a host, as hosts/hostfile.py reads them

LOCAL, HVD, BYTEPS = BACKENDS = ("local", "hvd", "byteps")


def launched_backend(environ: Mapping[str, str]) -> str:
    """The backend whose launcher has set its variables: BytePS's DMLC_ROLE, or those of mpirun, horovodrun
    and srun --mpi=pmix; "local" without a launcher."""
    if environ.get("DMLC_ROLE") == "worker":
        return BYTEPS
    named = [name for name in (*RANK_VARIABLES, *SIZE_VARIABLES) if name in environ]
    # Where PMIx is a cluster's default, a step of one task is salloc's shell, and what is started in it.
    alone = named == ["PMIX_RANK"] and announced_sizes(environ) == {_STEP_SIZE: 1}
    return HVD if named and not alone else LOCAL


def launched_rank(environ: Mapping[str, str]) -> int:
    """This process's rank according to its launcher, before any library is started; 0 without one."""
    if environ.get("DMLC_ROLE") == "worker":
        return (
            number_in(environ, "DMLC_WORKER_ID") * number_in(environ, "BYTEPS_LOCAL_SIZE", 1)
            + number_in(environ, "BYTEPS_LOCAL_RANK")
        )  # fmt: skip
    return next((number_in(environ, name) for name in RANK_VARIABLES if name in environ), 0)


def announced_sizes(environ: Mapping[str, str]) -> dict[str, int]:
    """Numbers of the run's processes by the launcher's variables; empty where none announces one."""
    names = [name for name in SIZE_VARIABLES if name in environ]
    if not names and "PMIX_RANK" in environ:  # mpirun's ranks have it too, within a step of one task a host
        names = [_STEP_SIZE]
    return {name: int(environ[name]) for name in names if is_number(environ.get(name, ""))}


def local_size(environ: Mapping[str, str]) -> int:
    """Number of ranks on this host according to the launcher; 1 without a launcher.

    bpslaunch knows the ranks of one worker only. Where the scheduler has a loopback address all workers are
    on this host; RANKS_ON_HOST, set by hand, says it for others.
    """
    for name in LOCAL_SIZE_VARIABLES:
        digits = environ.get(name, "").partition("(")[0].partition(",")[0]
        if is_number(digits) and int(digits) > 0:
            all_here = name == "BYTEPS_LOCAL_SIZE" and is_loopback(environ.get("DMLC_PS_ROOT_URI", ""))
            return int(digits) * (max(1, number_in(environ, "DMLC_NUM_WORKER")) if all_here else 1)
    return 1


def hosts_of_run(environ: Mapping[str, str]) -> list[str]:
    """The host of each rank as the launcher announces it; empty where it does not."""
    entries = [entry.rpartition(":") for entry in environ.get(RUN_HOSTS, "").split(",")]
    return [host for host, _, ranks in entries if _RANKS.fullmatch(ranks) for _ in range(int(ranks))]


def announced_hosts(lines: Sequence[tuple[str, int]]) -> str:
    """The value of RUN_HOSTS for hosts of a host file, [user@]name, and their ranks."""
    return ",".join(f"{host.rpartition('@')[2]}:{ranks}" for host, ranks in lines)


def is_loopback(host: str) -> bool:
    """Returns whether it is an address that reaches this host only: localhost, 127.*."""
    return host == "localhost" or host.startswith("127.")


def is_number(text: str) -> bool:
    """Returns whether text is a whole number, zero or more, that 64 bits hold."""
    return text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS


def number_in(environ: Mapping[str, str], name: str, default: int = 0) -> int:
    """The whole number in a variable, `default` where it is not set or holds something else."""
    text = environ.get(name, "")
    return int(text) if is_number(text) else default
