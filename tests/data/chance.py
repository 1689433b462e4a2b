"""Chances of a difference: p-values for the distribution tests, from their textbook formulas."""

from __future__ import annotations

import math

import numpy as np

# With fixed seeds a test gives the same p every time; a right algorithm was rarely so unlucky.
UNLIKELY = 1e-4


def chi_square_p(counts, shares):
    """Probability of counts at least so far from `shares` (in any scale) if those are the truth (Pearson)."""
    counts, shares = np.asarray(counts, dtype=float), np.asarray(shares, dtype=float)
    expected = counts.sum() * shares / shares.sum()
    assert (expected >= 5).all(), "too few expected in a class for the chi-square distribution to hold"
    return upper_tail(float(((counts - expected) ** 2 / expected).sum()), len(counts) - 1)


def permutation_p(left, right, rounds=4000):
    """The same for rows of counts, each row an independent trial: are the trials' distributions the same?

    What is counted within a trial may depend on each other (a document draws one target length for all its
    pairs). Under the hypothesis it does not matter which trials are called left: Pearson's statistic of their
    sums is compared with that of random divisions (Fisher's permutation test).
    """
    trials = np.concatenate([left, right]).astype(float)
    trials = trials[:, trials.sum(axis=0) > 0]
    total = trials.sum(axis=0)

    def statistic(chosen):
        one = chosen @ trials
        share = one.sum() / total.sum()
        return float((np.square(one - share * total) / (share * (1 - share) * total)).sum())

    is_left = np.arange(len(trials)) < len(left)
    observed = statistic(is_left)
    generator = np.random.default_rng(0)
    beyond = sum(statistic(generator.permutation(is_left)) >= observed * (1 - 1e-12) for _ in range(rounds))
    return (beyond + 1) / (rounds + 1)


def upper_tail(statistic, degrees):
    """1 - CDF of the chi-square distribution (Abramowitz and Stegun 6.5.29 and 6.5.31)."""
    a, x = degrees / 2, statistic / 2
    if x <= 0:
        return 1.0
    scale = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1:
        term = total = 1 / a
        k = a
        while term > total * 1e-15:
            k += 1
            term *= x / k
            total += term
        return 1 - scale * total
    # Lentz's method for the continued fraction of the upper incomplete gamma function.
    b = x + 1 - a
    c, d = 1e300, 1 / b
    fraction = d
    for i in range(1, 10_000):
        numerator = -i * (i - a)
        b += 2
        d = 1 / (numerator * d + b)
        c = b + numerator / c
        fraction *= d * c
        if abs(d * c - 1) < 1e-14:
            break
    return scale * fraction
