"""Standard errors of mean losses from the spread over samples, and of differences on the same samples."""

from __future__ import annotations

import math
from typing import Any, Mapping

import numpy as np

SPREAD = ("samples", "squared_counts")
MOMENTS = ("exact", "squares", "products")  # sums over samples of L, L * L, L * its denominator
FEWEST_SAMPLES = 8  # the spread of fewer says too little


def standard_error(denominator: float, spread: dict[str, float]) -> float | None:
    """Standard error of a mean loss in nats, from the spread over the samples of all ranks.

    The mean is the ratio of two sums over samples, losses L and their denominators m; its variance is
    n / (n - 1) * sum (L - mean * m)^2 / (sum m)^2 (Cochran, Sampling Techniques, 1977, section 6.3). What the
    parameters change within an interval counts as spread, so it is rather too large than too small. None
    for fewer than FEWEST_SAMPLES.
    """
    samples = spread["samples"]
    if samples < FEWEST_SAMPLES - 0.5 or not denominator:  # a mean over ranks, times their number
        return None
    mean = spread["exact"] / denominator
    squares = spread["squares"] - 2 * mean * spread["products"] + mean**2 * spread["squared_counts"]
    variance = max(0.0, squares) * samples / (samples - 1) / denominator**2
    return math.sqrt(variance) if math.isfinite(squares) else None


def paired_error(before: Mapping[str, Any], after: Mapping[str, Any]) -> float | None:
    """The standard error of the change of a mean loss between two evaluations of the same predictions.

    `before`, `after`: the `parts` of `Paired.over_ranks`. None where they are not of the same predictions, or
    too few.
    """
    if before["count"] != after["count"] or None in before["loss"] or None in after["loss"]:
        return None
    counts = np.array(after["count"])
    some = counts > 0
    change = np.array(after["loss"]) - np.array(before["loss"])
    return mean_and_error(moments_of(change[some], counts[some]))[1]


def moments_of(losses: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Sums over samples for `mean_and_error`; sums over ranks are these sums."""
    sums = [losses.sum(), (losses**2).sum(), losses @ counts]
    return np.array([counts.sum(), len(losses), (counts**2).sum(), *sums])


def mean_and_error(moments: np.ndarray) -> tuple[float | None, float | None]:
    """A mean loss and its standard error from `moments_of`; None where there is none."""
    count, *spread = moments.tolist()
    if not count or not np.isfinite(moments).all():
        return None, None
    error = standard_error(count, dict(zip((*SPREAD, *MOMENTS), spread)))
    return spread[2] / count, error
