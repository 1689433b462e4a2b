"""Where the time of a setting's steps goes: medians and spread over its profiled launches."""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Sequence

from comparison.statistics import Spread, spread
from training.profiling.breakdown import EXPOSED, PARTS


class Breakdown(NamedTuple):
    """Of rank 0, milliseconds a step; spreads are over so many `launches`. `exposed_ms`: communication while
    nothing computed, of which `exposed_share` is the part of the step's time; `hidden_ms`: while operators
    computed; `under_way_ms`: both. `parts`: those of `training.profiling.breakdown.PARTS`.

    Medians are taken of each figure for itself, so that a launch that stalled does not show in any; those of
    the parts need not add up to that of the step.
    """

    launches: int
    step_ms: Spread
    exposed_ms: Spread
    hidden_ms: Spread
    under_way_ms: Spread
    exposed_share: Spread
    parts: Mapping[str, Spread]


def breakdown_of(profiles: Sequence[Mapping[str, Any]]) -> Breakdown:
    """Of the breakdowns of a setting's launches, as `break_down` makes them. Raises
    ValueError for none."""
    exposed = [each["parts"][EXPOSED]["ms"] for each in profiles]
    hidden = [each["hidden_ms"][EXPOSED] for each in profiles]
    steps = [each["step_ms"] for each in profiles]
    return Breakdown(
        launches=len(profiles),
        step_ms=spread(steps),
        exposed_ms=spread(exposed),
        hidden_ms=spread(hidden),
        under_way_ms=spread([one + other for one, other in zip(exposed, hidden)]),
        exposed_share=spread([part / step if step else 0.0 for part, step in zip(exposed, steps)]),
        parts={part: spread([each["parts"][part]["ms"] for each in profiles]) for part in PARTS},
    )
