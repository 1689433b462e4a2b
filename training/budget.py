"""The extent of a run: so many steps, or --budget_hours of training, whose elapsed part the schedule follows.

Counted is the time of steps, data waits included; start-up, checkpoints and evaluations are not. The hours of
a resumed run go on from those in its checkpoint, so the time of steps that a killed process had taken since
then is not counted: these steps are lost, too.

The clock of rank 0 decides. All ranks must take the same learning rate and end at the same step, so rank 0's
part travels as bits among the flags that every step agrees on anyway: the other ranks give ones, and the
logical AND of all is what rank 0 gave. It costs no exchange of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Mapping, Sequence

if TYPE_CHECKING:
    from training.metrics import Stopwatch

BITS = 30  # a tick of 1000 hours is 3 ms
TICKS = (1 << BITS) - 1  # the whole budget; the unit of the schedule is its part


class Steps:
    """Position of a run in its steps, which every rank counts for itself.

    Args:
        taken: steps of the schedule that were taken before. planned: all of them.
    """

    figures: Mapping[str, float] = {}  # for a line of the metrics

    def __init__(self, taken: int, planned: int):
        self._planned = planned
        self.ticks = taken + 1  # of the step about to be taken, for the schedule

    @property
    def spent(self) -> bool:
        """Whether no step is left."""
        return self.ticks > self._planned

    def flags(self) -> list[bool]:
        """None: there is nothing to agree on."""
        return []

    def take(self, agreed: Sequence[bool]) -> None:
        """Goes on from the step just taken to the next."""
        self.ticks += 1


class Budget:
    """Position of a run in its budget, in ticks; the same on every rank.

    A step's position is where it ends: the last one is at TICKS, where the schedule has its end. The end
    is foreseen from the shortest step so far: where steps take equally long, a run exceeds its budget by less
    than one, else by less than two.

    Args:
        hours: the budget.
        clock: of the training, with the seconds of earlier runs; the same number on every rank at first.
        leads: whether this is rank 0, whose clock counts.
    """

    def __init__(self, hours: float, clock: Stopwatch, leads: bool):
        self.seconds = hours * 3600
        self._clock = clock
        self._leads = leads
        self._shortest: float | None = None
        self._before: float | None = None
        self.spent = clock.at_start >= self.seconds  # whether no step is left
        self.ticks = self._at(clock.at_start)  # of the step about to be taken

    def flags(self) -> list[bool]:
        """The position of the step after this one as bits, lowest first; ones on every rank but 0. Asked once
        a step."""
        if not self._leads:
            return [True] * BITS
        now = self._clock.total
        if self._before is not None:
            interval = now - self._before
            self._shortest = interval if self._shortest is None else min(interval, self._shortest)
        self._before = now
        ticks = self._at(now + (self._shortest or 0.0))
        return [bool(ticks >> bit & 1) for bit in range(BITS)]

    def take(self, agreed: Sequence[bool]) -> None:
        """Goes on from the step just taken to the next. `agreed`: the AND of all ranks' flags."""
        if self.ticks == TICKS:
            self.spent = True
            self._clock.at_least(self.seconds)  # though the step may have been quicker than foreseen
        self.ticks = sum(1 << bit for bit, flag in enumerate(agreed) if flag)

    @property
    def figures(self) -> dict[str, float]:
        """Seconds of training that are left on this rank's clock, for a line of the metrics."""
        return {"budget_left_s": round(max(0.0, self.seconds - self._clock.total), 3)}

    def _at(self, seconds: float) -> int:
        return min(TICKS, max(1, round(TICKS * min(1.0, seconds / self.seconds))))
