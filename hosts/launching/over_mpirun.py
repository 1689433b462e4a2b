"""A run over Horovod: mpirun as the one part that the launcher starts. Standard library only.

-host name:4,...
    The hosts of this attempt; no file has to be written. (5.0.7 does not know a host by its address any more
    when its daemon there has told the name, 4.1.4 crashes at user@name: a host file in the run's folder.)
--tag-output, --output rank:raw
    Whose line it is (hosts/launching/mpirun_output.py). Open MPI 5 would hold back what has no end yet, of
    all ranks together, and give it to one of them (5.0.7); "raw" prevents that.
-mca odls_base_sigkill_timeout 10
    hosts/mpirun.py has 30, for ranks that get mpirun's own SIGTERM. Here the launcher's SIGUSR1 reaches them
    first, and they leave together when they have saved; the seconds are for a rank that saves because
    another has failed. hosts/supervise.py ends them when no rank is left. (5: half a second, which cannot be
    set.)
orte_tmpdir_base (5: prte_), btl_vader_backing_directory
    Folders of this run: ranks that are killed leave files in them, which go with the folders.
orte_launch_agent (5: prte_)
    mpirun's daemons on other hosts run under hosts/supervise.py, too, which makes and removes the folders
    there, and ends a daemon that is cut off. (plm_rsh_no_tree_spawn, which would start all of more than 64
    from this host, makes Open MPI 4.1.4 wait for ever.)
plm ssh, ras ^slurm (5)
    The hosts and the remote shell are the launcher's; in a Slurm job mpirun would take srun. (For 4
    hosts/slurm.py says so, in words that 5 ignores.)
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
import uuid
from dataclasses import dataclass
from typing import Sequence

from base.errors import InputError
from base.launchers import RUN_HOSTS, announced_hosts
from hosts.addresses import LOOPBACK
from hosts.launching.parts import (
    MPIRUN,
    MPIRUN_SIGKILL,
    PASSED_ON,
    SUPERVISE,
    Access,
    Part,
    Wiring,
    python_of,
    words_of,
)
from hosts.mpirun import AS_ROOT, KEEPALIVE, settings_of_mpirun, variables, version
from hosts.shell import this_machine

SHARED_MEMORY = "/dev/shm"
PRRTE = 5  # since this version of Open MPI mpirun is PRRTE's prterun
# Option, beginning of the names, and name of the remote shell of what mpirun and its daemons have to know.
_OLD, _NEW = ("-mca", "orte", "plm_rsh_agent"), ("--prtemca", "prte", "plm_ssh_agent")
_ON_HOSTS = {"plm": "ssh", "ras": "^slurm", **KEEPALIVE}  # 5 does not take them after -mca
SILENCE = 10.0  # seconds for which mpirun and its daemons wait for an answer; keepalive notices in 20


@dataclass(frozen=True)
class Mpirun:
    """`words`: the program, and options for it. `is_new`: whether it is PRRTE's."""

    words: tuple[str, ...]
    is_new: bool

    @property
    def daemon(self) -> str:
        """Name of the program that it starts on other hosts."""
        return "prted" if self.is_new else "orted"


def plan(
    hosts: Sequence[tuple[str, int]], command: Sequence[str], wiring: Wiring, mpirun: Mpirun
) -> tuple[list[Part], Access]:
    """Lists the one process of a run, mpirun, and the means of starting it. `hosts`: names and slots, each
    host once; `command`: what each rank runs, one in every slot."""
    machine = this_machine(hosts)
    program, *own = mpirun.words  # `own` behind ours: of most options the last counts
    words = [program, "-np", str(sum(slots for _, slots in hosts))]
    name = f"launch.{uuid.uuid4().hex[:8]}"  # by which hosts/supervise.py knows what is left
    folders: tuple[str, ...] = (os.path.join(tempfile.gettempdir(), name),)
    files = {}
    if machine is None and (mpirun.is_new or any("@" in host for host, _ in hosts)):
        files[os.path.join(folders[0], "hosts")] = "".join(f"{host} slots={slots}\n" for host, slots in hosts)
        words += ["--hostfile", *files]
    else:
        words += ["-host", ",".join(f"{host}:{slots}" for host, slots in hosts)]
    words += ["--output", "rank:raw"] if mpirun.is_new else ["--tag-output"]
    without_gpus = machine is not None and not machine.gpus
    given = {name for flag, name in zip(own, own[1:]) if flag.endswith("-mca")}  # no parameter is taken twice
    for line in settings_of_mpirun(hosts, None, wiring.interface, without_gpus, MPIRUN_SIGKILL):
        for start in range(0, len(line), 3):
            words += line[start : start + 3] if given.isdisjoint(line[start + 1 : start + 2]) else []
    option, of, shell = _NEW if mpirun.is_new else _OLD
    words += [option, f"{of}_tmpdir_base", folders[0]]
    if os.path.isdir(SHARED_MEMORY):
        folders += (os.path.join(SHARED_MEMORY, name),)
        words += ["-mca", "btl_vader_backing_directory", folders[1]]
    if machine is None:
        words += [option, f"{of}_launch_agent", shlex.join(daemon(command, folders, mpirun))]
        words += [option, shell, shlex.join(wiring.ssh)]
        if mpirun.is_new:
            words += [word for name, value in _ON_HOSTS.items() for word in (option, name, value)]
    # Those of this process, those of hosts/mpirun.py, and those of --env: the last counts.
    named = sorted(filter(PASSED_ON.fullmatch, {*os.environ, "PYTHONUNBUFFERED"})) if machine is None else []
    ours = variables(hosts, wiring.interface, wiring.network)
    exported = {**dict(zip(named, named)), **{each: f"{each}={value}" for each, value in ours.items()}}
    exported.update(zip(wiring.extra, wiring.extra))
    if machine is None:
        exported[RUN_HOSTS] = f"{RUN_HOSTS}={announced_hosts(hosts)}"
    words += [word for each in exported.values() for word in ("-x", each)]  # mpirun takes no name twice
    environment = {**(AS_ROOT if os.geteuid() == 0 else {}), "PYTHONUNBUFFERED": "1"}
    silence = SILENCE if machine is None else None
    ranks = tuple(name for name, slots in hosts for _ in range(slots))
    part = Part(MPIRUN, 0, LOOPBACK, (*words, *own, *command), environment, ranks, folders, silence, files)
    here = frozenset({LOOPBACK, *(() if machine is None else ranks)})
    return [part], Access((), here, os.getcwd(), os.environ, wiring.extra)


def daemon(command: Sequence[str], folders: Sequence[str], mpirun: Mpirun) -> list[str]:
    """Words that start mpirun's daemon on another host, whose shell reads them."""
    python = shutil.which(python_of(command)) or sys.executable
    words = [python, "-I", "-S", SUPERVISE, "--unattended", "--wake", "--silence", f"{SILENCE:g}"]
    words += ["--stopped_timeout", "inf"]  # ranks look for stopped ones
    return [*words, *(word for folder in folders for word in ("--folder", folder)), "--", mpirun.daemon]


def program(given: str, only_show: bool) -> Mpirun:
    """The program of --mpirun. Raises InputError when it is empty, cannot be split as by a shell, names no
    program, or another MPI's."""
    words = words_of("--mpirun", given, "mpirun -mca pml ucx")
    is_there = shutil.which(words[0]) is not None
    if is_there or only_show:
        return Mpirun(tuple(words), not is_there or version(words[0]) >= PRRTE)
    raise InputError(f"--mpirun {given}: there is no program {words[0]} here; make setup installs Open MPI")
