"""Figure 8: signals at random moments: the code, the checkpoint, and the resumed run."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator

from tests.faults.figure import Damage, Parts, Program, Setting, Tally, named
from tests.faults.jobs import LAST, Job, differences, last_step, starter, unsaved, whole
from tests.processes import Run, RunResult, until
from training.checkpoint import newest_complete

SIGNALS = ("SIGTERM", "SIGUSR1", "SIGINT")
CODES = {"SIGTERM": 143, "SIGUSR1": 143, "SIGINT": 130}
# Signals that a launcher passes on in time. horovodrun passes none on.
BY_LAUNCHER = {"mpirun": ("SIGUSR1",), "launch": SIGNALS, "gloo": (), "byteps": SIGNALS}
SAVING = "saving"
STEP = "step +"
SAVING_SHARE, STEP_SHARE = 0.2, 0.3  # of the signals: while a checkpoint is being written, behind a step
FURTHER = 6  # steps that a launch takes at most before a signal behind a step
EACH = 5  # signals to one run


@dataclass(frozen=True)
class Blow:
    """A signal, to whom, and when: a share of the time that an undisturbed run would still take, start-up
    included, a number of steps after the launch's first, or while it saves."""

    signal: str
    to: str
    at: str

    def __str__(self) -> str:
        return f"{self.signal} to {self.to} at {self.at}"

    @classmethod
    def of(cls, text: str) -> Blow:
        """Reads what `str` gives."""
        name, _, rest = text.partition(" to ")
        return cls(name, *rest.split(" at ", 1))


def cases(setting: Setting) -> Iterator[str]:
    """Endless: runs with the signals that they get, one a launch."""
    draw = random.Random(setting.seed)
    while True:
        yield named(**{str(number): blow(draw, starter(setting)) for number in range(1, EACH + 1)})


def blow(draw: random.Random, launcher: str) -> Blow:
    """One signal at random."""
    name = draw.choice(SIGNALS)
    to = draw.choice(["ranks", "rank", *(["launcher"] if name in BY_LAUNCHER[launcher] else [])])
    moment, step, kind = draw.random(), draw.randrange(1, FURTHER + 1), draw.random()
    at = SAVING if kind < SAVING_SHARE else f"{moment:.3f}"
    if SAVING_SHARE <= kind < SAVING_SHARE + STEP_SHARE:
        at = f"{STEP}{step}"
    return Blow(name, to, at)


def attempt(setting: Setting, parts: Parts) -> Tally:
    """A run that is stopped, resumed, stopped again and so on, to its end. What each launch has done is in
    the end: a stopped one saves."""
    expected, directory, job = whole(setting), setting.folder("run"), Job(setting)
    sent = 0
    for text in parts.values():
        one = Blow.of(text)
        with job.start(job.words(directory)) as run:
            begun = last_step(directory)
            wait_until(one.at, run, job, directory, duration(expected) * (1 - begun / LAST / 2))
            if run.poll() is not None:  # over before the moment came
                run.wait().check()
                break
            before = last_step(directory)
            send(run, job, one)
            result = run.wait()
        sent += 1
        failure = judged(result, CODES[one.signal], setting, directory, (begun, before))
        if failure:
            return Tally.of(f"{one}: {failure}: {result.describe(1500)}", tried=sent)
    job.start(job.words(directory)).finish()
    return Tally.of(differences(directory, expected), tried=sent)


def duration(directory: Path) -> float:
    """Seconds from the first file to the last of an undisturbed run, and as long again: processes start."""
    times = [path.stat().st_mtime for path in directory.glob("[0-9]*.json")]
    return 2 * (max(times) - min(times)) + 5.0


def wait_until(at: str, run: Run, job: Job, directory: Path, seconds: float) -> None:
    """Waits until the ranks exist, and then for the moment of a case, or the run's end."""
    until(lambda: run.poll() is not None or len(run.find(job.script.name)) == 2)
    waits = at == SAVING or at.startswith(STEP)
    begun = last_step(directory)
    end = time.monotonic() + (run.timeout if waits else float(at) * seconds)
    while run.poll() is None and time.monotonic() < end:
        if at == SAVING and any(directory.glob("[0-9]*.tmp-*")):
            return
        if at.startswith(STEP) and last_step(directory) >= begun + int(at[len(STEP) :]):
            return
        time.sleep(0.0005 if waits else 0.01)


def send(run: Run, job: Job, one: Blow) -> None:
    """Sends a signal."""
    number = signal.Signals[one.signal]
    ranks = run.find(job.script.name)
    pids = {"ranks": ranks, "rank": ranks[-1:], "launcher": [run.pid]}[one.to]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def judged(result: RunResult, code: int, setting: Setting, directory: Path, steps: tuple[int, int]) -> str:
    """Reason why a stopped run is not as it should be; empty if it is. `steps`: those logged last when it
    was started, and when the signal was sent."""
    gloo = setting.backend == "hvd_gloo"
    said = "".join(rank.stdout + rank.stderr for rank in result.ranks)
    said += "" if gloo else result.stderr + result.stdout  # horovodrun ends with a traceback of its own
    begun, before = steps
    if result.timed_out:
        return "it did not end"
    finished = (directory / f"{LAST:07d}.json").exists() and result.returncode == 0
    # horovodrun has a code of its own for whatever a rank ends with.
    if not finished and result.returncode not in ({1, code} if gloo else {code}):
        return f"code {result.returncode} in place of {code}"
    if before > begun and "Traceback" in said:
        return f"a traceback: {said[said.index('Traceback') :][:3000]}"
    damaged: list[str] = []
    newest = newest_complete(str(directory), damaged.append) if directory.is_dir() else None
    step = newest.step if newest else 0
    if step < before:
        return f"step {before} had been taken, and the newest checkpoint is that of step {step}"
    stopped = re.findall(r"stopped by a signal after step (\d+)", said)
    if stopped and int(stopped[-1]) != step:
        return (
            f"it says that it stopped after step {stopped[-1]}, the newest checkpoint is that of step {step}"
        )
    return ""


CASE = named(**{"1": Blow("SIGUSR1", "ranks", f"{STEP}6")})
PROGRAM = Program(
    "8",
    "SIGTERM, SIGUSR1, SIGINT at random moments: code, checkpoint, resumed to the undisturbed run's bits",
    "50 of 50",
    weight=1.5,
    seconds=60,
    cases=cases,
    attempt=attempt,
    damages={
        "signals are not listened to": Damage(
            CASE,
            "the newest checkpoint is that|code 138",
            "import training.loop\ntraining.loop.StopRequest.listen = lambda self, failed: None",
        ),
        "a stopped run saves nothing": Damage(CASE, "the newest checkpoint is that", unsaved()),
        "a stopped run ends with code 0": Damage(
            CASE,
            "code 0 in place of 143",
            """
import training.train
train_stages = training.train.train_stages
training.train.train_stages = lambda *given, **named: train_stages(*given, **named) % 143
""",
        ),
    },
    note="to one rank, to all, or to the launcher if it passes signals on; horovodrun has code 1 for any end",
)
