"""BytePS's server hands out wrong sums, and comm.byteps.communicator keeps it from doing so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.processes import run_ranks

WORKER = Path(__file__).with_name("race_worker.py")
pytestmark = pytest.mark.alone  # a race is won or lost by time
ROUNDS, TENSORS = 150, 8  # a dozen rounds until the first wrong sum are usual, thirty are many


def launch(rounds, *kinds):
    env = {"OMP_NUM_THREADS": "1"}
    return run_ranks(WORKER, 2, "byteps", args=[rounds, *kinds], env=env)


def test_one_name_for_every_sum_of_a_tensor_gives_wrong_sums():
    """The defect is there, so that the test below means something."""
    result = launch(2 * ROUNDS, "name")
    said = [re.search(r"name: step \d+, .* in place of", rank.stdout) for rank in result.ranks]
    assert any(said), result.describe()


def test_no_sum_is_wrong_and_the_ranks_end_in_order():
    """Both of our ways, in the same ranks."""
    kinds = "channels", "communicator"
    result = launch(ROUNDS, *kinds).check()
    for rank in result.ranks:
        for kind in kinds:
            assert f"{kind}: no wrong sum of {ROUNDS * TENSORS}\n" in rank.stdout, result.describe()
