"""Verdicts on speed: tests with a bound on false verdicts over a whole report.

The independent unit is the launch. Intervals within one share its place in memory, its port and its minute,
so they are no samples of their own: a launch gives one value. Contenders of a group run next to each other in
every repeat, so two of them are compared by the logarithm of their ratio within a repeat; what slows a repeat
as a whole cancels. `rule` says the rest. Launches of different reports have no repeat in common: they are
compared as independent samples.
"""

from __future__ import annotations

import itertools
import math
import statistics
from typing import Any, Hashable, Mapping, NamedTuple, Sequence, TypeVar

from base.student import (
    DIFFERENT,
    NOT_SHOWN,
    critical_t,
    exceeds_test,
    holm,
    mean_test,
    welch_test,
    within_test,
)

FEWEST_REPEATS = 5
TOO_FEW = "too few repeats"
MARGIN = 0.05  # of the ratio, within which two backends are called equal
EQUAL = f"equal within {MARGIN:.0%}"
PLANNED = (0.05, 0.1)  # differences for which a report names the repeats
POWER = 0.8  # probability with which such a difference shall be shown
MOST_REPEATS = 1000

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

    `repeats`: in common, or where they are not paired of whom has fewer. `ratio`: geometric mean of second /
    first over these, or of all their launches, NaN without any; above 1 the first is faster. `low`, `high`:
    its confidence interval, for this pair alone; None where there are too few repeats. `p`: of the test,
    `adjusted`: after Holm over all pairs of the report; `equal`: adjusted, too, of the test that the ratio is
    within MARGIN of 1. `verdict`: DIFFERENT, EQUAL, NOT_SHOWN or TOO_FEW; `faster`: one of the two where they
    are different. `deviation`: of the ratio's logarithm, from repeat to repeat; None where not paired.
    """

    group: Any
    first: str
    second: str
    repeats: int
    ratio: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    adjusted: float | None = None
    verdict: str = TOO_FEW
    faster: str | None = None
    equal: float | None = None
    deviation: float | None = None


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
        f' normal. Otherwise two one-sided tests, adjusted in the same way, may show them "{EQUAL}", falsely'
        f" in at most {error} of reports; where neither is shown it says"
        ' "no difference shown", which does not say that there is none. With fewer'
        f" than {FEWEST_REPEATS} repeats in common there is no verdict. The intervals of the ratios have"
        f" {100 * confidence:.6g}% confidence each, without that adjustment: one that leaves out 1 is no"
        " verdict by itself. The number of repeats has to be fixed beforehand; whoever adds repeats until a"
        " difference shows will find one."
    )


def rule_across(confidence: float) -> str:
    """The rule for verdicts on different reports."""
    return (
        "A launch gives one value, its median. Launches of different reports have no repeat, no minute and"
        " perhaps no machine in common, so they are compared as independent samples: by a two-sided t-test"
        " of the logarithms that lets each report have its own spread (Welch's, with the degrees of freedom"
        " of the report with fewer launches, so that p is never too small), adjusted by Holm's method over"
        " all ratios here. That one is faster is falsely said in at most"
        f" {1 - confidence:.6g} of reports like this one whose settings all take the same time;"
        f' "{EQUAL}" takes two one-sided tests, adjusted alike. With fewer than {FEWEST_REPEATS} launches in'
        " one of the two there is a ratio and no verdict. What is shown is that two measurements differ: a"
        " machine that was slower on one day differs, too; two reports of the same commit say how much."
    )


def spread(values: Sequence[float]) -> Spread:
    if len(values) == 1:
        return Spread(*(values[0] for _ in Spread._fields))
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median, low, high, min(values), max(values))


def compare(groups: Mapping[G, Samples], confidence: float, paired: bool = True) -> list[Pair]:
    """Every pair of contenders of every group, in the order given; they are one family of tests.

    A pair with fewer than FEWEST_REPEATS repeats is not tested and does not count in the family.

    Args:
        groups: what is compared in each; values are positive and finite, smaller is faster.
        confidence: above 0 and below 1; 1 minus the probability of any false verdict among all pairs.
        paired: equal numbers of repeats mean the same minute; False: they are of different reports.
    """
    pairs = [
        _pair(group, names, samples, confidence, paired)
        for group, samples in groups.items()
        for names in itertools.combinations([name for name in samples if samples[name]], 2)
    ]
    tested = [index for index, pair in enumerate(pairs) if pair.p is not None]
    different = holm([pairs[index].p or 0.0 for index in tested])
    alike = holm([pairs[index].equal or 0.0 for index in tested])
    for index, adjusted, equal in zip(tested, different, alike):
        pair = pairs[index]._replace(adjusted=adjusted, equal=equal)
        if adjusted <= 1 - confidence:
            pair = pair._replace(verdict=DIFFERENT, faster=pair.first if pair.ratio > 1 else pair.second)
        elif equal <= 1 - confidence:
            pair = pair._replace(verdict=EQUAL)
        pairs[index] = pair
    return pairs


class Planning(NamedTuple):
    """Repeats that verdicts take, by the launches made so far. `deviation`: of the logarithm of a
    ratio, over `pairs` pairs; `repeats`: by difference, None for more than MOST_REPEATS."""

    deviation: float
    pairs: int
    repeats: Mapping[float, int | None]

    @property
    def sentence(self) -> str:
        shown = [
            f"{count or f'more than {MOST_REPEATS}'} repeats show one of {difference:.0%}"
            for difference, count in self.repeats.items()
        ]
        return (
            f"Ratios vary by {self.deviation:.2%} from repeat to repeat (standard deviation, {self.pairs}"
            f" pairs). A difference is found with {POWER:.0%} probability so: {', '.join(shown)}."
        )


def planning(pairs: Sequence[Pair], confidence: float) -> Planning | None:
    """The repeats that verdicts take, from the noise alone: means are not looked at, so that whoever chooses
    --repeats by it keeps the probability of false verdicts. None before a pair has two repeats."""
    known = [pair for pair in pairs if pair.deviation is not None]
    if not known:
        return None
    freedom = sum(pair.repeats - 1 for pair in known)
    squares = math.fsum((pair.repeats - 1) * (pair.deviation or 0.0) ** 2 for pair in known)
    deviation = math.sqrt(squares / freedom)
    needed = {each: repeats_for(math.log1p(each), deviation, len(pairs), confidence) for each in PLANNED}
    return Planning(deviation, len(known), needed)


def repeats_for(difference: float, deviation: float, tests: int, confidence: float) -> int | None:
    """Repeats after which a mean of `difference` is shown with probability POWER, if by the hardest of
    `tests` tests of a family (Holm's first). None for more than MOST_REPEATS.

    The usual approximation: the two quantiles of Student's t, of the test and of the power, times the
    standard error are no more than the difference.
    """
    for repeats in range(FEWEST_REPEATS, MOST_REPEATS + 1):
        quantiles = critical_t((1 - confidence) / tests, repeats - 1)
        quantiles += critical_t(2 * (1 - POWER), repeats - 1)
        if quantiles * deviation <= difference * math.sqrt(repeats):
            return repeats
    return None


def _pair(group: Any, names: tuple[str, str], samples: Samples, confidence: float, paired: bool) -> Pair:
    """Two contenders, tested where their values are enough."""
    one, other = (samples[name] for name in names)
    first, second = ([math.log(each) for each in values.values()] for values in (one, other))
    ratios = [math.log(other[each] / one[each]) for each in sorted(one.keys() & other.keys())]
    deviation = None
    if paired:
        repeats, mean = len(ratios), math.fsum(ratios) / len(ratios) if ratios else math.nan
        deviation = statistics.stdev(ratios) if len(ratios) > 1 else None
    else:
        repeats, mean = min(len(first), len(second)), statistics.fmean(second) - statistics.fmean(first)
    pair = Pair(group, *names, repeats, math.exp(mean), deviation=deviation)
    if repeats < FEWEST_REPEATS:
        return pair
    bound = math.log1p(MARGIN)
    if paired:
        test, equal = mean_test(ratios, confidence), within_test(ratios, bound)
    else:
        test = welch_test(first, second, confidence)
        equal = max(exceeds_test(first, second, -bound), exceeds_test(second, first, -bound))
    low, high = math.exp(test.low), math.exp(test.high)
    return pair._replace(low=low, high=high, p=test.p, verdict=NOT_SHOWN, equal=equal)
