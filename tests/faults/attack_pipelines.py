"""Attacks on pipelines: a rank of a run of two replicas of two stages is killed, stopped or gets SIGTERM, or
the disk is full, while each of the four takes steps, and while rank 0 saves and the others send it what they
hold. All end in time, the missing one is named, and the resumed run has the bits of one left alone.
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
from typing import Any, Iterator

from tests.faults.disks import fill, small_disk
from tests.faults.figure import Damage, Parts, Program, Setting, Tally, named
from tests.faults.jobs import (
    END_SECONDS,
    LAST,
    STOPPING_ITSELF,
    UNNAMED,
    UNSEEN,
    WRITING,
    Job,
    differences,
    find,
    is_stopped,
    last_step,
    undamaged,
    unsaved,
    wait_for_step,
)
from tests.processes import Run, RunResult, until
from training.checkpoint import newest_complete
from training.pipeline.options import SCHEDULES
from training.pipeline.placement import PLACEMENTS

STAGES, RANKS = 2, 4
KILLED, STOPPED, TERMINATED, FULL = HOW = ("killed", "stopped", "SIGTERM", "disk full")
STEPS, SAVING = WHEN = ("steps", "saving")
RECEIVING = "receiving"  # what the other stages hold; then the files of a checkpoint are written
LONGEST = 900.0  # seconds of a launch; it takes 8 on two cores of its own, and 300 on ones shared with twenty
PATIENCE = 15  # --comm_timeout of a run of which a rank is stopped; four ranks on two cores join slowly
REASON = r".*(?:error: |(?:mpi|prte)run noticed).*"  # lines that may name a rank
SIGNALS = {KILLED: signal.SIGKILL, STOPPED: signal.SIGSTOP, TERMINATED: signal.SIGTERM}


@dataclass(frozen=True)
class Case:
    """Parts of a case's name. `who`: the rank that is attacked, when `step` is logged, or in the first saving
    from then on."""

    who: int
    how: str
    when: str
    step: int
    schedule: str
    placement: str

    @classmethod
    def of(cls, parts: Parts) -> Case:
        """Reads the parts of a case's name."""
        return cls(**{**parts, "who": int(parts["who"]), "step": int(parts["step"])})  # type: ignore[arg-type]

    @property
    def stops_itself(self) -> str:
        """A patch that stops rank 0 while it saves, at one of the moments by chance; empty for no stop."""
        if self.when != SAVING or self.how == FULL:
            return ""
        moment = random.Random(str(self)).choice((RECEIVING, *WRITING))
        return STOPPING_ITSELF.format(step=self.step, moment=moment)

    @property
    def options(self) -> dict[str, Any]:
        """Of the run, beside the others' of tests/faults/jobs.py."""
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


def attempt(setting: Setting, parts: Parts) -> Tally:
    """A run that is attacked, and resumed."""
    case = Case.of(parts)
    expected = undisturbed(setting, case)
    with small_disk(setting.folder("disks") / "disk", "64M") as disk:
        directory = disk / "run"
        patience = {"comm_timeout": PATIENCE} if case.how == STOPPED else {}
        with started(Job(setting, 2, case.stops_itself), case, directory, **patience) as run:
            failure = attacked(case, run, directory)
        if failure:
            return Tally.of(failure)
        (disk / "filled").unlink(missing_ok=True)
        started(Job(undamaged(setting), 2), case, directory).finish()
        return Tally.of(differences(directory, expected))


def undisturbed(setting: Setting, case: Case) -> Path:
    """The directory of a run that nothing happens to, made once: schedules and placements have the same
    bits."""
    directory = setting.shared / "whole-stages"
    if not (directory / f"{LAST:07d}.json").exists():
        started(Job(undamaged(setting), 2), case, directory).finish()
    return directory


def started(job: Job, case: Case, directory: Path, **options: Any) -> Run:
    """Starts or resumes the run, under mpirun alone."""
    words = job.words(directory, **case.options, **options)
    return job.start(words, RANKS, launcher="mpirun", timeout=LONGEST)


def attacked(case: Case, run: Run, directory: Path) -> str:
    """Attacks a run at the moment of its case and waits for its end. Returns what is wrong; empty for
    nothing.

    Raises:
        AssertionError: the moment did not come, or a process outlives the launcher.
    """
    victim = find(run, "mpirun", case.who)
    saving = find(run, "mpirun", 0)
    if case.stops_itself:
        until(lambda: is_stopped(saving), run, pause=0.001)
    else:
        wait_for_step(run, directory, case.step)
    before = last_step(directory)
    if case.how == FULL:
        fill(directory.parent / "filled")
    else:
        os.kill(victim, SIGNALS[case.how])
    if case.stops_itself and (case.who, case.how) != (0, STOPPED):
        with contextlib.suppress(ProcessLookupError):
            os.kill(saving, signal.SIGCONT)
    run.end_within(4 * END_SECONDS)
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
    if seconds > END_SECONDS:
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
    elif not any(re.search(rf"rank {case.who}\b", line) for line in re.findall(REASON, said)):
        return f"nobody names rank {case.who}: {told}"
    return ""


def _case(who: int, how: str) -> str:
    return named(who=who, how=how, when=STEPS, step=5, schedule="1f1b", placement="intra_first")


PROGRAM = Program(
    "stages",
    "each rank of 2 replicas of 2 stages killed, stopped, SIGTERM, disk full, in steps and while saving",
    "all end within 30 s, named; resumed to the undisturbed run's bits",
    weight=1.5,
    seconds=45,
    backends=("hvd_mpi",),
    cases=cases,
    attempt=attempt,
    damages={
        "signs of life are not looked at": Damage(_case(3, STOPPED), "did not end|ended after", UNSEEN),
        "nobody is named": Damage(_case(3, STOPPED), "nobody names rank 3", UNNAMED),
        "a stopped run saves nothing": Damage(
            _case(1, TERMINATED), "the newest checkpoint is that", unsaved("and not ended")
        ),
    },
    note="mpirun only, over which stages exchange messages; --comm_timeout 15",
)
