"""Steps that are finite but wrong are skipped, and end a run; sound ones are not. A resumed run decides
alike."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from base.errors import NotFiniteError
from comm.local import LocalCommunicator
from tests.training.small_runs import SANE, Stopping, trained
from tests.training.staged import arrays_of
from training.checkpoint import list_steps, read_manifest
from training.guard import EARLY, FEW, LOSSES, NORMS, Guard, is_history
from training.report import read_metrics


def guard_after(losses: Any, norms: Any = ()) -> Guard:
    guard = Guard()
    for number, loss in enumerate(losses):
        guard.update(loss, norms[number] if len(norms) else 1.0, applied=True)
    return guard


class TestLimits:
    """Against medians and spreads that NumPy computes."""

    def test_the_first_step_has_nothing_to_be_compared_with(self):
        assert Guard().off(1e30, 1e30) == ""

    def test_before_the_spread_is_known_losses_are_off_at_a_multiple(self):
        guard = guard_after([8.0, 9.0, 8.0])
        assert guard.off(EARLY * 8.0, 1e30) == ""
        assert "loss was 24.1, far above the 8 " in guard.off(24.1, 1.0)

    @pytest.mark.parametrize("scatter", [0.01, 0.5, 4.0])
    def test_a_loss_is_off_above_six_spreads_and_twice_the_median(self, scatter):
        losses = np.random.default_rng(1).uniform(5 - scatter, 5 + scatter, 2 * LOSSES)
        last = losses[-LOSSES:]
        spread = 1.4826 * np.median(np.abs(last - np.median(last)))
        limit = np.median(last) + max(6 * spread, np.median(last))
        guard = guard_after(losses)
        assert guard.off(limit * (1 - 1e-9), 1.0) == "" and guard.off(limit * (1 + 1e-9), 1.0)

    def test_a_norm_is_off_at_ten_times_the_median(self):
        norms = np.random.default_rng(1).uniform(0.9, 1.1, NORMS)
        guard, limit = guard_after([5.0] * NORMS, norms), 10 * np.median(norms)
        assert guard.off(5.0, limit * (1 - 1e-9)) == ""
        assert "gradient norm was" in guard.off(5.0, limit * 1.01)
        assert guard_after([5.0] * (FEW - 1)).off(5.0, 1e30) == ""

    def test_a_loss_that_is_infinite_is_off_and_one_that_is_not_there_is_not(self):
        guard = guard_after([5.0] * 20)
        assert guard.off(math.inf, 1.0) and not guard.off(math.nan, 1.0)
        guard.update(math.nan, 1.0, applied=True)
        assert is_history(guard.state())

    def test_one_that_takes_spikes_finds_none(self):
        guard = Guard(watches=False)
        guard.update(1.0, 1.0, applied=True)
        assert guard.off(1e30, 1.0) == "" and guard.state()["losses"] == [1.0]


def test_a_norm_that_stays_is_the_new_level_before_the_run_would_end():
    guard, skipped = guard_after([5.0] * 100), 0
    while guard.off(5.0, 30.0):
        guard.update(5.0, 30.0, applied=False)
        skipped += 1
    assert skipped == NORMS // 2 < 20


def test_a_loss_that_stays_off_does_not_become_usual():
    guard = guard_after([5.0] * 100)
    for _ in range(1000):
        assert guard.off(11.0, 1.0)
        guard.update(11.0, 1.0, applied=False)


@pytest.mark.parametrize(
    "state",
    [None, [], {}, {"losses": [1.0]}, {"losses": 1.0, "norms": []}, {"losses": [], "norms": ["1"]},
     {"losses": [math.nan], "norms": []}, {"losses": [], "norms": [math.inf]},
     {"losses": [-1.0], "norms": []}, {"losses": [True], "norms": []},
     {"losses": [], "norms": [], "more": []}],
)  # fmt: skip
def test_what_is_no_history(state):
    assert not is_history(state)


class Corrupting(Stopping):
    """Makes the gradients of some steps, by their number in this process, larger than they are."""

    def __init__(self, *steps: int, stop: int = 0):
        super().__init__(stop, True)
        self.steps, self.taken = steps, 0

    def scaled_average(self, arrays: Any) -> float:
        self.taken += 1
        if self.taken in self.steps:
            for array in arrays:
                array *= 1e4
        return LocalCommunicator.scaled_average(self, arrays)


class TestRun:
    def test_a_spike_is_skipped_counted_and_said_and_a_resumed_run_does_the_same(self, tmp_path, capfd):
        """Step 22 is off by a history that the process has which took the first steps."""
        whole, resumed = tmp_path / "whole", tmp_path / "resumed"
        assert trained(whole, *SANE, communicator=Corrupting(22)) == 0
        assert "warning: step 22 is skipped: the gradient norm was" in capfd.readouterr().err
        assert read_metrics(str(whole))[-1]["skipped_steps"] == 1
        assert 22 not in list_steps(str(whole)) and 23 in list_steps(str(whole))  # late

        assert trained(resumed, *SANE, communicator=Corrupting(stop=20)) == 143
        assert trained(resumed, "--resume", *SANE, communicator=Corrupting(1)) == 0
        assert read_metrics(str(resumed))[-1]["skipped_steps"] == 1
        assert arrays_of(whole, 40) == arrays_of(resumed, 40)
        assert read_manifest(str(whole), 40)["guard"] == read_manifest(str(resumed), 40)["guard"]
        # Such a gradient is no other's, and without the guard it changes what comes of the run.
        taken = tmp_path / "taken"
        assert trained(taken, *SANE, "--spikes", "take", communicator=Corrupting(22)) == 0
        assert read_metrics(str(taken))[-1]["skipped_steps"] == 0 and 22 in list_steps(str(taken))
        assert arrays_of(taken, 40)[0] != arrays_of(whole, 40)[0]

    def test_a_sound_run_has_the_same_bits_with_the_guard_and_without(self, tmp_path):
        for spikes in ("skip", "take"):
            assert trained(tmp_path / spikes, *SANE, "--spikes", spikes) == 0
        assert arrays_of(tmp_path / "skip", 40) == arrays_of(tmp_path / "take", 40)

    def test_a_ruin_without_anything_before_it_ends_each_run_that_loads_it(self, tmp_path):
        folder = tmp_path / "run"
        words = (*SANE, "--ckpt_interval", "1")
        with pytest.raises(NotFiniteError, match="20th time in a row"):
            trained(folder, *words, "--lr", "1e3")
        with pytest.raises(NotFiniteError, match="20th time in a row"):
            trained(folder, *words, "--resume", "--lr", "0.001")
        assert list_steps(str(folder)) == [1]

    def test_a_run_whose_last_steps_were_off_has_not_ended_well(self, tmp_path):
        with pytest.raises(NotFiniteError, match="last 7 steps were skipped.*no checkpoint was saved yet"):
            trained(tmp_path / "run", *SANE, "--num_steps", "8", "--lr", "1e3")
        assert list_steps(str(tmp_path / "run")) == []

    def test_stage_2_and_other_data_begin_a_history_of_their_own(self, tmp_path):
        both = "--stages both --dummy_data_len 8,16 --num_steps 10,3 --ckpt_interval 100"
        assert trained(tmp_path / "stages", *SANE, *both.split()) == 0
        lengths = [len(read_manifest(str(tmp_path / "stages"), step)["guard"]["losses"]) for step in (10, 13)]
        assert lengths == [10, 3]
        folder = tmp_path / "run"
        assert trained(folder, *SANE, communicator=Stopping(10, True)) == 143
        assert trained(folder, *SANE, "--resume", "--batch_size", "3", communicator=Stopping(1, True)) == 143
        assert len(read_manifest(str(folder), 12)["guard"]["losses"]) == 1
