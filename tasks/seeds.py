"""Scores over seeds: mean and spread, and whether two models differ by more than seeds do.

A run's score depends on its seed: the order of examples, the new head's weights, dropout. On small data sets
that is points (Dodge et al., arXiv:2002.06305), so one run says little about a model.
"""

from __future__ import annotations

import math
import statistics
from itertools import combinations
from typing import Mapping, NamedTuple

from base.student import DIFFERENT, NOT_SHOWN, critical_t, holm, mean_test, welch_test

CONFIDENCE = 0.95
FEWEST_SEEDS = 5  # as many as compare.py asks of repeats
TOO_FEW = "too few seeds"
PAIRED, WELCH = "paired t-test", "Welch's t-test"

Scores = Mapping[int, float]  # of one model: seed -> score


class Summary(NamedTuple):
    """Scores of one model. `deviation`: over n - 1, None for one seed. `half`: half the width of the mean's
    confidence interval, None for one seed."""

    mean: float
    deviation: float | None
    half: float | None
    values: tuple[float, ...]

    def line(self, form: str = ".3f") -> str:
        """The summary for people, such as "0.881 ± 0.016 (0.873, 0.870, 0.899)"."""
        spread = "" if self.deviation is None else f" ± {self.deviation:{form}}"
        return f"{self.mean:{form}}{spread} ({', '.join(format(value, form) for value in self.values)})"


class Verdict(NamedTuple):
    """Two models: second minus first.

    `difference`: of their means, over the seeds that are compared. `low`, `high`: its confidence interval for
    this pair alone; `p`, and `adjusted` after Holm over all pairs; all None where there are too few seeds.
    `verdict`: DIFFERENT, NOT_SHOWN or TOO_FEW. `test`: PAIRED or WELCH, "" without one.
    """

    first: str
    second: str
    seeds: int
    difference: float
    low: float | None
    high: float | None
    p: float | None
    adjusted: float | None
    verdict: str
    test: str

    def sentence(self, form: str = ".3f") -> str:
        """The verdict for people."""
        if self.verdict == TOO_FEW:
            return (
                f"{self.second} - {self.first}: {self.difference:+{form}}; no verdict on fewer than"
                f" {FEWEST_SEEDS} seeds"
            )
        interval = f"{self.low:+{form}} to {self.high:+{form}}"
        found = f"{self.second} - {self.first}: {self.difference:+{form}} ({interval}, {self.seeds} seeds)"
        if self.verdict == NOT_SHOWN:
            return f"{found}: no difference shown beyond the seeds'"
        better = self.second if self.difference > 0 else self.first
        return f"{found}: {better} is higher"


def summarize(scores: Scores) -> Summary:
    """Mean and spread of one model's scores. Raises ValueError for none, or one that is not finite."""
    values = tuple(scores[seed] for seed in sorted(scores))
    if not values or not all(map(math.isfinite, values)):
        raise ValueError("a summary needs finite scores")
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return Summary(mean, None, None, values)
    deviation = statistics.stdev(values)
    half = critical_t(1 - CONFIDENCE, len(values) - 1) * deviation / math.sqrt(len(values))
    return Summary(mean, deviation, half, values)


def compare_models(models: Mapping[str, Scores]) -> list[Verdict]:
    """Every pair of models, in the order given; they are one family of tests, as in compare.py.

    Models with FEWEST_SEEDS seeds in common are compared over these, seed by seed (a paired t-test); others
    of which each has so many by Welch's t-test, its degrees of freedom rounded down. Two are called
    different only if the p-value, adjusted by Holm's method over all pairs, is at most 1 - CONFIDENCE.
    """
    pairs = [_pair(first, second, models) for first, second in combinations(models, 2)]
    tested = [place for place, pair in enumerate(pairs) if pair.p is not None]
    for place, adjusted in zip(tested, holm([pairs[each].p or 0.0 for each in tested])):
        verdict = DIFFERENT if adjusted <= 1 - CONFIDENCE else NOT_SHOWN
        pairs[place] = pairs[place]._replace(adjusted=adjusted, verdict=verdict)
    return pairs


def _pair(first: str, second: str, models: Mapping[str, Scores]) -> Verdict:
    one, other = models[first], models[second]
    common = sorted(one.keys() & other.keys())
    if len(common) >= FEWEST_SEEDS:
        test = mean_test([other[seed] - one[seed] for seed in common], CONFIDENCE)
        found = (test.mean, test.low, test.high, test.p)
        return Verdict(first, second, len(common), *found, None, NOT_SHOWN, PAIRED)
    means = summarize(one), summarize(other)
    difference = means[1].mean - means[0].mean
    fewest = min(len(one), len(other))
    if fewest < FEWEST_SEEDS:
        return Verdict(first, second, fewest, difference, None, None, None, None, TOO_FEW, "")
    if not any(each.deviation for each in means):
        # No spread at all says nothing about how scores vary.
        p = 1.0 if difference == 0 else 2.0 * 0.5**fewest
        found = (difference, difference, difference, p)
    else:
        test = welch_test(means[0].values, means[1].values, CONFIDENCE, careful=False)
        found = (test.mean, test.low, test.high, test.p)
    return Verdict(first, second, fewest, *found, None, NOT_SHOWN, WELCH)
