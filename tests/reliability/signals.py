"""Figure 8: signals at random moments: the code, the checkpoint, and the resumed run."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import time
from pathlib import Path
from typing import Iterator

from tests.killing import metrics
from tests.processes import Run, RunResult
from tests.reliability.figure import Attempt, Damage, Program, Setting, Tally
from tests.reliability.jobs import LAST, SECONDS, Job, differences, named, parsed, starter, whole
from training.checkpoint import newest_complete

SIGNALS = ("SIGTERM", "SIGUSR1", "SIGINT")
CODES = {"SIGTERM": 143, "SIGUSR1": 143, "SIGINT": 130}
# Signals that a launcher passes on in time. horovodrun passes none on.
BY_LAUNCHER = {"mpirun": ("SIGUSR1",), "launch": SIGNALS, "gloo": (), "byteps": SIGNALS}
SAVING = "saving"
STEP = "step "
SAVING_SHARE, STEP_SHARE = 0.2, 0.3  # of the cases: while a checkpoint is being written, behind a step
START, LONGEST = 0.0, 1.0  # moments: shares of an undisturbed run's time
PATCHES = {
    "signals are not listened to": """
import training.loop
training.loop.StopRequest.listen = lambda self: None
""",
    "a stopped run saves nothing": """
import training.loop
save = training.loop.Loop._save
training.loop.Loop._save = lambda self, *given: save(self, *given) if self.stop.exit_code is None else None
""",
    "a stopped run ends with code 0": """
import training.loop
training.loop.StopRequest._note = lambda self, number, frame: setattr(self, "exit_code", 256)
""",
}


def cases(setting: Setting) -> Iterator[str]:
    """Endless: a signal, to whom, and a share of an undisturbed run's time, a step, or while it saves."""
    draw = random.Random(setting.seed)
    while True:
        name = draw.choice(SIGNALS)
        to = draw.choice(["ranks", "rank", *(["launcher"] if name in BY_LAUNCHER[starter(setting)] else [])])
        moment, step, kind = draw.uniform(START, LONGEST), draw.randrange(1, LAST), draw.random()
        at = SAVING if kind < SAVING_SHARE else f"{moment:.3f}"
        if SAVING_SHARE <= kind < SAVING_SHARE + STEP_SHARE:
            at = f"{STEP}{step}"
        yield named(signal=name, to=to, at=at)


@contextlib.contextmanager
def opened(setting: Setting) -> Iterator[Attempt]:
    """Tries a case: a run that is stopped, and resumed."""

    def attempt(case: str) -> Tally:
        parts = parsed(case)
        expected = whole(setting)
        job = Job(setting, 1, PATCHES.get(setting.damage, ""))
        directory = setting.work / "run"
        shutil.rmtree(directory, ignore_errors=True)
        with job.start(directory) as run:
            wait_until(parts["at"], run, job, directory, duration(expected))
            if run.poll() is not None:
                run.wait().check()
                return Tally(0, 0)  # over before the moment came
            before = last_logged(directory)
            send(run, job, parts)
            result = run.wait()
        failure = judged(result, parts["signal"], setting, directory, before)
        if failure:
            return Tally.of(f"{failure}: {result.describe(1500)}")
        with job.start(directory) as run:
            run.wait().check()
        return Tally.of(differences(directory, expected))

    yield attempt


def duration(directory: Path) -> float:
    """Seconds from the first file to the last of an undisturbed run, and as long again: processes start."""
    times = [path.stat().st_mtime for path in directory.glob("[0-9]*.json")]
    return 2 * (max(times) - min(times)) + 5.0


def wait_until(at: str, run: Run, job: Job, directory: Path, seconds: float) -> None:
    """Waits until the ranks exist, and then for the moment of a case, or the run's end."""
    end = time.monotonic() + SECONDS
    while run.poll() is None and len(run.find(job.script.name)) < 2:
        assert time.monotonic() < end, "the ranks never came"
        time.sleep(0.01)
    waits = at == SAVING or at.startswith(STEP)
    end = time.monotonic() + (SECONDS if waits else float(at) * seconds)
    while run.poll() is None and time.monotonic() < end:
        if at == SAVING and any(directory.glob("[0-9]*.tmp-*")):
            return
        if at.startswith(STEP) and last_logged(directory) >= int(at[len(STEP) :]):
            return
        time.sleep(0.0005 if waits else 0.01)


def send(run: Run, job: Job, parts: dict[str, str]) -> None:
    """Sends the signal of a case."""
    number = signal.Signals[parts["signal"]]
    ranks = run.find(job.script.name)
    pids = {"ranks": ranks, "rank": ranks[-1:], "launcher": [run.pid]}[parts["to"]]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def last_logged(directory: Path) -> int:
    """The last step in the metrics; 0 for none."""
    return max((each["step"] for each in metrics(directory) if "lr" in each), default=0)


def judged(result: RunResult, name: str, setting: Setting, directory: Path, before: int) -> str:
    """Reason why a stopped run is not as it should be; empty if it is. `before`: the step that was logged
    last when the signal was sent."""
    said = result.stderr + result.stdout + "".join(rank.stdout + rank.stderr for rank in result.ranks)
    if result.timed_out:
        return "it did not end"
    finished = (directory / f"{LAST:07d}.json").exists() and result.returncode == 0
    # horovodrun has a code of its own for whatever a rank ends with.
    right = {CODES[name]} if setting.backend != "hvd_gloo" else {1, CODES[name]}
    if not finished and result.returncode not in right:
        return f"code {result.returncode} in place of {CODES[name]}"
    if before and "Traceback" in said:
        return "a traceback"
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


CASE = named(signal="SIGUSR1", to="ranks", at=f"{STEP}6")
PROGRAM = Program(
    "8",
    "SIGTERM, SIGUSR1, SIGINT at random moments: code, checkpoint, resumed to the undisturbed run's bits",
    "50 of 50",
    weight=1.5,
    seconds=40,
    cases=cases,
    opened=opened,
    damages={
        "signals are not listened to": Damage(CASE, "the newest checkpoint is that|code 138"),
        "a stopped run saves nothing": Damage(CASE, "the newest checkpoint is that"),
        "a stopped run ends with code 0": Damage(CASE, "code 0 in place of 143"),
    },
    note="to one rank, to all, or to the launcher if it passes signals on; horovodrun has code 1 for any end",
)
