"""Scores over seeds: textbook values, and how often equal models are called different."""

from __future__ import annotations

import numpy as np
import pytest

from base.student import DIFFERENT, NOT_SHOWN
from tasks.seeds import PAIRED, TOO_FEW, WELCH, compare_models, summarize


def scores(values, first=0):
    return dict(enumerate(values, start=first))


def test_a_summary_is_the_textbooks():
    found = summarize({3: 2.0, 1: 1.0, 2: 6.0})
    assert found.mean == 3.0 and found.deviation == pytest.approx(7**0.5) and found.values == (1.0, 6.0, 2.0)
    assert found.half == pytest.approx(4.302653 * (7 / 3) ** 0.5, rel=1e-6)  # t of 2 degrees of freedom
    assert found.line(".1f") == "3.0 \u00b1 2.6 (1.0, 6.0, 2.0)"
    assert summarize({5: 0.25}).line() == "0.250 (0.250)"
    for bad in ({}, {0: float("nan")}):
        with pytest.raises(ValueError):
            summarize(bad)


def test_pairs_by_seed_show_what_means_alone_do_not():
    base = np.array([0.80, 0.86, 0.71, 0.90, 0.77])
    better = base + [0.010, 0.012, 0.009, 0.011, 0.010]
    (verdict,) = compare_models({"a": scores(base), "b": scores(better)})
    assert verdict.verdict == DIFFERENT and verdict.test == PAIRED and verdict.seeds == 5
    assert verdict.low < 0.0104 < verdict.high and verdict.sentence().endswith("b is higher")
    (verdict,) = compare_models({"a": scores(base), "b": scores(better, first=100)})
    assert verdict.verdict == NOT_SHOWN and verdict.test == WELCH
    assert "no difference shown beyond the seeds'" in verdict.sentence()


def test_welch_by_hand():
    # Samples of equal variance and number: the pooled test with 2n - 2 degrees of freedom.
    one, other = scores([1.0, 2.0, 3.0, 4.0, 5.0]), scores([4.0, 5.0, 6.0, 7.0, 8.0], first=10)
    (verdict,) = compare_models({"a": one, "b": other})
    assert verdict.difference == 3.0 and verdict.p == pytest.approx(0.01707168, rel=1e-6)  # t = 3, 8 degrees
    assert verdict.high - verdict.difference == pytest.approx(2.306004, rel=1e-6)
    # Unequal ones: 4.9 degrees of freedom, rounded down to 4.
    other = scores([4.0, 15.0, 6.0, 27.0, 8.0], first=10)
    (verdict,) = compare_models({"a": one, "b": other})
    error = (2.5 / 5 + np.var([4, 15, 6, 27, 8], ddof=1) / 5) ** 0.5
    assert (verdict.high - verdict.low) / 2 == pytest.approx(2.776445 * error, rel=1e-6)


def test_few_seeds_have_no_verdict_and_no_spread_is_no_proof():
    (verdict,) = compare_models({"a": scores([0.1] * 4), "b": scores([0.9] * 4)})
    assert verdict.verdict == TOO_FEW and verdict.p is None
    assert "no verdict on fewer than 5" in verdict.sentence()
    for first in (0, 50):
        (verdict,) = compare_models({"a": scores([0.1] * 5), "b": scores([0.9] * 5, first)})
        assert verdict.verdict == NOT_SHOWN and verdict.p == 2 / 2**5
        (verdict,) = compare_models({"a": scores([0.1] * 6), "b": scores([0.9] * 6, first)})
        assert verdict.verdict == DIFFERENT


@pytest.mark.parametrize("seeds", [5, 8])
@pytest.mark.parametrize("offset", [0, 100], ids=["same seeds", "other seeds"])
def test_equal_models_are_seldom_called_different(offset, seeds):
    generator = np.random.default_rng(2)
    false = 0
    for _ in range(400):
        drawn = [scores(generator.normal(0.85, 0.02, seeds), offset * place) for place in range(3)]
        models = dict(zip("abc", drawn))
        false += any(each.verdict == DIFFERENT for each in compare_models(models))
    assert false <= 36  # 20 expected at most; more than 36 come about once in 2,000 runs


def test_five_seeds_show_a_difference_far_beyond_their_spread_alone():
    one, other = scores([22.0, 29.0, 25.0, 21.0, 24.0]), scores([60.0, 71.0, 74.0, 61.0, 70.0])
    (verdict,) = compare_models({"a": one, "b": other})
    # Differences 38, 42, 49, 40, 46: mean 43, deviation 20 ** 0.5; t of 4 degrees of freedom.
    half = 2.776445 * (20 / 5) ** 0.5
    assert verdict.verdict == DIFFERENT and verdict.difference == pytest.approx(43)
    assert (verdict.high - verdict.low) / 2 == pytest.approx(half, rel=1e-6)
    one, other = scores([29.2, 24.8, 70.7, 26.0, 90.0]), scores([28.5, 92.2, 78.5, 24.0, 80.0])
    (verdict,) = compare_models({"a": one, "b": other})
    assert verdict.verdict == NOT_SHOWN and verdict.low < 0 < verdict.high
