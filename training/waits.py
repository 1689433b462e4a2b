"""The time that the other ranks wait for each rank.

All ranks leave an agreement at about the same moment. Two times are taken from there: when a rank begins its
next step, after data and metrics, and when its own gradients are there. All losses wait for the last rank to
begin, whose denominators they need, and all averages for the last one to be ready. What the latest time
exceeds the second latest by is time that all others wait for one rank; of a rank that is last twice in a step
the longer one counts, since who begins late is late with its gradients, too. Durations are compared, so that
clocks may differ. The times of a step travel with the next step's loss, in an exchange that is made anyway.
"""

from __future__ import annotations

import time
from typing import Sequence

import numpy as np

MOST = 8  # ranks in a line of the metrics
SHARE = 0.1  # of a step: a rank that costs more is named
FACTOR = 3.0  # and more than each other rank by this factor: all ranks are late now and then
STEPS = 20  # so many steps, at least, are judged together


class Waits:
    """Keeps account of the times of all ranks; the same on every rank but for its own time."""

    def __init__(self, rank: int, size: int):
        self._rank, self._size = rank, size
        self._agreed: float | None = None
        self._own = [0.0, 0.0]  # seconds to the beginning and to the gradients of the last step
        self._next = 0.0
        self._costs = np.zeros(size)  # seconds since the last line of the metrics
        self._judged, self._steps, self._seconds = np.zeros(size), 0, 0.0
        self._named: set[int] = set()

    def agreed(self) -> None:
        """Takes note that all ranks have agreed."""
        self._agreed = time.monotonic()

    def interrupted(self) -> None:
        """Leaves the next step out: what came before it, such as an evaluation, is no part of one."""
        self._agreed = None

    def times(self) -> list[float]:
        """This rank's times of the last step in its places, and 0 in those of others, to be added up; asked
        before they are taken anew."""
        return [own if rank == self._rank else 0.0 for own in self._own for rank in range(self._size)]

    def begun(self) -> None:
        """Takes note that this rank begins a step."""
        self._next = self._since()

    def ready(self) -> None:
        """Takes note that its own gradients are there."""
        self._own = [self._next, self._since()]

    def _since(self) -> float:
        return 0.0 if self._agreed is None else time.monotonic() - self._agreed

    def add(self, times: Sequence[float]) -> None:
        """Takes the times of all ranks of one step, in seconds: (2 * size,), as the sums of `times`."""
        if self._size == 1:
            return
        costs = np.zeros(self._size)
        for of_ranks in np.reshape(times, (2, self._size)):
            second, last = np.argsort(of_ranks, kind="stable")[-2:]
            costs[last] = max(costs[last], of_ranks[last] - of_ranks[second])
        self._costs += costs

    def of_interval(self, steps: int, seconds: float) -> dict[str, float]:
        """Seconds a step that others have waited for a rank since the last call, by rank, of the MOST for
        which they have waited longest. `steps` and `seconds`: of the interval."""
        costs, self._costs = self._costs, np.zeros(self._size)
        self._judged += costs
        self._steps += steps
        self._seconds += seconds
        longest = [int(rank) for rank in np.argsort(-costs, kind="stable")[:MOST] if costs[rank] > 0]
        return {str(rank): round(costs[rank] / steps, 6) for rank in sorted(longest)}

    def slow_rank(self) -> str | None:
        """A sentence on a rank that holds the others up, once for each; None where there is none, or the
        steps since the last answer are too few."""
        if self._steps < STEPS:
            return None
        costs, steps, seconds = self._judged, self._steps, self._seconds
        self._judged, self._steps, self._seconds = np.zeros(self._size), 0, 0.0
        slowest = int(np.argmax(costs))
        others = float(np.delete(costs, slowest).max(initial=0.0))
        cost = float(costs[slowest])
        if cost <= SHARE * seconds or cost <= FACTOR * others or slowest in self._named:
            return None
        self._named.add(slowest)
        return (
            f"rank {slowest} is slow: the others have waited for it {cost / seconds:.0%} of the time, "
            f"{cost / steps:.3g} s a step"
        )
