"""Restarts: random failures in a run under hosts/launch.py, which starts it again each time, and the end has
the bits of a run that nothing happened to."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Iterator

from tests.killing import metrics
from tests.processes import ROOT, Run, start_command
from tests.reliability.figure import Attempt, Damage, Program, Setting, Tally
from tests.reliability.jobs import (
    ONE_THREAD,
    Job,
    named,
    parsed,
    python,
)
from tests.test_failure import find

FAILURES = 20
BETWEEN = 15  # steps, at least one checkpoint, between two failures
INTERVAL = 5
LIMIT = 90.0  # seconds from a failure until the run goes on
KINDS = {"hvd_mpi": ("kill 0", "kill 1", "stop 0", "stop 1", "full disk")}
KINDS["byteps"] = (*KINDS["hvd_mpi"], "kill server", "stop server", "kill scheduler")
DISK = 64 << 20
LOST = "a restarted run begins at an older checkpoint's data"
PATCHES = {
    LOST: """
import training.run
place = training.run.position_to_continue
def skip(start, *rest, **named):
    position, messages = place(start, *rest, **named)
    return position + (start.step > 0), messages
training.run.position_to_continue = skip
"""
}


def cases(setting: Setting) -> Iterator[str]:
    """Endless: runs with other failures each; the first ones are short."""
    draw = random.Random(setting.seed)
    yield named(failures=3, seed=draw.randrange(10**6))
    while True:
        yield named(failures=FAILURES, seed=draw.randrange(10**6))


@contextlib.contextmanager
def opened(setting: Setting) -> Iterator[Attempt]:
    """Tries a case: a run whose checkpoints are on a small disk of their own."""
    disk = setting.work / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(disk)], check=True)

    def attempt(case: str) -> Tally:
        parts = parsed(case)
        failures, draw = int(parts["failures"]), random.Random(int(parts["seed"]))
        steps = f"{failures * BETWEEN},{BETWEEN}"
        expected, directory = setting.work / f"whole-{failures}", disk / "run"
        shutil.rmtree(directory, ignore_errors=True)
        if not (expected / "results.json").exists():
            with started(Job(setting), expected, steps) as run:
                run.wait().check()
        lost = 0.0
        with started(Job(setting, 1, PATCHES.get(setting.damage, "")), directory, steps) as run:
            for number in range(failures):
                after = number * BETWEEN + draw.randrange(INTERVAL + 1, BETWEEN)
                kind = draw.choice(KINDS[setting.backend])
                wait_for_step(run, directory, after)
                fail(run, setting, kind, directory)
                begun = time.monotonic()
                wait_for_step(run, directory, last_step(directory) + 1, LIMIT)
                lost += time.monotonic() - begun
            result = run.wait().check()
        noted = (directory / "restarts.jsonl").read_text(encoding="utf-8").splitlines()
        if len([json.loads(line) for line in noted]) < failures:
            return Tally.of(f"{failures} failures, {len(noted)} restarts: {result.describe(1500)}")
        return Tally(
            failures, failures - bool(texts := unlike(directory, expected)), (texts,) if texts else ()
        )

    try:
        yield attempt
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def started(job: Job, directory: Path, steps: str) -> Run:
    """The run under the launcher, on this machine."""
    hvd = job.setting.launcher == "mpirun"
    hosts = job.setting.work / "hosts"
    hosts.write_text("localhost slots=2\n" if hvd else "localhost slots=1\n" * 2, encoding="ascii")
    words = python(ROOT / "hosts" / "launch.py", "--hostfile", hosts, "--backend", "hvd" if hvd else "byteps")
    options = job.words(
        directory, num_steps=steps, ckpt_interval=INTERVAL, keep_checkpoints=3, log_interval=1, comm_timeout=5
    )
    command = [*words, "--backoff", "0.1", "--", *python(job.script, *options)]
    return start_command(command, timeout=3600.0, env=ONE_THREAD, grace=30.0)


def last_step(directory: Path) -> int:
    """The last step in the metrics; 0 for none."""
    return max((each["step"] for each in metrics(directory) if "lr" in each), default=0)


def wait_for_step(run: Run, directory: Path, step: int, seconds: float = 300.0) -> None:
    """Waits until a step is in the metrics.

    Raises:
        AssertionError: the run ended before, or it took too long.
    """
    end = time.monotonic() + seconds
    while last_step(directory) < step:
        assert run.poll() is None, run.wait().describe()
        assert time.monotonic() < end, f"step {step} did not come within {seconds:g} s"
        time.sleep(0.01)


def fail(run: Run, setting: Setting, kind: str, directory: Path) -> None:
    """Lets one thing fail."""
    how, _, who = kind.partition(" ")
    if kind == "full disk":
        filled = directory.parent / "filled"
        with contextlib.suppress(OSError), filled.open("wb") as file:
            while True:
                file.write(bytes(1 << 20))
        end, before = time.monotonic() + LIMIT, set(run.find(SCRIPT[setting.backend]))
        while before & set(run.find(SCRIPT[setting.backend])) and time.monotonic() < end:
            time.sleep(0.05)
        filled.unlink()
        assert time.monotonic() < end, "a full disk does not end the run"
        return
    victim = find(run, setting.launcher, int(who) if who.isdigit() else who)
    os.kill(victim, signal.SIGKILL if how == "kill" else signal.SIGSTOP)


SCRIPT = {"hvd_mpi": "run_pretraining_hvd.py", "byteps": "run_pretraining_byteps.py"}


def unlike(directory: Path, expected: Path) -> str:
    """Names of what differs between the ends of two runs."""
    names = [path.name for path in expected.iterdir() if path.suffix in (".params", ".npz")]
    found = [name for name in names if (directory / name).read_bytes() != (expected / name).read_bytes()]
    found += ["metrics.jsonl"] if metrics(directory) != metrics(expected) else []
    return f"not the undisturbed run's: {', '.join(found)}" if found else ""


PROGRAM = Program(
    "restarts",
    "random failures in a run under hosts/launch.py: killed, stopped, a full disk that empties",
    "20 of 20, the undisturbed run's bits",
    weight=2,
    seconds=120,
    backends=("hvd_mpi", "byteps"),
    cases=cases,
    opened=opened,
    damages={LOST: Damage(named(failures=1, seed=1), "not the undisturbed run's")},
    note="mpirun and BytePS only, which hosts/launch.py starts",
)
