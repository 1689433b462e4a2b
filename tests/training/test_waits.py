"""The time that others wait for a rank: by hand, and of a rank that is slowed down in a real run."""

from __future__ import annotations

import re
from typing import Sequence

import numpy as np
import pytest

from tests.faults.jobs import SCRIPTS, patched
from tests.processes import ROOT, run_ranks
from tests.training.small_runs import command
from training.report import read_metrics
from training.step import MOST, STEPS, Waits

# Has one rank wait in each step.
SLOW = """
import os, time
import data.pretraining.prefetch, training.step
from base.launchers import launched_rank
own = launched_rank(os.environ)
act = {function}

def slowed(*given):
    time.sleep({seconds} * (own == {rank}))
    return act(*given)

{function} = slowed
"""
DATA, COMPUTING = "data.pretraining.prefetch.Feed.__next__", "training.step.TrainStep._average"


def after(*steps: Sequence[float]) -> Waits:
    """Of ranks that begin at once and have their gradients at these times."""
    waits = Waits(0, len(steps[0]))
    for times in steps:
        waits.add([0.0] * len(times) + list(times))
    return waits


def test_the_last_rank_costs_what_it_is_later_than_the_second_last():
    waits = after([1.0, 1.5, 1.25], [2.0, 1.0, 1.0], [1.0, 1.0, 1.0])
    assert waits.of_interval(4, 10.0) == {"0": 0.25, "1": 0.0625}
    assert waits.of_interval(4, 10.0) == {}


def test_who_begins_late_is_late_once():
    """The longer wait of a rank counts; that of another one counts, too."""
    waits = Waits(0, 2)
    waits.add([0.0, 0.5, 1.0, 1.25])
    assert waits.of_interval(1, 2.0) == {"1": 0.5}
    waits.add([0.0, 0.5, 1.0, 1.75])
    assert waits.of_interval(1, 2.0) == {"1": 0.75}
    waits.add([0.0, 0.5, 1.25, 1.0])
    assert waits.of_interval(1, 2.0) == {"0": 0.25, "1": 0.5}


def test_times_are_put_in_their_places():
    waits = Waits(1, 3)
    waits.agreed()
    waits.begun()
    waits.ready()
    begun, ready = waits.times()[1::3]
    assert 0 < begun <= ready and waits.times() == [0, begun, 0, 0, ready, 0]
    waits.interrupted()
    waits.begun()
    waits.ready()
    assert waits.times() == [0] * 6


def test_a_line_of_the_metrics_has_few_of_many_ranks():
    waits = after(*(np.ones(100) + rank * (np.arange(100) == rank) for rank in range(100)))
    assert list(waits.of_interval(1, 100.0)) == [str(rank) for rank in range(100 - MOST, 100)]


@pytest.mark.parametrize(
    "costs, seconds, named",
    [
        ([0.0, 0.3, 0.0], 2.0, True),
        ([0.0, 0.19, 0.0], 2.0, False),  # less than a tenth
        ([0.11, 0.3, 0.0], 2.0, False),  # another one is late as often, nearly
        ([0.09, 0.3, 0.0], 2.0, True),
    ],
)
def test_a_rank_is_named_that_costs_much_and_more_than_others(costs, seconds, named):
    waits = after(*(1 + cost * (np.arange(3) == rank) for rank, cost in enumerate(costs)))
    waits.of_interval(STEPS // 2, seconds / 2)
    assert waits.slow_rank() is None, "too few steps"
    waits.of_interval(STEPS // 2, seconds / 2)
    sentence = waits.slow_rank()
    assert (sentence is not None) == named
    if sentence:
        assert sentence == "rank 1 is slow: the others have waited for it 15% of the time, 0.015 s a step"
        waits.add([0, 0, 0, 1, 3, 1])
        waits.of_interval(STEPS, seconds)
        assert waits.slow_rank() is None, "once"


def test_one_process_waits_for_nobody():
    waits = Waits(0, 1)
    waits.agreed()
    waits.ready()
    waits.add(waits.times())
    assert waits.of_interval(STEPS, 1.0) == {} and waits.slow_rank() is None


@pytest.mark.alone
@pytest.mark.parametrize(
    "launcher, ranks, slow, function", [("mpirun", 2, 1, DATA), ("byteps", 2, 0, COMPUTING)]
)
def test_a_slow_rank_is_measured_and_named(tmp_path, launcher, ranks, slow, function):
    seconds = 0.5
    words = command(tmp_path / "run", "--num_steps", STEPS, "--log_interval", STEPS // 2, "--seed", "3")
    code = patched(ROOT / SCRIPTS[launcher], SLOW.format(seconds=seconds, rank=slow, function=function))
    result = run_ranks(code, ranks, launcher, args=words).check()
    said = re.findall(r"warning: rank (\d+) is slow: the others have waited for it (\d+)%", result.stderr)
    assert len(said) == 1 and int(said[0][0]) == slow and int(said[0][1]) > 50, result.stderr
    for line in read_metrics(str(tmp_path / "run")):
        waits = line["rank_wait_s"]
        assert max(waits, key=waits.get) == str(slow) and 0.5 * seconds < waits[str(slow)] < line["step_s"]
