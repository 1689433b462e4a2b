"""Progress of a comparison by its launches, and an estimate of the time left."""

from __future__ import annotations

import statistics
import sys
from typing import Mapping, Sequence

from base.progress import Printed
from comparison.launching.read_run import Work
from comparison.record import PROFILED, Record
from comparison.reporting.wording import duration
from comparison.settings import Setting


class Progress(Printed):
    """`total`: launches in all. `done`: those made before, or by an earlier call."""

    def __init__(self, total: int, done: int):
        super().__init__(lines=sys.stdout)
        self.begin("", total, "launch", done)

    def end_launch(self, work: Work, record: Record, left_s: float) -> None:
        """`left_s`: seconds that the launches to come will take."""
        self.finish(str(work), _result(record), time_left(left_s), failed=bool(record.failure))

    def leave_out(self, setting: Setting, number: int) -> None:
        """So many launches of a setting will not be made."""
        self.skip(number)
        if number:
            self.note(f"{setting.name} has failed too often: {number} more launches of it are left out")


def time_left(seconds: float) -> str:
    """In words."""
    return f"about {duration(seconds)} left" if seconds else "none left"


def seconds_left(todo: Sequence[Work], made: Mapping[Work, Record]) -> float:
    """An estimate for the launches to come: each is taken to last as long as its like did, or else as all."""
    total = 0.0
    for work in todo:
        for like in (_same_setting, _same_workers, _any):
            seconds = [record.seconds for other, record in made.items() if like(work, other)]
            if seconds:
                total += statistics.median(seconds)
                break
    return total


def _same_setting(work: Work, other: Work) -> bool:
    return work.setting == other.setting and work.kind == other.kind


def _same_workers(work: Work, other: Work) -> bool:
    return work.setting.workers == other.setting.workers and work.kind == other.kind


def _any(work: Work, other: Work) -> bool:
    return True


def _result(record: Record) -> str:
    if record.failure:
        return record.failure
    if record.kind == PROFILED:
        return f"done in {record.seconds:.0f} s"
    step = statistics.median(interval.step_s for interval in record.intervals)
    return f"{step:.3g} s/step"
