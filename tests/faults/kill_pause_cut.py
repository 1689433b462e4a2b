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
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterator

from base.launchers import RUN_HOSTS
from tests.faults.figure import Attempt, Damage, Program, Setting, Tally
from tests.faults.jobs import LIMIT, ONE_THREAD, SECONDS, TIMEOUT, Job, corpus, named, parsed, starter
from tests.faults.kill_at_boundary import metrics
from tests.faults.test_kill_pause_cut import catch_saving, find, traces, wait_for_checkpoint, wait_for_joining
from tests.namespaces import ADDRESSES, INTERFACE, NAMES, TwoHosts, bound, two_hosts
from tests.processes import Run, RunResult, start_ranks
from training.checkpoint import newest_complete

WHO = {
    "hvd_mpi": ("0", "1", "launcher"),
    "hvd_gloo": ("0", "1", "launcher"),
    "byteps": ("0", "1", "server", "scheduler", "launcher"),
}
HOW = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP, "cut": None}
WHEN = ("start", "joining", "first steps", "steps", "saving")
PATCHES = {
    "signs of life are not looked at": """
import comm.watch.heartbeat, comm.watch.watchdog
comm.watch.watchdog.WatchedCommunicator._end = lambda self, kind, text: None
""",
    "nobody is named": """
import comm.watch.watchdog
end = comm.watch.watchdog._end_process
comm.watch.watchdog._end_process = lambda message, rank, *rest: end("lost", rank)
""",
    "a rank leaves something in shared memory": """
open("/dev/shm/left-by-a-rank", "w").close()
""",
    "a rank leaves a process": """
import subprocess
subprocess.Popen(["sleep", "600"], start_new_session=True)
""",
}


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


def cases(setting: Setting) -> Iterator[str]:
    """The full product, in an order by the seed. A launcher has no wire of its own."""
    every = [
        named(who=who, how=how, when=when)
        for who, how, when in itertools.product(WHO[setting.backend], HOW, WHEN)
        if how != "cut" or who != "launcher"
    ]
    random.Random(setting.seed).shuffle(every)
    return iter(every)


@contextlib.contextmanager
def opened(setting: Setting) -> Iterator[Attempt]:
    """Tries a case, with a shared memory and a folder for temporary files of its own."""

    def attempt(case: str) -> Tally:
        folder = setting.work / "case"
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "tmp").mkdir(parents=True)
        memory = Path("/dev/shm") / f"{setting.shared.parent.name}-{setting.backend}"
        shutil.rmtree(memory, ignore_errors=True)
        memory.mkdir()
        before = traces()
        try:
            with contextlib.ExitStack() as stack:
                one = Case(**parsed(case), setting=setting, folder=folder)
                hosts = stack.enter_context(two_hosts(folder, 1)) if one.how == "cut" else None
                failure = attacked(one, hosts, memory)
            left = [str(path) for path in (folder / "tmp").rglob("*")] + [
                path.name for path in memory.rglob("*")
            ]
            left += sorted(traces() - before)
        finally:
            shutil.rmtree(memory, ignore_errors=True)
        return Tally.of(failure or (f"left behind: {', '.join(sorted(left))}" if left else ""))

    yield attempt


def attacked(case: Case, hosts: TwoHosts | None, memory: Path) -> str:
    """Starts a run, attacks it, waits for its end. Returns what is wrong; empty for nothing."""
    job = Job(case.setting, 1, PATCHES.get(case.setting.damage, ""))
    with start(job, case, hosts, memory) as run:
        victim = victim_of(case, run)
        wait_for_moment(case, run, job)
        saving = find(run, case.launcher, 0) if case.when == "saving" else None
        if saving is not None:
            catch_saving(saving, case.directory)
        begun = last_step(case)
        strike(case, victim, hosts)
        if saving is not None and (case.who, case.how) != ("0", "stopped"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(saving, signal.SIGCONT)
        if case.when == "start" and case.how != "killed" and case.who != "launcher":
            # Those that are still importing cannot notice; the limit is theirs from when they join.
            wait_for_joining(run, case.launcher, 1 if case.who == "0" else 0)
        if (case.who, case.how) == ("launcher", "stopped"):
            return without_launcher(case, run, victim, begun)
        failed = time.monotonic()
        result = run.wait()  # raises when a process outlives the launcher by the grace
        seconds = time.monotonic() - failed
    return judged(case, result, seconds, victim)


def start(job: Job, case: Case, hosts: TwoHosts | None, memory: Path) -> Run:
    """A run without an end, over two hosts if there are any."""
    text = corpus(case.setting)
    words = job.words(
        case.directory,
        data=text / "corpus" / "train-*.txt",
        num_steps="100000,1",
        batch_size="32,2",
        comm_timeout=TIMEOUT,
        log_interval=2,
        ckpt_interval=10,
        keep_checkpoints=2,
    )
    launcher_args: list[Any] = []
    env: dict[str, Any] = {**ONE_THREAD, "TMPDIR": case.folder / "tmp"}
    # The kernel shows the run a shared memory of its own; only what the run itself leaves will be in it.
    env["OMPI_MCA_btl_vader_backing_directory"] = None
    prefix = bound(memory, "/dev/shm")
    launcher = starter(case.setting)
    if launcher in ("byteps", "launch"):
        # The launcher also finds stopped parts; here the ranks shall.
        launcher_args += ["--stopped_timeout", 1000]
    if hosts is not None:
        prefix = [*hosts.prefix, *prefix]
        launcher_args += over_hosts(case, hosts)
        if launcher == "gloo":
            env["PATH"] = os.pathsep.join([str(hosts.agent.parent / "ssh"), os.environ["PATH"]])
            env[RUN_HOSTS] = launcher_args[
                1
            ]  # as docs/network.md recommends; horovodrun does not announce it
    return start_ranks(
        job.script,
        2,
        launcher,
        timeout=SECONDS,
        env=env,
        args=words,
        launcher_args=launcher_args,
        grace=LIMIT,
        prefix=prefix,
    )


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
        end = time.monotonic() + SECONDS
        while run.poll() is None and not run.find(
            "run_pretraining_" + ("byteps.py" if case.launcher == "byteps" else "hvd.py")
        ):
            assert time.monotonic() < end, "the ranks never came"
            time.sleep(0.02)
        return run.pid
    return find(run, case.launcher, int(case.who) if case.who.isdigit() else case.who)


def wait_for_moment(case: Case, run: Run, job: Job) -> None:
    """Waits for the moment of a case."""
    if case.when == "joining":
        wait_for_joining(run, case.launcher, 0)
    elif case.when == "first steps":
        end = time.monotonic() + SECONDS
        while not last_step(case):
            assert run.poll() is None, run.wait().describe()
            assert time.monotonic() < end, "no step was logged"
            time.sleep(0.02)
    elif case.when in ("steps", "saving"):
        wait_for_checkpoint(run, case.directory)


def strike(case: Case, victim: int, hosts: TwoHosts | None) -> None:
    """Kills or stops the victim, or takes its host's wire away."""
    number = HOW[case.how]
    if number is not None:
        os.kill(victim, number)
        return
    assert hosts is not None
    hosts.cut()


def last_step(case: Case) -> int:
    """The last step in the metrics; 0 for none."""
    return max((each["step"] for each in metrics(case.directory) if "lr" in each), default=0)


def without_launcher(case: Case, run: Run, victim: int, begun: int) -> str:
    """Looks whether the ranks go on while their launcher is stopped, and whether the run ends in order when
    it works again and is to stop: nobody is missing."""
    end = time.monotonic() + LIMIT
    while begun and last_step(case) < begun + 4 and time.monotonic() < end:
        time.sleep(0.1)
    going = not begun or last_step(case) >= begun + 4
    os.kill(victim, signal.SIGCONT)
    os.kill(victim, signal.SIGUSR1 if case.launcher != "gloo" else signal.SIGTERM)
    failed = time.monotonic()
    result = run.wait()
    if not going:
        return f"with its launcher stopped, the run took no step: {result.describe(1500)}"
    if result.timed_out or time.monotonic() - failed > LIMIT:
        return f"with its launcher going on, the run did not end: {result.describe(1500)}"
    return ""


def judged(case: Case, result: RunResult, seconds: float, victim: int) -> str:
    """Reason why the end of the run is not as it should be; empty if it is."""
    told = result.describe(1500)
    if result.timed_out or result.returncode == 0:
        return f"it did not end: {told}"
    if seconds > LIMIT:
        return f"it ended after {seconds:.0f} s: {told}"
    if case.who != "launcher" and not named_in(case, result, victim):
        return f"nobody names {case.who}: {told}"
    if case.when in ("steps", "saving"):
        damaged: list[str] = []
        if newest_complete(str(case.directory), damaged.append) is None:
            return f"no complete checkpoint is left: {' '.join(damaged)}"
    return ""


def named_in(case: Case, result: RunResult, victim: int) -> bool:
    """Whether a line of an error, or of the launcher, says who is missing; `Process name: 1` is horovodrun's
    word for a rank. A launcher that is killed is named by whoever started it."""
    said = result.stderr + "".join(rank.stderr for rank in result.ranks)
    reasons = re.findall(
        r".*(?:error: |mpirun noticed|launch(?:_byteps)?: |ORTE has lost|Process name:|exited with).*", said
    )
    number = 0 if case.who == "0" else 1
    names = {f"rank {number}", f"Process name: {number}"} if case.who.isdigit() else {case.who}
    if case.how == "cut":  # all of the host is missing, and any of it may be named
        names |= {ADDRESSES[1], NAMES[1], f"rank {number}", f"server {number}"}
    return any(name in line for line in reasons for name in names)


CASE = named(who="1", how="stopped", when="first steps")
KILLED = named(who="1", how="killed", when="first steps")
PROGRAM = Program(
    "7",
    "each rank, server, scheduler, launcher killed, stopped, cut off, at 5 moments",
    "all end within 30 s, named, nothing left",
    weight=3,
    seconds=45,
    cases=cases,
    opened=opened,
    damages={
        "signs of life are not looked at": Damage(CASE, "did not end|ended after"),
        # hosts/launch.py sees for itself which part was stopped.
        "nobody is named": Damage(CASE, "nobody names 1", ("hvd_gloo",)),
        "a rank leaves something in shared memory": Damage(KILLED, "left behind: left-by-a-rank"),
        "a rank leaves a process": Damage(KILLED, r"still alive:\s+\d+ sleep 600"),
    },
    note="--comm_timeout 5; a run goes on while its launcher is stopped; cut off: under hosts/launch.py, "
    "which ends an mpirun that waits for the lost host, or horovodrun; mpirun does not always say which rank "
    "was killed if that was within milliseconds of its start",
)
