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
    """1 - CDF of the chi-square distribution, to a factor of 1.5 at UNLIKELY: its cube root is nearly normal
    (Wilson and Hilferty, 1931)."""
    spread = 2 / (9 * degrees)
    return math.erfc(((statistic / degrees) ** (1 / 3) - 1 + spread) / math.sqrt(2 * spread)) / 2
