"""Attacks on pipelines: a rank of a run of two replicas of two stages is killed, stopped or gets SIGTERM, or
the disk is full, while each of the four takes steps, and while rank 0 saves and the others send it what they
hold. All end in time, the missing one is named, and the resumed run has the bits of one left alone."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import re
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterator

from tests.killing import metrics
from tests.processes import Run, RunResult, start_ranks
from tests.reliability.figure import Attempt, Damage, Program, Setting, Tally
from tests.reliability.jobs import LAST, ONE_THREAD, SECONDS, Job, differences, named, parsed
from tests.reliability.missing_processes import PATCHES as MISSING
from tests.reliability.restarted_runs import fill
from tests.reliability.signals import PATCHES as STOPPING
from tests.test_failure import LIMIT, catch_saving, find
from training.checkpoint import newest_complete
from training.pipeline.options import SCHEDULES
from training.pipeline.placement import PLACEMENTS

STAGES, RANKS = 2, 4
KILLED, STOPPED, TERMINATED, FULL = HOW = ("killed", "stopped", "SIGTERM", "disk full")
STEPS, SAVING = WHEN = ("steps", "saving")
DISK = 64 << 20
PATIENCE = 15  # --comm_timeout of a run of which a rank is stopped; four ranks on two cores join slowly
SIGNALS = {KILLED: signal.SIGKILL, STOPPED: signal.SIGSTOP, TERMINATED: signal.SIGTERM}
UNSEEN, UNNAMED, UNSAVED = (
    "signs of life are not looked at",
    "nobody is named",
    "a stopped run saves nothing",
)
PATCHES = {UNSEEN: MISSING[UNSEEN], UNNAMED: MISSING[UNNAMED], UNSAVED: STOPPING[UNSAVED]}


@dataclass(frozen=True)
class Case:
    """Parts of a case's name. `who`: the rank that is attacked, when `step` is logged."""

    who: int
    how: str
    when: str
    step: int
    schedule: str
    placement: str

    @classmethod
    def of(cls, text: str) -> Case:
        """Reads a case's name."""
        parts = parsed(text)
        return cls(**{**parts, "who": int(parts["who"]), "step": int(parts["step"])})  # type: ignore[arg-type]

    @property
    def options(self) -> dict[str, Any]:
        """Of the run, beside the others' of tests/reliability/jobs.py."""
        return {
            "model": f"bert_{STAGES}_32_2",
            "pipeline_stages": STAGES,
            "pipeline_schedule": self.schedule,
            "placement": self.placement,
        }


def cases(setting: Setting) -> Iterator[str]:
    """The full product of who, how and when, in an order by the seed, with steps, schedules and placements by
    chance. The disk is rank 0's."""
    draw = random.Random(setting.seed)
    every = [
        (who, how, when)
        for who, how, when in itertools.product(range(RANKS), HOW, WHEN)
        if how != FULL or (who, when) == (0, SAVING)
    ]
    draw.shuffle(every)
    for who, how, when in every:
        step = draw.randrange(5, LAST - 5)
        kinds = {"schedule": draw.choice(SCHEDULES), "placement": draw.choice(PLACEMENTS)}
        yield named(who=who, how=how, when=when, step=step, **kinds)


@contextlib.contextmanager
def opened(setting: Setting) -> Iterator[Attempt]:
    """Tries a case: a run that is attacked, and resumed."""
    disk = setting.work / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(disk)], check=True)

    def attempt(text: str) -> Tally:
        case = Case.of(text)
        expected = undisturbed(setting, case)
        directory = disk / "run"
        shutil.rmtree(directory, ignore_errors=True)
        (disk / "filled").unlink(missing_ok=True)
        patience = {"comm_timeout": PATIENCE} if case.how == STOPPED else {}
        job = Job(setting, 2, PATCHES.get(setting.damage, ""))
        with started(job, case, directory, **patience) as run:
            failure = attacked(case, run, directory)
        (disk / "filled").unlink(missing_ok=True)
        if failure:
            return Tally.of(failure)
        with started(Job(setting, 2), case, directory) as run:
            run.wait().check()
        return Tally.of(differences(directory, expected))

    try:
        yield attempt
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def undisturbed(setting: Setting, case: Case) -> Path:
    """The directory of a run that nothing happens to, made once: schedules and placements have the same
    bits."""
    directory = setting.shared / "whole-stages"
    if not (directory / f"{LAST:07d}.json").exists():
        with started(Job(setting, 2), case, directory) as run:
            run.wait().check()
    return directory


def started(job: Job, case: Case, directory: Path, **options: Any) -> Run:
    """Starts or resumes the run."""
    words = job.words(directory, **case.options, **options)
    return start_ranks(job.script, RANKS, timeout=2 * SECONDS, args=words, env=ONE_THREAD, grace=15.0)


def attacked(case: Case, run: Run, directory: Path) -> str:
    """Attacks a run at the moment of its case and waits for its end. Returns what is wrong; empty for
    nothing.

    Raises:
        AssertionError: the moment did not come, or a process outlives the launcher.
    """
    victim = find(run, "mpirun", case.who)
    _wait_for_step(run, directory, case.step)
    saving = find(run, "mpirun", 0)
    if case.when == SAVING and case.how != FULL:
        catch_saving(saving, directory)
    before = last_step(directory)
    if case.how == FULL:
        fill(directory.parent / "filled")
    else:
        os.kill(victim, SIGNALS[case.how])
    if case.when == SAVING and (case.who, case.how) != (0, STOPPED):
        with contextlib.suppress(ProcessLookupError):
            os.kill(saving, signal.SIGCONT)
    begun = time.monotonic()
    result = run.wait()
    return judged(case, result, time.monotonic() - begun, directory, before)


def judged(case: Case, result: RunResult, seconds: float, directory: Path, before: int) -> str:
    """Reason why the end of an attacked run is not as it should be; empty if it is. `before`: the step that
    was logged last before the attack."""
    told = result.describe(1500)
    said = result.stderr + "".join(rank.stderr for rank in result.ranks)
    if result.timed_out or result.returncode == 0:
        return f"it did not end: {told}"
    if seconds > LIMIT:
        return f"it ended after {seconds:.0f} s: {told}"
    newest = newest_complete(str(directory), lambda message: None)
    if newest is None:
        return f"no complete checkpoint is left: {told}"
    if case.how == TERMINATED:
        if result.returncode != 143:
            return f"code {result.returncode} in place of 143: {told}"
        if newest.step < before:
            return f"step {before} had been taken, and the newest checkpoint is that of step {newest.step}"
    elif case.how == FULL:
        if not re.search("error: .*(disk|space)", said):
            return f"no error names the disk: {told}"
    elif not _is_named(case.who, said):
        return f"nobody names rank {case.who}: {told}"
    return ""


def last_step(directory: Path) -> int:
    """The last step in the metrics; 0 for none."""
    return max((each["step"] for each in metrics(directory) if "lr" in each), default=0)


def _is_named(rank: int, said: str) -> bool:
    reasons = re.findall(r".*(?:error: |mpirun noticed).*", said)
    return any(re.search(rf"rank {rank}\b", line) for line in reasons)


def _wait_for_step(run: Run, directory: Path, step: int) -> None:
    end = time.monotonic() + SECONDS
    while last_step(directory) < step:
        assert run.poll() is None, run.wait().describe()
        assert time.monotonic() < end, f"step {step} was not logged"
        time.sleep(0.001)


def _case(who: int, how: str) -> str:
    return named(who=who, how=how, when=STEPS, step=6, schedule="1f1b", placement="intra_first")


PROGRAM = Program(
    "stages",
    "each rank of 2 replicas of 2 stages killed, stopped, SIGTERM, disk full, in steps and while saving",
    "all end within 30 s, named; resumed to the undisturbed run's bits",
    weight=1.5,
    seconds=45,
    backends=("hvd_mpi",),
    cases=cases,
    opened=opened,
    damages={
        UNSEEN: Damage(_case(3, STOPPED), "did not end|ended after"),
        UNNAMED: Damage(_case(3, STOPPED), "nobody names rank 3"),
        UNSAVED: Damage(_case(1, TERMINATED), "the newest checkpoint is that|code 1 in place of 143"),
    },
    note="mpirun only, over which stages exchange messages; --comm_timeout 15",
)
