from __future__ import annotations

import math

import pytest

from training.optimizer.schedule import Schedule


@pytest.mark.parametrize(
    "schedule, expected",
    [
        (Schedule(10, 1.0, 4), [0.25, 0.5, 0.75, 1.0, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0.0, 0.0]),
        (Schedule(6, 1.0, 2, 0.2, 2.0), [0.5, 1, 0.2 + 0.8 * 9 / 16, 0.2 + 0.8 * 4 / 16, 0.25, 0.2, 0.2]),
        (Schedule(4, 1.0), [0.75, 0.5, 0.25, 0.0]),
        (Schedule(4, 1.0, 4), [0.25, 0.5, 0.75, 1.0, 0.0]),
    ],
)
def test_hand_calculated_values(schedule: Schedule, expected: list[float]) -> None:
    assert [schedule(step) for step in range(1, len(expected) + 1)] == pytest.approx(expected, abs=1e-15)


def test_polynomial_is_the_papers_bit_for_bit() -> None:
    """The exact expression, so that a run resumed by this version goes on as it began."""
    num_steps, lr, warmup, end_lr, power = 1563, 0.004, 200, 0.0003, 0.5
    schedule = Schedule(num_steps, lr, warmup, end_lr, power)
    for step in range(warmup + 1, num_steps):
        remaining = (num_steps - step) / (num_steps - warmup)
        assert schedule(step) == end_lr + (lr - end_lr) * remaining**power


class TestWarmupStableDecay:
    """By hand: 2 steps of warmup, 4 at the peak, 4 of cooldown, elapsed 1/4, 2/4, 3/4, 4/4."""

    @pytest.mark.parametrize(
        "power, end_lr, cooldown",
        [
            (1.0, 0.0, [0.75, 0.5, 0.25, 0.0]),
            (0.5, 0.0, [0.5, 1 - math.sqrt(0.5), 1 - math.sqrt(0.75), 0.0]),  # 1-sqrt
            (0.5, 0.2, [0.6, 0.2 + 0.8 * 0.2928932188134524, 0.2 + 0.8 * 0.1339745962155614, 0.2]),
            (2.0, 0.0, [15 / 16, 3 / 4, 7 / 16, 0.0]),
        ],
    )
    def test_hand_calculated_values(self, power: float, end_lr: float, cooldown: list[float]) -> None:
        schedule = Schedule(10, 1.0, 2, end_lr, power, cooldown_steps=4)
        expected = [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, *cooldown, end_lr]
        assert [schedule(step) for step in range(1, 12)] == pytest.approx(expected, abs=1e-15)

    def test_the_stable_part_does_not_depend_on_the_end(self) -> None:
        short = Schedule(1000, 0.01, 100, cooldown_steps=200)
        long = Schedule(3000, 0.01, 100, cooldown_steps=600)
        assert [short(step) for step in range(1, 801)] == [long(step) for step in range(1, 801)]
        assert long(2400) == 0.01 > long(2401)

    def test_a_cooldown_of_all_that_the_warmup_leaves(self) -> None:
        with_it, without = Schedule(10, 1.0, 4, 0.1, cooldown_steps=6), Schedule(10, 1.0, 4, 0.1)
        for step in range(1, 12):
            assert with_it(step) == pytest.approx(without(step))
