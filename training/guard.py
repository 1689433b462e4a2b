"""A guard against steps that are finite but wrong: it compares loss and gradient norm with those of the steps
before.

A step is off whose value is above the median of the last ones by SPREADS times their spread (the median
absolute deviation, scaled to a normal distribution's standard deviation), and by a multiple of the median:
losses of small steps scatter little over a few dozen of them, and gradient norms have long tails. OLMo-core's
optimizers that skip steps watch the same two figures, by mean and standard deviation. Such a step is skipped
as one with gradients that are not finite is, and ends a run as those do.

A loss that stays off is that of ruined parameters: losses of skipped steps do not enter the history. A
gradient norm may change its level for good, as where a plateau ends: norms enter it always, and half of NORMS
skipped steps make the new level the usual one.

The history is plain numbers, the same on every rank, and part of a checkpoint: a resumed run decides alike.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from typing import Any, Mapping, Sequence

SKIP, TAKE = SPIKES = "skip", "take"  # of --spikes
LOSSES, NORMS = 64, 32  # steps that are remembered
FEW = 16  # with fewer steps the spread is not known: losses are off at EARLY times the median, norms never
SPREADS = 6.0
EARLY = 3.0
LOSS_RISE, NORM_RISE = 1.0, 9.0  # medians above the median
_NORMAL = 1.4826  # of a normal distribution: standard deviation over median absolute deviation


class Guard:
    """Losses and gradient norms of the last steps. `watches`: whether steps may be off at all."""

    def __init__(self, watches: bool = True):
        self._watches = watches
        self._losses: deque[float] = deque(maxlen=LOSSES)
        self._norms: deque[float] = deque(maxlen=NORMS)

    def off(self, loss: float, norm: float) -> str:
        """The reason for which a step of this loss and gradient norm is off, as a clause; "" where it is not.

        `loss`: NaN where the step has none.
        """
        if not self._watches:
            return ""
        for name, value, history, rise in (
            ("loss", loss, self._losses, LOSS_RISE),
            ("gradient norm", norm, self._norms, NORM_RISE),
        ):
            limit = _limit(history, rise) if name == "loss" or len(history) >= FEW else math.inf
            if value > limit:
                usual = statistics.median(history)
                return f"the {name} was {value:.4g}, far above the {usual:.4g} of the steps before"
        return ""

    def update(self, loss: float, norm: float, applied: bool) -> None:
        """Takes note of a step with finite gradients, which was `applied` or skipped."""
        if applied and math.isfinite(loss):
            self._losses.append(loss)
        self._norms.append(norm)

    def state(self) -> dict[str, list[float]]:
        """The history, for JSON, which keeps every bit."""
        return {"losses": list(self._losses), "norms": list(self._norms)}

    def restore(self, state: Mapping[str, Sequence[float]]) -> None:
        """Goes on from a `state` for which `is_history` holds."""
        self._losses.extend(state["losses"])
        self._norms.extend(state["norms"])


def is_history(state: Any) -> bool:
    """Whether this may be the `state` of a guard."""
    return (
        isinstance(state, dict) and set(state) == {"losses", "norms"} and all(map(_numbers, state.values()))
    )


def _numbers(values: Any) -> bool:
    return isinstance(values, list) and all(type(each) is float and 0 <= each < math.inf for each in values)


def _limit(history: Sequence[float], rise: float) -> float:
    """The value above which a step is off."""
    if not history:
        return math.inf
    median = statistics.median(history)
    if len(history) < FEW:
        return EARLY * median
    spread = _NORMAL * statistics.median(abs(each - median) for each in history)
    return median + max(SPREADS * spread, rise * median)
