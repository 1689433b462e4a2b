"""Verdicts on speed: paired tests with a bound on false verdicts over a whole report.

The independent unit is the launch. Intervals within one share its place in memory, its port and its minute,
so they are no samples of their own: a launch gives one value. Contenders of a group run next to each other in
every repeat, so two of them are compared by the logarithm of their ratio within a repeat; what slows a repeat
as a whole cancels. `rule` says the rest.
"""

from __future__ import annotations

import math
import statistics
from typing import Any, Hashable, Mapping, NamedTuple, Sequence, TypeVar

from base.student import DIFFERENT, NOT_SHOWN, holm, mean_test

FEWEST_REPEATS = 5
TOO_FEW = "too few repeats"

G = TypeVar("G", bound=Hashable)
Samples = Mapping[str, Mapping[int, float]]  # contender -> repeat -> a positive value, smaller is faster


class Spread(NamedTuple):
    """Median, quartiles (linear between the values), least and greatest."""

    median: float
    low: float
    high: float
    least: float
    most: float


class Pair(NamedTuple):
    """Two contenders of a group.

    `ratio`: geometric mean of second / first over their common repeats, NaN without any; above 1 the first
    is faster. `low`, `high`: its confidence interval, for this pair alone; None where there are too few
    repeats. `p`: of the test, `adjusted`: after Holm over all pairs of the report. `verdict`: DIFFERENT,
    NOT_SHOWN or TOO_FEW; `faster`: one of the two where they are different.
    """

    group: Any
    first: str
    second: str
    repeats: int
    ratio: float
    low: float | None
    high: float | None
    p: float | None
    adjusted: float | None
    verdict: str
    faster: str | None = None


def rule(confidence: float) -> str:
    """The rule for verdicts, for readers of a report."""
    error = f"{1 - confidence:.6g}"
    return (
        "A launch gives one value: the median over its log intervals of the seconds per step, without the"
        " warm-up. Two backends are compared by the logarithm of the ratio of their values within each"
        " repeat, with a two-sided paired t-test. One is called faster and the other slower only if the"
        " p-value, adjusted by Holm's method over all pairs of backends in this report, is at most"
        f" {error}: where no two backends differ, the probability that a report like this one contains even"
        f" a single false verdict is at most {error}, as far as the logarithms of the ratios are roughly"
        ' normal. Otherwise it says "no difference shown", which does not say that there is none. With fewer'
        f" than {FEWEST_REPEATS} repeats in common there is no verdict. The intervals of the ratios have"
        f" {100 * confidence:.6g}% confidence each, without that adjustment: one that leaves out 1 is no"
        " verdict by itself. The number of repeats has to be fixed beforehand; whoever adds repeats until a"
        " difference shows will find one."
    )


def spread(values: Sequence[float]) -> Spread:
    """Raises ValueError for no values."""
    if not values:
        raise ValueError("no values")
    if len(values) == 1:
        return Spread(*(values[0] for _ in Spread._fields))
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median, low, high, min(values), max(values))


def compare(groups: Mapping[G, Samples], confidence: float) -> list[Pair]:
    """Every pair of contenders of every group, in the order given; they are one family of tests.

    A pair with fewer than FEWEST_REPEATS common repeats is not tested and does not count in the family.

    Args:
        groups: what is compared in each; values are positive and finite, smaller is faster.
        confidence: 1 minus the probability of any false verdict among all pairs.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence}: must be between 0 and 1")
    pairs = []
    for group, samples in groups.items():
        names = [name for name in samples if samples[name]]
        for place, first in enumerate(names):
            pairs += [_pair(group, first, second, samples, confidence) for second in names[place + 1 :]]
    tested = [index for index, pair in enumerate(pairs) if pair.p is not None]
    for index, adjusted in zip(tested, holm([pairs[index].p or 0.0 for index in tested])):
        pair = pairs[index]._replace(adjusted=adjusted, verdict=NOT_SHOWN)
        if adjusted <= 1 - confidence:
            pair = pair._replace(verdict=DIFFERENT, faster=pair.first if pair.ratio > 1 else pair.second)
        pairs[index] = pair
    return pairs


def _pair(group: Hashable, first: str, second: str, samples: Samples, confidence: float) -> Pair:
    common = sorted(samples[first].keys() & samples[second].keys())
    logarithms = [math.log(samples[second][each] / samples[first][each]) for each in common]
    if len(common) < FEWEST_REPEATS:
        ratio = math.exp(math.fsum(logarithms) / len(common)) if common else math.nan
        return Pair(group, first, second, len(common), ratio, None, None, None, None, TOO_FEW)
    test = mean_test(logarithms, confidence)
    ratio, low, high = (math.exp(value) for value in (test.mean, test.low, test.high))
    return Pair(group, first, second, len(common), ratio, low, high, test.p, None, NOT_SHOWN)
