"""A Slurm cluster on one machine: slurmctld, two slurmd and munged from Debian's packages, a node being a
network namespace (tests/namespaces.py).

    with slurm_cluster(tmp_path) as cluster:
        job = cluster.submit(script)
        cluster.wait_for(job, "COMPLETED")

Configuration, keys, state and logs lie in the given folder; the machine's own are not looked at. Everything
ends with the block or with this process. Needs root and the Debian packages slurmctld, slurmd, slurm-client
and munge; `Unavailable` says what is missing.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, Sequence

from tests.namespaces import Unavailable, bound, commands_on, enter, joined, kill_on, started
from tests.processes import LIMIT, until

NODES = ("alpha", "beta")
_CONF = """
ClusterName=test
SlurmctldHost=alpha(10.77.0.1)
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
SlurmctldDebug=debug
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
KillWait=20
MinJobAge=600
SchedulerParameters=sched_interval=2,bf_interval=2,requeue_delay=1
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
SlurmdParameters=config_overrides
NodeName=alpha NodeAddr=10.77.0.1 CPUs=2 RealMemory=2000
NodeName=beta NodeAddr=10.77.0.2 CPUs=2 RealMemory=2000
PartitionName=usual Nodes=ALL Default=YES PriorityTier=1 GraceTime=60 OverTimeLimit=1
PartitionName=urgent Nodes=ALL PriorityTier=10 PreemptMode=off
"""


@dataclass(frozen=True)
class Cluster:
    """`folder`: of everything. `prefix`: words that run a command on the first node, with `env`. `holders`:
    the process that keeps each node."""

    folder: Path
    prefix: list[str]
    env: dict[str, str]
    holders: tuple[int, ...]

    def run(self, *words: str | Path) -> str:
        """Runs a command of Slurm's on the first node; returns its output."""
        result = subprocess.run(
            [*self.prefix, *map(str, words)],
            env={**os.environ, **self.env},
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
        assert result.returncode == 0, f"{words}: {result.stderr}{result.stdout}"
        return result.stdout

    def submit(self, *words: str | Path) -> str:
        """Submits a script, with options; returns the job's number."""
        return self.run("sbatch", "--parsable", *words).strip()

    def facts(self, job: str) -> dict[str, str]:
        """Slurm's own facts of a job: JobState, Restarts, ..."""
        return dict(re.findall(r"(\w+)=(\S*)", self.run("scontrol", "show", "job", job)))

    def wait_for(self, job: str, state: str, seconds: float = LIMIT) -> dict[str, str]:
        """Waits until a job has a state; returns its facts."""

        def reached() -> dict[str, str] | None:
            facts = self.facts(job)
            assert facts["JobState"] not in {"FAILED", "CANCELLED"} - {state}, f"job {job} is {facts}"
            return facts if facts["JobState"] == state else None

        return until(reached, pause=0.2, limit=seconds)

    def processes(self, node: int) -> list[str]:
        """Command lines of what runs on a node, Slurm's own daemons left out."""
        texts = [" ".join(words).strip() for _, words in commands_on(self.holders[node])]
        daemon = re.compile(r"(\S*/)?slurm(d|ctld) -|.*slurmscriptd")
        return [text for text in texts if text and not daemon.match(text)]


@contextlib.contextmanager
def slurm_cluster(folder: Path) -> Iterator[Cluster]:
    """Starts a cluster of two nodes, which are idle when it is handed over."""
    path = os.pathsep.join([os.environ["PATH"], "/usr/sbin"])
    for tool in ("slurmctld", "slurmd", "sbatch", "srun", "munged"):
        if shutil.which(tool, path=path) is None:
            raise Unavailable(f"no Slurm: {tool}; apt-get install slurmctld slurmd slurm-client munge")
    folder = folder.absolute()
    (folder / "state").mkdir()
    (folder / "pmix").mkdir()
    (folder / "mpi.conf").write_text(f"PMIxCliTmpDirBase={folder}/pmix\n", encoding="ascii")
    (folder / "slurm.conf").write_text(_CONF.format(folder=folder), encoding="ascii")
    (folder / "hosts").write_text("127.0.0.1 localhost\n10.77.0.1 alpha\n10.77.0.2 beta\n", encoding="ascii")
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o600)
    env = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": path}
    with joined(NODES) as holders, contextlib.ExitStack() as stack:
        _daemon(stack, folder, [], [
            *("munged", "--foreground", "--force", f"--socket={folder}/munge.socket", f"--key-file={key}"),
            *(f"--pid-file={folder}/munge.pid", f"--log-file={folder}/munge.log"),
            f"--seed-file={folder}/munge.seed",
        ], env)  # fmt: skip
        for holder in holders:
            stack.callback(kill_on, holder)  # slurmstepd leaves slurmd's session
        places = [[*enter(holder), *bound(folder / "hosts", "/etc/hosts")] for holder in holders]
        _daemon(stack, folder, places[0], ["slurmctld", "-D", "-i"], env)
        for name, place in zip(NODES, places):
            for each in (f"spool.{name}", f"pmix.{name}"):
                (folder / each).mkdir()
            # srun --mpi=pmix makes a folder of one name on every node; these share a file system.
            own = bound(folder / f"pmix.{name}", shlex.quote(str(folder / "pmix")))
            _daemon(stack, folder, [*place, *own], ["slurmd", "-D", "-N", name], env)
        cluster = Cluster(folder, places[0], env, tuple(holders))
        _wait_until_idle(cluster)
        yield cluster


def _wait_until_idle(cluster: Cluster) -> None:
    def idle() -> bool:
        with contextlib.suppress(AssertionError):
            states = cluster.run("sinfo", "--noheader", "--Node", "--format=%T", "-p", "usual")
            return states.split() == ["idle"] * 2
        return False

    try:
        until(idle, pause=0.2)
    except AssertionError:
        logs = "".join(path.read_text(errors="replace")[-1500:] for path in cluster.folder.glob("*.log"))
        raise Unavailable(f"the Slurm cluster did not start: {logs}") from None


def _daemon(
    stack: contextlib.ExitStack, folder: Path, place: Sequence[str], words: list[str], env: dict[str, str]
) -> None:
    with open(folder / f"{words[0]}.out", "ab") as out:
        more = {"stdout": out, "stderr": out, "env": {**os.environ, **env}, "start_new_session": True}
        started(stack, [*place, *words], **more)
