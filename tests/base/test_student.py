"""Student's distribution and tests against textbooks, integrals and direct definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from base.student import critical_t, exceeds_test, holm, mean_test, two_sided_p, welch_test


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 24, 61])
def test_students_t_is_the_integral_of_its_density(freedom):
    grid = np.linspace(0, 6, 600_001)
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)
    density = scale * (1 + grid**2 / freedom) ** (-(freedom + 1) / 2)
    inside = 2 * np.concatenate([[0], np.cumsum((density[1:] + density[:-1]) / 2 * (grid[1] - grid[0]))])
    for index in (0, 1000, 70_000, 150_000, 277_600, 600_000):
        assert two_sided_p(grid[index], freedom) == pytest.approx(1 - inside[index], abs=1e-9)
    assert two_sided_p(1e9, freedom) < 1e-8 and two_sided_p(0.0, freedom) == 1.0


def test_a_mean_test_by_hand():
    generator = np.random.default_rng(1)
    for count in (2, 3, 5, 8, 30):
        values = generator.standard_normal(count)
        error = values.std(ddof=1) / math.sqrt(count)
        found = mean_test(values.tolist(), 0.9)
        assert found.p == pytest.approx(two_sided_p(values.mean() / error, count - 1), rel=1e-9)
        assert found.mean == pytest.approx(values.mean())
        half = critical_t(0.1, count - 1) * error
        assert (found.low, found.high) == pytest.approx((values.mean() - half, values.mean() + half))


@pytest.mark.parametrize("values", [[], [0.1], [0.1, math.nan], [0.1, math.inf]])
def test_too_few_or_broken_values_are_rejected(values):
    with pytest.raises(ValueError, match="two finite values"):
        mean_test(values, 0.95)
    with pytest.raises(ValueError, match="two means needs two finite values"):
        welch_test([0.1, 0.2], values, 0.95)


def test_holm_adjusts_as_in_the_literature():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


# Additional hours of sleep by two drugs (A. R. Cushny and A. R. Peebles, 1905; Student, 1908), taken as
# independent samples.
SLEEP = (
    [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0],
    [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4],
)


def test_welchs_statistic_is_the_textbooks():
    """t is -1.8608, the standard error 0.84909; 9 degrees of freedom instead of Welch's 17.776 make p larger
    than his 0.0794."""
    found = welch_test(*SLEEP, 0.95)
    assert found.mean == pytest.approx(1.58)
    assert found.p == pytest.approx(two_sided_p(1.8608, 9), rel=1e-4) and 0.0794 < found.p < 0.1
    assert (found.low, found.high) == pytest.approx(
        (1.58 - 2.262 * 0.84909, 1.58 + 2.262 * 0.84909), abs=1e-3
    )
    assert welch_test(SLEEP[1], SLEEP[0], 0.95).p == pytest.approx(found.p)
    assert exceeds_test(*SLEEP, 0.0) == pytest.approx(found.p / 2)
    assert exceeds_test(*SLEEP, 1.58) == pytest.approx(0.5) and exceeds_test(*SLEEP, 3.16) > 0.95
    assert welch_test([2.0] * 9, [1.0, 2.0, 3.0, 4.0], 0.95).p == pytest.approx(
        two_sided_p(0.5 / math.sqrt(5 / 3 / 4), 3)
    )


def test_two_samples_without_spread_get_the_least_p_of_a_rank_test():
    assert welch_test([1.0] * 5, [1.1] * 5, 0.95).p == 2 / 252
    assert welch_test([1.0] * 5, [1.0] * 5, 0.95).p == 1.0
    assert exceeds_test([1.0] * 5, [1.1] * 5, 0.05) == 1 / 252
