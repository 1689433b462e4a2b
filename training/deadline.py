"""The end of a run's time on its machine: --max_hours, Slurm's limit, and the step to leave after.

A run whose time is up saves and leaves with code 75 (base.errors.RUN_AGAIN), and --resume continues it. Rank
0's clock decides; its answer travels with the flags that every step agrees on anyway, so that all ranks leave
after the same step.
"""

from __future__ import annotations

import os
import time
from collections import deque
from dataclasses import dataclass
from typing import Callable, Mapping

from base.command_line import not_negative, positive
from base.errors import RUN_AGAIN, InputError
from base.launchers import is_number, launched_rank
from base.options import LAUNCH, option

SLURM_END = "SLURM_JOB_END_TIME"  # seconds since 1970, in the environment of a job's batch script
FIRST_SAVE_RATE = 50e6  # bytes a second until a save has been measured: a slow network disk
SAVED_BYTES = 14  # of a parameter at most: in float16, its float32 master and two moments
STEP, SAVE, EVALUATION = KINDS = ("step", "save", "evaluation")
_REMEMBERED = 50  # steps, saves, evaluations: the first step, which compiles, is not the measure for ever


@dataclass(frozen=True)
class DeadlineConfig:
    """The end of a launch: hours that it may last, and seconds to be left before its end."""

    max_hours: float | None = option(
        f"save and leave with exit code {RUN_AGAIN} (run me again) before the launch has lasted so many "
        "hours, start-up included; --resume continues. For a queue's limit, give a little less",
        positive,
        "HOURS",
        scope=LAUNCH,
    )
    save_before: float | None = option(
        f"the same, so many seconds before the end of the Slurm job ({SLURM_END}) or of --max_hours; 120 is "
        "usual, a slow disk wants more",
        not_negative,
        "SECONDS",
        scope=LAUNCH,
    )


def end_of_time(config: DeadlineConfig, environ: Mapping[str, str], begun: float) -> float | None:
    """The time, in seconds since 1970, by which the run must have left; None without a limit.

    It is the earlier of --max_hours after `begun` and, with --save_before, Slurm's limit; --save_before
    seconds before that.

    Raises:
        InputError: --save_before where no end is known, or an end that has passed.
    """
    ends = [] if config.max_hours is None else [begun + config.max_hours * 3600]
    if config.save_before is None:
        return min(ends, default=None)
    flag, text = f"--save_before {config.save_before:g}", environ.get(SLURM_END)
    if text is not None:
        if not is_number(text):
            raise InputError(f"{SLURM_END}={text}: this is no time in seconds since 1970; unset it")
        if float(text) <= begun:
            raise InputError(f"{SLURM_END}={text} ({flag}): this time has passed; unset it")
        ends.append(float(text))
    if not ends:
        raise InputError(
            f"{flag}: nothing says when the time ends; give --max_hours, or start in a Slurm job, which sets "
            f"{SLURM_END}"
        )
    if min(ends) - begun <= config.save_before:
        raise InputError(f"{flag}: the time ends in {min(ends) - begun:.0f} s; give a smaller number")
    return min(ends) - config.save_before


def check_deadline(config: DeadlineConfig, environ: Mapping[str, str]) -> None:
    """Raises InputError as `end_of_time`, on rank 0, whose clock and environment count."""
    if launched_rank(environ) == 0:
        end_of_time(config, environ, began())


def began() -> float:
    """The time at which this process was started, in seconds since 1970."""
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.time() - (since_boot - ticks / os.sysconf("SC_CLK_TCK"))


class Deadline:
    """The step to leave after, so that its checkpoint is written in time.

    Another step, and what belongs to it, is begun only where there is time for it and for saving after it.
    The longest of the latest steps, saves and evaluations say how long these take; before the first save,
    `save_bytes` at FIRST_SAVE_RATE do. Steps longer than any before can make a run late by their difference:
    --save_before leaves room. At least one step of a launch is taken, so that a run gets on.

    Args:
        end: as `end_of_time`; None where there is no limit, and on ranks but 0.
        save_bytes: of a checkpoint.
    """

    def __init__(self, end: float | None, save_bytes: float, now: Callable[[], float] = time.time):
        self._end, self._now = end, now
        self._latest: dict[str, deque[float]] = {what: deque(maxlen=_REMEMBERED) for what in KINDS}
        self._first_save = save_bytes / FIRST_SAVE_RATE

    def took(self, what: str, seconds: float) -> None:
        """Notes how long one of KINDS has taken."""
        self._latest[what].append(seconds)

    def allows(self, saves: bool) -> bool:
        """Whether there is time to go on after this step: for one more, and saving. `saves`: whether this
        step is one after which the run saves and evaluates even if it goes on."""
        if self._end is None:
            return True
        step, evaluation = (max(self._latest[what], default=0.0) for what in (STEP, EVALUATION))
        save = max(self._latest[SAVE], default=self._first_save)
        return self._now() + (save + evaluation if saves else 0.0) + step + save < self._end
