"""Real pretraining runs over real ssh (tests/ssh_hosts.py) that are disturbed and end with the bits of a run
that was left alone.

Ways: faults (each of tests/hosts/test_ssh.py: one line with the host and the cure, nothing started), kill (a
rank on the other host), cut (the other host's wire is taken down, and mended when the launcher has noticed
it), interrupt (Ctrl-C, and the same command with --resume), printed (the command of hparams.py --launch hvd,
stopped by SIGUSR1 to mpirun).
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.faults.figure import Damage, Parts, Program, Setting, Tally, named
from tests.faults.jobs import LOST_STATES, Job, differences, moved, python, undamaged, wait_for_step
from tests.namespaces import INTERFACE, commands_on
from tests.processes import ROOT, Run, run_command, start_command, until
from tests.ssh_hosts import SshHosts, ssh_hosts

WAYS = ("faults", "kill", "cut", "interrupt", "printed")
STEPS = 60
SECONDS = 1200.0  # of a run, also on a busy machine
ENV = {"OMP_NUM_THREADS": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def cases(setting: Setting) -> list[str]:
    """Each way on two hosts and on three."""
    ways = WAYS if setting.launcher == "mpirun" else WAYS[:-1]
    return [named(hosts=number, way=way) for number in (2, 3) for way in ways]


def attempt(setting: Setting, parts: Parts) -> Tally:
    """One way to disturb a run, which leaves no process on any host."""
    number, way = int(parts["hosts"]), parts["way"]
    with ssh_hosts(setting.folder("hosts"), number) as hosts:
        ways = {"faults": faults, "printed": printed}
        return Tally.of(ways.get(way, disturbed)(hosts, setting, way) or left_behind(hosts))


def disturbed(hosts: SshHosts, setting: Setting, way: str) -> str:
    """One disturbed run; returns what was wrong, empty if nothing."""
    own, alone = hosts.folder / way, setting.shared / f"ssh-{setting.backend}-{len(hosts.holders)}"
    if not (alone / f"{STEPS:07d}.json").exists():
        start(hosts, Job(undamaged(setting)), alone).finish()
    with start(hosts, Job(setting), own) as run:
        wait_for_step(run, own, 25)
        if way == "kill":
            os.kill(rank_on_beta(hosts), signal.SIGKILL)
        elif way == "interrupt":
            run.signal(signal.SIGINT)
            if run.wait().returncode != 130:
                return run.wait().describe()
        else:
            hosts.cut(1)
            try:
                until(lambda: "restart 1" in run.stderr() or "10.77.0.2, try 1" in run.stderr(), run)
            finally:
                hosts.mend(1)
        result = run.wait()
    if way == "interrupt":
        result = start(hosts, Job(setting), own, "--resume").wait()
    if result.returncode != 0:
        return result.describe()
    return differences(own, alone)


def faults(hosts: SshHosts, setting: Setting, way: str) -> str:
    """Each fault of the second host, before anything is started."""
    from tests.hosts.test_ssh import FAULTS, PASSING, launcher

    backend = setting.backend.partition("_")[0]
    for name, (make, cure) in FAULTS.items():
        if backend == "byteps" and name == "no Open MPI":
            continue  # BytePS needs none
        with tempfile.TemporaryDirectory(prefix="ssh-fault-") as place, make(hosts, Path(place)):
            begun = Path(place, "begun")
            ssh = f"{hosts.ssh} {PASSING.get(name, '-o ConnectTimeout=300')}"
            words = launcher(hosts, "--backend", backend, number=len(hosts.holders), ssh=ssh)
            result = run_command([*words, "--", sys.executable, "-c", f"open({str(begun)!r}, 'w')"], env=ENV)
            code = 1 if name in PASSING else 2
            if result.returncode != code or result.stderr.count("\n") != 1 or cure not in result.stderr:
                return f"{name}: {result.describe()}"
            if begun.exists():
                return f"{name}: a rank was started"
        left = left_behind(hosts)
        if left:
            return f"{name}: {left}"
    return ""


def start(hosts: SshHosts, job: Job, folder: Path, *more: Any) -> Run:
    """Starts a run with a rank on each host."""
    backend = job.setting.backend.partition("_")[0]
    launch = [ROOT / "hosts" / "launch.py", "--backend", backend, "--backoff", 1, "--host_tries", 9]
    launch += ["--hostfile", hosts.hostfile, "--ssh", hosts.ssh, "--interface", INTERFACE]
    script = python(job.script, *options(job, folder, num_steps=STEPS, lr=0.02, warmup_ratio=0.2), *more)
    command = [*hosts.prefix, *python(*launch), "--", *script]
    return start_command(command, timeout=SECONDS, env=ENV, grace=60)


def options(job: Job, folder: Path, **changes: Any) -> list[str]:
    given: dict[str, Any] = {
        "stages": None, "data_eval": None, "resume": None, "max_seq_length": 16, "batch_size": 8,
        "num_buckets": None, "comm_timeout": 120, "ckpt_interval": 20,
        "reproducible": job.setting.backend == "byteps",  # whose servers add in the order of arrival
        **changes,
    }  # fmt: skip
    return job.words(folder, **given)


def printed(hosts: SshHosts, setting: Setting, way: str) -> str:
    """The command of hparams.py with a small model, as it is but for what the machine that plays both hosts
    lacks."""
    folder = hosts.folder / way
    computed = dict.fromkeys(
        ("max_seq_length", "batch_size", "num_steps", "lr", "warmup_ratio", "accumulate")
    )
    own = options(Job(setting), folder, dtype="float32", **dict.fromkeys(computed))
    plan = ["hparams.py", "--launch", "hvd", "--hostfile", hosts.hostfile, "--interface", INTERFACE]
    plan += ["--tokens_per_gpu", 1024, "--stage", 1, "--", *own]
    command = run_command(python(*plan)).check().stdout.replace(" python run_", f" {sys.executable} run_")
    command = command.replace("-bind-to socket", "-bind-to none --oversubscribe").partition("mpirun ")[2]
    words = [*hosts.prefix, "bash", "-c", f"exec mpirun {command}"]
    with start_command(words, timeout=SECONDS, env={**ENV, "PATH": hosts.path}, grace=60) as run:
        wait_for_step(run, folder, 5)
        run.signal(signal.SIGUSR1)
        result = run.wait()
    saved = result.returncode == 143 and any(folder.glob("*.params"))
    return "" if saved else result.describe()


def rank_on_beta(hosts: SshHosts) -> int:
    """Process id of the rank on the second host."""
    for pid, words in commands_on(hosts.holders[1], hosts.servers[1]):
        if "run_pretraining_" in " ".join(words[1:2]):
            return pid
    raise AssertionError("there is no rank on the second host")


def left_behind(hosts: SshHosts) -> str:
    try:
        hosts.wait_until_empty()
    except AssertionError as error:
        return str(error)
    return ""


PROGRAM = Program(
    "ssh",
    "runs over OpenSSH on two hosts and three: a rank killed, the wire cut, Ctrl-C, each fault of a host",
    "the undisturbed run's bits, nothing left",
    seconds=120,
    backends=("hvd_mpi", "byteps"),
    cases=cases,
    attempt=attempt,
    damages={
        name: Damage(named(hosts=2, way="kill"), "not the undisturbed run's", patch)
        for name, patch in (
            ("a restarted run begins at an older checkpoint's data", moved(1)),
            ("the optimizer's states begin anew", LOST_STATES),
        )
    },
    by_hand=True,
)
