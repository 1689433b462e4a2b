"""How far a comparison has come, and how long it will still take: a bar on a terminal, lines in a log."""

from __future__ import annotations

import statistics
import sys
from typing import Mapping, Sequence

from tqdm import tqdm

from comparison.launching.read_run import Work
from comparison.record import PROFILED, Record
from comparison.reporting.wording import duration
from comparison.settings import Setting


class Progress:
    """`total`: launches in all. `done`: those made before, or by an earlier call."""

    def __init__(self, total: int, done: int):
        self._total, self._done = total, done
        self._bar = None
        if sys.stderr.isatty():
            self._bar = tqdm(
                total=total,
                initial=done,
                unit="launch",
                dynamic_ncols=True,
                bar_format="{desc} |{bar}| {n_fmt}/{total_fmt}{postfix}",
            )

    def begin(self, work: Work) -> None:
        if self._bar is not None:
            self._bar.set_description_str(str(work))

    def say(self, text: str) -> None:
        if self._bar is None:
            print(text, flush=True)
        else:
            tqdm.write(text, file=sys.stdout)

    def end(self, work: Work, record: Record, left_s: float) -> None:
        """A launch has ended. `left_s`: seconds that those to come will take."""
        self._done += 1
        left = f"about {duration(left_s)} left" if left_s else "none left"
        if self._bar is not None:
            self._bar.update()
            self._bar.set_postfix_str(left)
        if self._bar is None or record.failure:
            self.say(f"launch {self._done}/{self._total} {work}: {_result(record)}, {left}")

    def skip(self, setting: Setting, number: int) -> None:
        """So many launches of a setting will not be made."""
        self._done += number
        if self._bar is not None:
            self._bar.update(number)
        if number:
            self.say(f"{setting.name} has failed too often: {number} more launches of it are left out")

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


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
