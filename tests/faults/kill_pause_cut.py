"""Figure 7: a process of a run is killed, stopped, or cut off from the network: all others end in time, the
missing one is named, and nothing of them is left.

Who, how and when are a full product. To cut a process off, the run is spread over two hosts, two network
namespaces of this machine (tests/namespaces.py), and the wire between them is taken away.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from base.launchers import RUN_HOSTS
from tests.faults.figure import Damage, Parts, Program, Setting, Tally, named, shuffled
from tests.faults.jobs import (
    END_SECONDS,
    ONE_THREAD,
    SCRIPTS,
    STOPPING_ITSELF,
    UNNAMED,
    UNSEEN,
    WRITING,
    Job,
    corpus,
    find,
    is_stopped,
    last_step,
    starter,
    traces,
    wait_for_checkpoint,
    wait_for_joining,
    wait_for_step,
)
from tests.namespaces import ADDRESSES, INTERFACE, NAMES, TwoHosts, bound, two_hosts
from tests.processes import LIMIT, Run, RunResult, nothing_new, until
from training.checkpoint import newest_complete

WHO = {
    "hvd_mpi": ("0", "1", "launcher"),
    "hvd_gloo": ("0", "1", "launcher"),
    "byteps": ("0", "1", "server", "scheduler", "launcher"),
}
SIGNALS = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}
HOW = (*SIGNALS, "cut")
WHEN = ("start", "joining", "first steps", "steps", "saving")
INTERVAL = 10  # of checkpoints


@dataclass(frozen=True)
class Case:
    """Parts of a case's name, and the folder of its files."""

    who: str
    how: str
    when: str
    setting: Setting
    folder: Path

    @property
    def directory(self) -> Path:
        return self.folder / "ckpt"

    @property
    def launcher(self) -> str:
        return self.setting.launcher

    @property
    def limit(self) -> float:
        """Seconds from a failure, or from when it can be noticed, to the end of the last process."""
        return END_SECONDS if self.setting.calm else LIMIT

    @property
    def is_certain(self) -> bool:
        """Whether the ranks have met, or mpirun and BytePS's own processes look after their start: then who
        is missing is named by its process, and nobody ends with a traceback."""
        started = self.when in ("steps", "saving") or (self.when == "start" and self.launcher != "gloo")
        return started and self.who != "launcher" and self.how != "cut"


def cases(setting: Setting) -> list[str]:
    """The full product, in an order by the seed. A launcher has no wire of its own."""
    every = itertools.product(WHO[setting.backend], HOW, WHEN)
    wanted = (each for each in every if each[:2] != ("launcher", "cut"))
    return shuffled((named(who=who, how=how, when=when) for who, how, when in wanted), setting)


def attempt(setting: Setting, parts: Parts) -> Tally:
    """One of the product, with a shared memory and a folder for temporary files of its own."""
    folder = setting.folder("case")
    (folder / "tmp").mkdir()
    before = traces()
    with contextlib.ExitStack() as stack:
        # Of this case alone: others may be tried at the same time.
        memory = Path(stack.enter_context(TemporaryDirectory(dir="/dev/shm")))
        one = Case(**parts, setting=setting, folder=folder)
        hosts = stack.enter_context(two_hosts(folder, 1)) if one.how == "cut" else None
        failure = attacked(one, hosts, memory)
        left = [str(path) for path in (folder / "tmp").rglob("*")] + [path.name for path in memory.rglob("*")]
    nothing_new(before, traces)
    return Tally.of(failure or (f"left behind: {', '.join(sorted(left))}" if left else ""))


def attacked(case: Case, hosts: TwoHosts | None, memory: Path) -> str:
    """Starts a run, attacks it, waits for its end. Returns what is wrong; empty for nothing."""
    with start(case, hosts, memory) as run:
        victim = victim_of(case, run)
        if case.when == "joining":
            wait_for_joining(run, case.launcher, 0)
        elif case.when == "first steps":
            wait_for_step(run, case.directory, 1)
        elif case.when in ("steps", "saving"):
            wait_for_checkpoint(run, case.directory)
        if case.when == "saving":
            saving = find(run, case.launcher, 0)
            until(lambda: is_stopped(saving), run, pause=0.001)
        begun = last_step(case.directory)
        if hosts is not None:
            hosts.cut()
        else:
            os.kill(victim, SIGNALS[case.how])
        if case.when == "saving" and (case.who, case.how) != ("0", "stopped"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(saving, signal.SIGCONT)
        if case.when == "start" and case.how != "killed" and case.who != "launcher":
            # Those that are still importing cannot notice; the limit is theirs from when they join.
            wait_for_joining(run, case.launcher, 1 if case.who == "0" else 0)
        if (case.who, case.how) == ("launcher", "stopped"):
            return without_launcher(case, run, victim, begun)
        run.end_within(4 * case.limit)
        failed = time.monotonic()
        result = run.wait()  # raises when a process outlives the launcher by the grace
        seconds = time.monotonic() - failed
    return judged(case, result, seconds, victim)


def start(case: Case, hosts: TwoHosts | None, memory: Path) -> Run:
    """A run without an end, over two hosts if there are any."""
    stops_itself = ""
    if case.when == "saving":  # the second checkpoint
        moment = random.Random(case.who + case.how).choice(WRITING)
        stops_itself = STOPPING_ITSELF.format(step=INTERVAL + 1, moment=moment)
    job = Job(case.setting, patch=stops_itself)
    words = job.words(
        case.directory,
        data=corpus(case.setting) / "corpus" / "train-*.txt",
        num_steps="100000,1",
        batch_size="32,2",
        comm_timeout=5 if case.setting.calm else 20,  # on a busy machine two ranks do not join in 5 s
        log_interval=2,
        ckpt_interval=INTERVAL,
        keep_checkpoints=2,
    )
    launcher_args: list[Any] = []
    env: dict[str, Any] = {**ONE_THREAD, "TMPDIR": case.folder / "tmp"}
    # The kernel shows the run a shared memory of its own; only what the run itself leaves will be in it. That
    # needs root: without, nobody looks there.
    env["OMPI_MCA_btl_vader_backing_directory"] = None
    prefix = bound(memory, "/dev/shm") if os.geteuid() == 0 else []
    launcher = starter(case.setting)
    if launcher in ("byteps", "launch"):
        # The launcher also finds stopped parts; here the ranks shall.
        launcher_args += ["--stopped_timeout", 1000]
    if hosts is not None:
        prefix = [*hosts.prefix, *prefix]
        launcher_args += over_hosts(case, hosts)
        if launcher == "gloo":
            env["PATH"] = os.pathsep.join([str(hosts.agent.parent / "ssh"), os.environ["PATH"]])
            # As docs/network.md recommends; horovodrun does not announce it.
            env[RUN_HOSTS] = launcher_args[1]
    return job.start(words, env=env, launcher_args=launcher_args, grace=case.limit, prefix=prefix)


def over_hosts(case: Case, hosts: TwoHosts) -> list[Any]:
    """The launcher's words for two hosts; the launcher is on the first, whoever is to be cut off on the
    second."""
    order = ADDRESSES if case.who in ("1", "server", "scheduler") else ADDRESSES[::-1]
    hosts.hostfile.write_text("".join(f"{address} slots=1\n" for address in order), encoding="ascii")
    if starter(case.setting) == "gloo":
        return ["-H", ",".join(f"{address}:1" for address in order), "--network-interface", INTERFACE]
    if starter(case.setting) == "launch":
        return ["--hostfile", hosts.hostfile, "--ssh", hosts.agent, "--interface", INTERFACE]
    words = ["--hostfile", hosts.hostfile, "--ssh", hosts.agent]
    return [*words, *(["--scheduler", ADDRESSES[1]] if case.who == "scheduler" else [])]


def victim_of(case: Case, run: Run) -> int:
    """Process id of who is attacked; waits until it exists."""
    if case.who == "launcher":
        until(lambda: run.find(SCRIPTS[case.launcher]), run)
        return run.pid
    return find(run, case.launcher, case.who)


def without_launcher(case: Case, run: Run, victim: int, begun: int) -> str:
    """Looks whether the ranks go on while their launcher is stopped, and whether the run ends in order when
    it works again and is to stop: nobody is missing."""
    end = time.monotonic() + case.limit
    while begun and last_step(case.directory) < begun + 4 and time.monotonic() < end:
        time.sleep(0.1)
    going = not begun or last_step(case.directory) >= begun + 4
    os.kill(victim, signal.SIGCONT)
    os.kill(victim, signal.SIGUSR1 if case.launcher != "gloo" else signal.SIGTERM)
    failed = time.monotonic()
    result = run.wait()
    if not going:
        return f"with its launcher stopped, the run took no step: {result.describe(1500)}"
    if result.timed_out or time.monotonic() - failed > case.limit:
        return f"with its launcher going on, the run did not end: {result.describe(1500)}"
    return ""


def judged(case: Case, result: RunResult, seconds: float, victim: int) -> str:
    """Reason why the end of the run is not as it should be; empty if it is."""
    told = result.describe(1500)
    if result.timed_out or result.returncode == 0:
        return f"it did not end: {told}"
    if seconds > case.limit:
        return f"it ended after {seconds:.0f} s: {told}"
    said = result.stderr + "".join(rank.stderr for rank in result.ranks)
    # `Process name: 1` is horovodrun's word for a rank.
    reasons = re.findall(
        r".*(?:error: |mpirun noticed|launch(?:_byteps)?: |ORTE has lost|Process name:|exited with).*", said
    )
    # A launcher that is killed is named by whoever started it.
    if case.who != "launcher" and not any(name in line for line in reasons for name in names_of(case)):
        return f"nobody names {case.who}: {told}"
    if case.is_certain and case.how == "stopped" and f"pid {victim}" not in "\n".join(reasons):
        return f"nobody names process {victim}: {told}"
    if case.is_certain and "Traceback" in "".join(rank.stderr for rank in result.ranks):
        return f"a traceback: {told}"
    if case.when in ("steps", "saving"):
        damaged: list[str] = []
        if newest_complete(str(case.directory), damaged.append) is None:
            return f"no complete checkpoint is left: {' '.join(damaged)}"
    return ""


def names_of(case: Case) -> set[str]:
    """Names of who is missing, of which an error or the launcher must say one."""
    number = 0 if case.who == "0" else 1
    names = {f"rank {number}", f"Process name: {number}"} if case.who.isdigit() else {case.who}
    if case.how == "cut":  # all of the host is missing, and any of it may be named
        names |= {ADDRESSES[1], NAMES[1], f"rank {number}", f"server {number}"}
    return names


LEAVING = """
import subprocess
none = subprocess.DEVNULL
subprocess.Popen(["sleep", "600"], start_new_session=True, stdin=none, stdout=none, stderr=none)
"""
CASE = named(who="1", how="stopped", when="first steps")
KILLED = named(who="1", how="killed", when="first steps")
PROGRAM = Program(
    "7",
    "each rank, server, scheduler, launcher killed, stopped, cut off, at 5 moments",
    "all end within 30 s, named, nothing left",
    weight=3,
    seconds=45,
    cases=cases,
    attempt=attempt,
    damages={
        "signs of life are not looked at": Damage(CASE, "did not end|ended after", UNSEEN),
        # hosts/launch.py sees for itself which part was stopped.
        "nobody is named": Damage(CASE, "nobody names 1", UNNAMED, backends=("hvd_gloo",)),
        "a rank leaves something in shared memory": Damage(
            KILLED, "left behind: left-by-a-rank", 'open("/dev/shm/left-by-a-rank", "w").close()'
        ),
        # hosts/launch.py ends it.
        "a rank leaves a process": Damage(
            KILLED, r"still alive:\s+\d+ sleep 600", LEAVING, backends=("hvd_gloo",)
        ),
    },
    note="--comm_timeout 5; a run goes on while its launcher is stopped; cut off: under hosts/launch.py, "
    "which ends an mpirun that waits for the lost host, or horovodrun; mpirun does not always say which rank "
    "was killed if that was within milliseconds of its start",
)
