"""Restarts: random failures in a run under hosts/launch.py, which starts it again each time, and the end has
the bits of a run that nothing happened to.

The run is spread over two hosts, two network namespaces of this machine (tests/namespaces.py), so that the
wire between them can be taken out and put back. Its checkpoints are on a small disk of their own, which can
be filled."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterator

from tests.faults.disks import fill, small_disk
from tests.faults.figure import Damage, Parts, Program, Setting, Tally, named
from tests.faults.jobs import (
    ONE_THREAD,
    Job,
    differences,
    find,
    last_step,
    metrics,
    moved,
    python,
    rescued_steps,
    undamaged,
)
from tests.namespaces import ADDRESSES, INTERFACE, TwoHosts, two_hosts
from tests.processes import ROOT, Run, start_command

FAILURES = 20
BETWEEN = 15  # steps, at least one checkpoint, between two failures
INTERVAL = 5
LIMIT = 90.0  # seconds from a failure until the run goes on
LONGEST = 1800.0  # seconds for all of them
CUT, FULL_DISK = "cut", "full disk"
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
            with started(Job(undamaged(setting)), expected, failures, hosts) as run:
                run.wait().check()
        with started(Job(setting), directory, failures, hosts) as run:
            attack = Attack(run, setting, hosts, directory)
            texts = [
                attack.strike(kind, number * BETWEEN + draw.randrange(INTERVAL + 1, BETWEEN))
                for number, kind in enumerate(kinds(setting, failures, draw))
            ]
            result = run.wait().check()
        texts += [*reported(result.stderr, directory, failures), differences(directory, expected)]
        steps = [each["step"] for each in metrics(directory) if "lr" in each]
        missing = set(range(1, max(steps) + 1)) - set(steps) - rescued_steps(directory)
        texts += ["steps are missing, or twice"] if missing or len(set(steps)) < len(steps) else []
    return Tally.of(*texts, tried=failures)


def kinds(setting: Setting, failures: int, draw: random.Random) -> list[str]:
    """Failures in random order, each kind as often as the others, but for one."""
    every = list(KINDS[setting.backend])
    drawn: list[str] = []
    while len(drawn) < failures:
        draw.shuffle(every)
        drawn += every
    return drawn[:failures]


def started(job: Job, directory: Path, failures: int, hosts: TwoHosts) -> Run:
    """The run under the launcher, a rank on each host; failures may come in both stages."""
    first = (failures + 1) // 2 * BETWEEN
    backend = "hvd" if job.setting.launcher == "mpirun" else "byteps"
    words = python(ROOT / "hosts" / "launch.py", "--hostfile", hosts.hostfile, "--backend", backend)
    more = ["--ssh", str(hosts.agent), "--interface", INTERFACE, "--backoff", "0.1", "--"]
    options = job.words(
        directory,
        num_steps=f"{first},{(failures + 1) * BETWEEN - first}",
        ckpt_interval=INTERVAL,
        keep_checkpoints=3,
        log_interval=1,
        comm_timeout=5,
    )
    command = [*hosts.prefix, *words, *more, *python(job.script, *options)]
    return start_command(command, timeout=LONGEST, env=ONE_THREAD, grace=30.0)


@dataclass(frozen=True)
class Attack:
    """Failures of a run, one after the other."""

    run: Run
    setting: Setting
    hosts: TwoHosts
    directory: Path

    def strike(self, kind: str, step: int) -> str:
        """Lets one thing fail after a step, and waits until the run goes on. Returns what its record has
        wrong.

        Raises:
            AssertionError: the run ended, or did not go on in time.
        """
        self._wait(lambda: last_step(self.directory) >= step, f"step {step}", 300.0)
        restarts = len(RESTART.findall(self.run.stderr()))
        end = time.monotonic() + LIMIT

        def wait(reached: Callable[[], bool], what: str) -> None:
            self._wait(reached, f"{kind} after step {step}: {what}", end - time.monotonic())

        def again() -> bool:
            return len(RESTART.findall(self.run.stderr())) > restarts

        how, _, who = kind.partition(" ")
        if kind == FULL_DISK:
            filled = self.directory.parent / "filled"
            fill(filled)
            wait(again, "a restart")
            filled.unlink()
        elif kind == CUT:
            silent = self.run.stderr().count("does not answer")
            self.hosts.cut()
            wait(lambda: self.run.stderr().count("does not answer") > silent, "a host that does not answer")
            self.hosts.mend()
        else:
            victim = find(self.run, self.setting.launcher, int(who) if who.isdigit() else who)
            os.kill(victim, signal.SIGKILL if how == "kill" else signal.SIGSTOP)
        wait(again, "a restart")
        logged = last_step(self.directory)
        wait(lambda: last_step(self.directory) > logged, "the next step")
        record = next((each for each in records(self.directory) if each.get("restart") == restarts + 1), {})
        return misreported(kind, record)

    def _wait(self, reached: Callable[[], bool], what: str, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not reached():
            assert self.run.poll() is None, self.run.wait().describe()
            assert time.monotonic() < end, f"not in time: {what}\n{self.run.stderr()[-3000:]}"
            time.sleep(0.02)


def misreported(kind: str, record: dict[str, Any]) -> str:
    """Describes what is wrong with the record of a failure; empty for nothing."""
    how, _, who = kind.partition(" ")
    if who in ("0", "1") and record.get("host") != ADDRESSES[int(who)]:
        return f"{kind}: another host is named: {record}"
    if how == "kill" and who.isalpha() and not str(record.get("failed")).startswith(who):
        return f"{kind}: another part is named: {record}"
    return ""


def records(directory: Path) -> list[dict[str, Any]]:
    """The lines of restarts.jsonl."""
    with contextlib.suppress(FileNotFoundError):
        return [json.loads(line) for line in (directory / "restarts.jsonl").read_bytes().splitlines()]
    return []


def reported(said: str, directory: Path, failures: int) -> Iterator[str]:
    """Yields what is wrong with restarts.jsonl as a whole. A restart that it lacks was said to be: the disk
    was full."""
    lines = records(directory)
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
        "a restarted run begins at an older checkpoint's data": Damage(
            named(failures=1, seed=1), "not the undisturbed run's", moved(1)
        )
    },
    note="mpirun and BytePS only, which hosts/launch.py starts; two hosts, network namespaces of one machine",
)
