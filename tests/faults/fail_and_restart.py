"""Restarts: random failures in a run under hosts/launch.py, which starts it again each time, and the end has
the bits of a run that nothing happened to.

The run is spread over two hosts, two network namespaces of this machine (tests/namespaces.py), so that the
wire between them can be taken out and put back. Its checkpoints are on a small disk of their own, which can
be filled."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping, Sequence

from hosts.launching.saved import logged_step
from tests.faults.disks import fill, small_disk
from tests.faults.figure import Damage, Parts, Program, Setting, Tally, named
from tests.faults.jobs import (
    LOST_STATES,
    ONE_THREAD,
    SCRIPTS,
    Job,
    differences,
    find,
    has_joined,
    json_lines,
    moved,
    python,
    undamaged,
    unfinished,
)
from tests.namespaces import ADDRESSES, INTERFACE, SPARE_ADDRESS, TwoHosts, two_hosts
from tests.processes import ROOT, Run, start_command
from training.checkpoint import list_steps

FAILURES = 20
BETWEEN = 15  # steps, at least one checkpoint, between two failures
INTERVAL = 5
LIMIT = 90.0  # seconds from a failure until the run goes on
LONGEST = 7200.0  # seconds for all of them
CUT, FULL_DISK = "cut", "full disk"
LOST = "lose the second host"  # for which a spare one goes on
PHASES = ("noticing", "saving", "ending", "starting", "importing", "reading")  # from a failure to a step
KINDS = {"hvd_mpi": ["kill 0", "kill 1", "stop 0", "stop 1", CUT, FULL_DISK]}
KINDS["byteps"] = [*KINDS["hvd_mpi"], "kill server", "stop server", "kill scheduler"]
RESTART = re.compile(r"^launch: restart (\d+) at ", re.MULTILINE)
# docs/ssh.md: the fields of a restart after a failure.
FIELDS = {
    *("restart", "time", "reason", "failed", "host", "code", "kind", "how", "last_words", "step"),
    *("lost_steps", "lost_s", "wait_s", "restarts_left", "hosts", "left_out"),
}


def cases(setting: Setting) -> Iterator[str]:
    """Endless: runs with other failures each; the first ones are short."""
    draw = random.Random(setting.seed)
    yield named(failures=3, seed=draw.randrange(10**6))
    while True:
        yield named(failures=FAILURES, seed=draw.randrange(10**6))


def attempt(setting: Setting, parts: Parts) -> Tally:
    """A run with its failures, after an undisturbed one of as many steps."""
    failures, draw = int(parts["failures"]), random.Random(int(parts["seed"]))
    expected = setting.work / f"whole-{failures}"
    with small_disk(setting.folder("disks") / "disk", "64M") as disk, two_hosts(setting.work) as hosts:
        directory = disk / "run"
        if not (expected / "results.json").exists():
            started(Job(undamaged(setting)), expected, hosts, **options(failures)).finish()
        with started(Job(setting), directory, hosts, **options(failures)) as run:
            attack, texts = Attack(run, setting, hosts, directory), []
            for number, kind in enumerate(kinds(KINDS[setting.backend], failures, draw)):
                attack.wait_for_step(number * BETWEEN + draw.randrange(INTERVAL + 1, BETWEEN))
                texts.append(misreported(attack.strike(kind)))
            result = run.wait().check()
        texts += [*reported(result.stderr, directory, failures), differences(directory, expected)]
    return Tally.of(*texts, tried=failures)


def kinds(every: Sequence[str], failures: int, draw: random.Random) -> list[str]:
    """Failures in random order, each kind as often as the others, but for one."""
    every, drawn = list(every), []
    while len(drawn) < failures:
        draw.shuffle(every)
        drawn += every
    return drawn[:failures]


def options(failures: int) -> dict[str, Any]:
    """Options of the run; failures may come in both stages."""
    first = (failures + 1) // 2 * BETWEEN
    steps = f"{first},{(failures + 1) * BETWEEN - first}"
    return {"num_steps": steps, "ckpt_interval": INTERVAL, "keep_checkpoints": 3}


def started(job: Job, directory: Path, hosts: TwoHosts, more: Sequence[str] = (), **changes: Any) -> Run:
    """A run under the launcher, on the first host; `more` options of that, `changes` of the script's."""
    backend = job.setting.backend.partition("_")[0]
    words = python(ROOT / "hosts" / "launch.py", "--hostfile", hosts.hostfile, "--backend", backend)
    words += ["--ssh", hosts.agent, "--interface", INTERFACE, "--backoff", "0.1", *more, "--"]
    script = python(job.script, *job.words(directory, **{"comm_timeout": 5, **changes}))
    return start_command([*hosts.prefix, *words, *script], timeout=LONGEST, env=ONE_THREAD, grace=30.0)


@dataclass(frozen=True)
class Recovery:
    """Sequel of a failure on `hosts`: the launcher's record, and the seconds that each of PHASES took; one
    that did not come, as where nothing was saved, is in the next one's."""

    kind: str
    hosts: Sequence[str]
    record: Mapping[str, Any]
    phases: Mapping[str, float]

    @property
    def seconds(self) -> float:
        """Seconds from the failure to the next step."""
        return sum(self.phases.values())


@dataclass(frozen=True)
class Attack:
    """Failures of a run, one after the other."""

    run: Run
    setting: Setting
    hosts: TwoHosts
    directory: Path

    def wait_for_step(self, step: int) -> None:
        """Waits for a step, as `wait` does."""
        self.wait(lambda: logged_step(str(self.directory)) >= step, f"step {step}", 300.0)

    def strike(self, kind: str) -> Recovery:
        """Lets one thing fail, and waits until the run goes on.

        Raises:
            AssertionError: the run ended, or did not go on in time.
        """
        run, folder = self.run, str(self.directory)
        restarts = len(RESTART.findall(run.stderr()))
        saved, old = max(list_steps(folder), default=0), set(self._ranks())
        logged = [0]

        def again() -> bool:
            if not logged[0] and len(RESTART.findall(run.stderr())) > restarts:
                logged[0] = logged_step(folder)
            return logged[0] > 0

        def is_saved() -> bool:
            return max(list_steps(folder), default=0) > saved

        def started() -> list[int]:
            return [pid for pid in self._ranks() if pid not in old] if again() else []

        tests: Sequence[Callable[[], Any]] = (
            lambda: unfinished(self.directory) or is_saved(),
            is_saved,
            again,
            started,
            lambda: any(has_joined(pid, self.setting.launcher) for pid in started()),
            lambda: again() and logged_step(folder) > logged[0],
        )
        times: list[float] = []  # of the ends of phases

        def look() -> bool:
            for phase in reversed(range(len(times), len(PHASES))):
                if tests[phase]():
                    times.extend([time.monotonic()] * (phase + 1 - len(times)))
                    break
            return len(times) == len(PHASES)

        def wait(reached: Callable[[], Any]) -> None:
            self.wait(reached, f"{kind} after step {saved}", begun + LIMIT - time.monotonic())

        how, _, who = kind.partition(" ")
        restarted = self.directory / "restarts.jsonl"
        numbers = [self._host_of(rank) for rank in (0, 1)]
        hosts, second = [[*ADDRESSES, SPARE_ADDRESS][number] for number in numbers], numbers[1]
        filled = self.directory.parent / "filled"
        begun = time.monotonic()
        with ExitStack() as undo:  # also where the run does not go on: the next failure shall be the only one
            if kind == FULL_DISK:
                undo.callback(filled.unlink)
                fill(filled)
                wait(lambda: look() or again())
            elif kind == CUT:
                undo.callback(self.hosts.mend, second)
                silent = run.stderr().count("does not answer")
                self.hosts.cut(second)
                wait(lambda: look() or run.stderr().count("does not answer") > silent)
            elif kind == LOST:
                undo.callback(self.hosts.give_back, second)
                self.hosts.lose(second)
                wait(look)
            else:
                victim = find(run, self.setting.launcher, who)
                begun = time.monotonic()
                os.kill(victim, signal.SIGKILL if how == "kill" else signal.SIGSTOP)
        wait(look)
        phases = {name: end - start for name, start, end in zip(PHASES, [begun, *times], times)}
        record = next((each for each in json_lines(restarted) if each.get("restart") == restarts + 1), {})
        return Recovery(kind, hosts, record, phases)

    def _host_of(self, rank: int) -> int:
        """The number of the host of a rank, which may be the spare one."""
        pid = find(self.run, self.setting.launcher, rank)
        networks = [os.stat(f"/proc/{each}/ns/net").st_ino for each in (pid, *self.hosts.holders)]
        return networks.index(networks[0], 1) - 1

    def _ranks(self) -> list[int]:
        return self.run.find(SCRIPTS[self.setting.launcher])

    def wait(self, reached: Callable[[], Any], what: str, seconds: float) -> None:
        """Waits for `reached()`. Raises AssertionError if the run ended, or it took too long."""
        end = time.monotonic() + seconds
        while not reached():
            assert self.run.poll() is None, self.run.wait().describe()
            assert time.monotonic() < end, f"not in time: {what}\n{self.run.stderr()[-3000:]}"
            time.sleep(0.01)


def misreported(recovery: Recovery) -> str:
    """Describes what is wrong with the record of a failure; empty for nothing."""
    kind, record = recovery.kind, recovery.record
    how, _, who = kind.partition(" ")
    if who in ("0", "1") and record.get("host") != recovery.hosts[int(who)]:
        return f"{kind}: another host is named: {record}"
    if how == "kill" and who.isalpha() and not str(record.get("failed")).startswith(who):
        return f"{kind}: another part is named: {record}"
    return ""


def reported(said: str, directory: Path, failures: int) -> Iterator[str]:
    """Yields what is wrong with restarts.jsonl as a whole. A restart that it lacks was said to be: the disk
    was full."""
    lines = json_lines(directory / "restarts.jsonl")
    numbers = [int(number) for number in RESTART.findall(said)]
    if numbers != list(range(1, len(numbers) + 1)) or len(numbers) < failures:
        yield f"{failures} failures, restarts {numbers}"
    found = [line["restart"] for line in lines]
    if sorted(set(found)) != found or len(found) + said.count("this restart is not in it") != len(numbers):
        yield f"restarts.jsonl has {found} of {len(numbers)} restarts"
    steps = [line["step"] for line in lines]
    if steps != sorted(steps) or any(set(line) != FIELDS or line["reason"] != "failure" for line in lines):
        yield f"restarts.jsonl: {lines}"


PROGRAM = Program(
    "restarts",
    "random failures in a run under hosts/launch.py: kills, stops, the wire cut and mended, the disk full",
    "20 of 20, the undisturbed run's bits",
    weight=2,
    seconds=150,
    backends=("hvd_mpi", "byteps"),
    cases=cases,
    attempt=attempt,
    damages={
        name: Damage(named(failures=1, seed=1), "not the undisturbed run's", patch)
        for name, patch in (
            ("a restarted run begins at an older checkpoint's data", moved(1)),
            ("the optimizer's states begin anew", LOST_STATES),
        )
    },
    note="mpirun and BytePS only, which hosts/launch.py starts; two hosts, network namespaces of one machine",
)
