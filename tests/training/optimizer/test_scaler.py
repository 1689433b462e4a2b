from __future__ import annotations

import json

import pytest

from base.errors import InputError, TrainingError
from training.optimizer.scaler import DynamicScaler, LossScaler, SkipCounter


class Small(DynamicScaler):
    growth_interval, ceiling = 3, 32.0


@pytest.mark.parametrize(
    "steps, scales",
    [
        # g: finite, b: not. From 8, doubled after 3 good steps in a row, floor 1, ceiling 32.
        ("ggbggg", [8, 8, 4, 4, 4, 8]),  # a bad step starts the count again
        ("gbgbg", [8, 4, 4, 2, 2]),
        ("bbbbggg", [4, 2, 1, 1, 1, 1, 2]),
        ("gggggggggggg", [8, 8, 16, 16, 16, 32, 32, 32, 32, 32, 32, 32]),
    ],
)
def test_dynamic_scale(steps: str, scales: list[float]) -> None:
    scaler = Small(8.0)
    seen = []
    for step in steps:
        before = scaler.scale
        scaler.update(step == "g")
        assert scaler.searching == (scaler.scale < before)
        seen.append(scaler.scale)
    assert seen == scales


def test_floor_is_reached_before_the_run_is_given_up() -> None:
    scaler, counter = DynamicScaler(), SkipCounter()
    attempts_at_floor = 0
    with pytest.raises(TrainingError):
        for step in range(1, 100):
            attempts_at_floor += scaler.scale == 1
            scaler.update(False)
            counter.update(False, step)
    assert attempts_at_floor == 4


def test_dynamic_state_goes_through_json_and_continues_alike() -> None:
    first = Small(8.0)
    for finite in (True, False, True, True):
        first.update(finite)
    second = Small()
    second.restore(json.loads(json.dumps(first.state())))
    for finite in (True, True, True, False, True):
        first.update(finite)
        second.update(finite)
        assert first.state() == second.state()


def test_static_scale() -> None:
    scaler = LossScaler()
    for finite in (True, False, True):
        scaler.update(finite)
        assert scaler.scale == 1.0
    scaler.restore(scaler.state())
    with pytest.raises(InputError, match="--dtype"):
        scaler.restore(DynamicScaler().state())


def test_twenty_skipped_steps_in_a_row_end_the_run() -> None:
    counter = SkipCounter()
    for step in range(1, 20):
        counter.update(False, step)
    counter.update(True, 20)
    assert (counter.in_a_row, counter.total) == (0, 19)
    for step in range(21, 40):
        counter.update(False, step, "go back to ckpt/0000010.params")
    with pytest.raises(TrainingError, match=r"step 40.*20.*go back to ckpt/0000010\.params"):
        counter.update(False, 40, "go back to ckpt/0000010.params")


def test_skip_counter_state() -> None:
    first, second = SkipCounter(), SkipCounter()
    for step, finite in enumerate([False, True, False, False]):
        first.update(finite, step)
    second.restore(json.loads(json.dumps(first.state())))
    assert (second.in_a_row, second.total) == (0, 3), "a full count of attempts"
    second.restore({"in_a_row": 20, "total": 25})
    assert (second.in_a_row, second.total) == (0, 25)
