"""Student's t-tests of whole samples, Welch's of two, and Holm's correction for many tests. Standard library
only.

SciPy has the distribution, too, but MXNet imports SciPy wherever it is installed, which costs every rank a
third of a second.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Sequence

DIFFERENT = "different"
NOT_SHOWN = "no difference shown"
# A spread below this is rounding of the values, not a measurement of how they vary.
ROUNDING = 1e-12


class MeanTest(NamedTuple):
    """Test that a mean is 0. `low`, `high`: its confidence interval. `p`: two-sided."""

    mean: float
    low: float
    high: float
    p: float


def mean_test(values: Sequence[float], confidence: float) -> MeanTest:
    """Two-sided one-sample t-test that the mean is 0, and the mean's confidence interval.

    Values without any spread, as a coarse clock may give, say nothing about how they vary; a t-test would
    call the smallest of differences certain. They get the sign test, which needs no spread (n equal signs
    have p = 2 / 2^n), and the interval is their value.

    Raises:
        ValueError: fewer than two values, or one that is not finite.
    """
    count = len(values)
    if count < 2 or not all(map(math.isfinite, values)):
        raise ValueError("a test of a mean needs two finite values or more")
    mean = math.fsum(values) / count
    deviation = math.sqrt(math.fsum((each - mean) ** 2 for each in values) / (count - 1))
    if deviation <= ROUNDING:
        p = 1.0 if abs(mean) <= ROUNDING else min(1.0, 2.0 * 0.5**count)
        return MeanTest(mean, mean, mean, p)
    error = deviation / math.sqrt(count)
    half = critical_t(1 - confidence, count - 1) * error
    return MeanTest(mean, mean - half, mean + half, two_sided_p(mean / error, count - 1))


def within_test(values: Sequence[float], bound: float) -> float:
    """p-value of the test that the mean lies between -`bound` and `bound`: the larger of two one-sided
    t-tests (D. J. Schuirmann, 1987). Values without any spread get the sign test, as in `mean_test`.

    Raises:
        ValueError: as `mean_test`.
    """
    count = len(values)
    test = mean_test(values, 0.5)
    error = (test.high - test.mean) / critical_t(0.5, count - 1)
    inside = bound - abs(test.mean)
    if error <= ROUNDING / math.sqrt(count):
        return 0.5**count if inside > 0 else 1.0
    p = two_sided_p(inside / error, count - 1) / 2
    return p if inside > 0 else 1 - p


def welch_test(
    first: Sequence[float], second: Sequence[float], confidence: float, careful: bool = True
) -> MeanTest:
    """Two-sided t-test that the means of two independent samples are equal, with a spread of its own for each
    (B. L. Welch, 1947). `mean`, and its interval: of `second` minus `first`.

    `careful`: degrees of freedom are those of the smaller sample, so that p is never too small, whatever the
    two spreads are (M. R. Mickey and M. B. Brown, 1966), as it is with Welch's own between 5 values and 12;
    False: Welch's own, rounded down. Two samples without any spread get the least p of a rank test: 2 by the
    ways to divide all values so.

    Raises:
        ValueError: fewer than two values in one, or one that is not finite.
    """
    difference, squares = _difference(first, second)
    error = math.sqrt(sum(squares))
    if error <= ROUNDING:
        ways = math.comb(len(first) + len(second), len(first))
        p = 2 / ways if abs(difference) > ROUNDING else 1.0
        return MeanTest(difference, difference, difference, p)
    freedom = min(len(first), len(second)) - 1
    if not careful:
        parts = sum(part**2 / (len(values) - 1) for part, values in zip(squares, (first, second)))
        freedom = max(1, math.floor(sum(squares) ** 2 / parts + 1e-9))
    half = critical_t(1 - confidence, freedom) * error
    p = two_sided_p(difference / error, freedom)
    return MeanTest(difference, difference - half, difference + half, p)


def exceeds_test(first: Sequence[float], second: Sequence[float], bound: float) -> float:
    """p-value of the one-sided test, otherwise as `welch_test`, that the mean of `second` is above that of
    `first` by more than `bound`."""
    difference, squares = _difference(first, second)
    above, error = difference - bound, math.sqrt(sum(squares))
    if error <= ROUNDING:
        return 1 / math.comb(len(first) + len(second), len(first)) if above > ROUNDING else 1.0
    p = two_sided_p(above / error, min(len(first), len(second)) - 1) / 2
    return p if above > 0 else 1 - p


def _difference(first: Sequence[float], second: Sequence[float]) -> tuple[float, list[float]]:
    """Of two means, and the square of each one's standard error."""
    if min(len(first), len(second)) < 2 or not all(map(math.isfinite, (*first, *second))):
        raise ValueError("a test of two means needs two finite values or more of each")
    means = [math.fsum(values) / len(values) for values in (first, second)]
    squares = [
        math.fsum((each - mean) ** 2 for each in values) / (len(values) - 1) / len(values)
        for values, mean in zip((first, second), means)
    ]
    return means[1] - means[0], squares


def two_sided_p(t: float, freedom: int) -> float:
    """Probability that Student's t with `freedom` degrees of freedom is further from 0 than `t`.

    A finite series, exact up to rounding (1e-15, absolute), as degrees of freedom are whole here (Abramowitz
    and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4).
    """
    angle = math.atan(abs(t) / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term, total = (cosine if odd else 1.0), 0.0
    for factor in range(2 + odd, freedom + 1, 2):
        total += term
        term *= (factor - 1) / factor * cosine * cosine
    inside = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return min(1.0, max(0.0, 1.0 - inside))


def critical_t(p: float, freedom: int) -> float:
    """The value of t that has a two-sided p of `p`, 0 < p < 1, by bisection."""
    low, high = 0.0, 1.0
    while two_sided_p(high, freedom) > p:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided_p(middle, freedom) > p else (low, middle)
    return (low + high) / 2


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values in the order given (S. Holm, 1979): the i-th smallest of n, from 0, times n - i,
    never below the one before it and at most 1."""
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for place, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, p_values[index] * (len(p_values) - place)))
        adjusted[index] = highest
    return adjusted
