"""The end of a run's time: what is given, and the step to leave after."""

from __future__ import annotations

import os
import re
import time

import pytest

from base.errors import InputError
from training.deadline import (
    EVALUATION,
    FIRST_SAVE_RATE,
    SAVE,
    SLURM_END,
    STEP,
    Deadline,
    DeadlineConfig,
    began,
    check_deadline,
    end_of_time,
)


class TestEnd:
    def test_the_earlier_end_counts(self):
        assert end_of_time(DeadlineConfig(), {SLURM_END: "5000"}, 1000.0) is None
        assert end_of_time(DeadlineConfig(2.0), {SLURM_END: "5000"}, 1000.0) == 1000 + 7200
        assert end_of_time(DeadlineConfig(None, 120), {SLURM_END: "5000"}, 1000.0) == 4880
        assert end_of_time(DeadlineConfig(2.0, 120), {SLURM_END: "5000"}, 1000.0) == 4880
        assert end_of_time(DeadlineConfig(1.0, 120), {SLURM_END: "5000"}, 1000.0) == 1000 + 3600 - 120
        assert end_of_time(DeadlineConfig(1.0, 120), {}, 1000.0) == 1000 + 3600 - 120

    @pytest.mark.parametrize(
        ("config", "end", "words"),
        [
            ((None, 120), None, "--save_before 120: nothing says when the time ends"),
            ((None, 120), "soon", "SLURM_JOB_END_TIME=soon"),
            ((None, 120), "900", "has passed"),
            ((None, 120), "1100", "--save_before 120: the time ends in 100 s"),
            ((0.01, 36), None, "--save_before 36: the time ends in 36 s"),
        ],
    )
    def test_what_cannot_be_kept_is_an_error(self, config, end, words):
        environ = {} if end is None else {SLURM_END: end}
        with pytest.raises(InputError, match=re.escape(words)):
            end_of_time(DeadlineConfig(*config), environ, 1000.0)

    def test_only_rank_0_needs_to_know(self):
        """Ranks that ssh has started do not have Slurm's variables."""
        check_deadline(DeadlineConfig(None, 120), {"OMPI_COMM_WORLD_RANK": "1"})
        with pytest.raises(InputError):
            check_deadline(DeadlineConfig(None, 120), {"OMPI_COMM_WORLD_RANK": "0"})

    def test_the_beginning_is_that_of_the_process(self):
        psutil = pytest.importorskip("psutil")
        assert began() == pytest.approx(psutil.Process(os.getpid()).create_time(), abs=2.0)
        assert began() < time.time()


class TestLeaving:
    """A run of steps, saves and evaluations of known length against the seconds that it has."""

    def leave(self, end: float, step=1.0, save=4.0, evaluation=3.0, interval=5, save_bytes=0.0) -> tuple:
        """The last step, and when its checkpoint was written."""
        clock = [0.0]
        deadline = Deadline(end, save_bytes, now=lambda: clock[0])
        for number in range(1, 10_000):
            clock[0] += step
            deadline.took(STEP, step)
            in_time = deadline.allows(saves=number % interval == 0)
            if number % interval == 0 or not in_time:
                clock[0] += save
                deadline.took(SAVE, save)
                if not in_time:
                    return number, clock[0]
                clock[0] += evaluation
                deadline.took(EVALUATION, evaluation)
        raise AssertionError("it never left")

    @pytest.mark.parametrize("end", [30.0, 31.5, 47.0, 60.0, 61.0, 64.5, 100.0, 1000.25])
    def test_it_is_saved_in_time_and_not_much_before(self, end):
        _, done = self.leave(end)
        assert done <= end
        assert end - done <= 1.0 + 4.0 + 3.0 + 1.0  # a save and an evaluation that would not have fitted in

    def test_a_run_whose_time_is_up_takes_one_step(self):
        assert self.leave(0.0)[0] == 1

    def test_before_the_first_save_its_size_counts(self):
        """With 20 s for a save that is not measured yet, it leaves 20 s before the end."""
        step, _ = self.leave(100.0, save=4.0, interval=1000, save_bytes=20 * FIRST_SAVE_RATE)
        assert step == 79

    def test_a_long_first_step_is_forgotten(self):
        clock = [0.0]
        deadline = Deadline(1000.0, 0.0, now=lambda: clock[0])
        deadline.took(STEP, 500.0)
        clock[0] = 600.0
        assert not deadline.allows(saves=False)
        for _ in range(60):
            deadline.took(STEP, 1.0)
        assert deadline.allows(saves=False)

    def test_without_an_end_there_is_always_time(self):
        assert Deadline(None, 1e30).allows(saves=True)
