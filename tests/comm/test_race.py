"""BytePS's server hands out wrong sums, and comm.byteps_channels keeps it from doing so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.processes import run_ranks

WORKER = Path(__file__).with_name("race_worker.py")
TENSORS = 8


def wrong_sums(kind, rounds):
    """How many of each rank's sums were wrong."""
    result = run_ranks(
        WORKER, 2, "byteps", timeout=150, args=[kind, rounds], env={"OMP_NUM_THREADS": "1"}, grace=10
    )
    counts = [re.search(r"wrong: (\d+) of (\d+)", rank.stdout) for rank in result.ranks]
    assert all(counts), result.describe()
    assert [int(count.group(2)) for count in counts] == [rounds * TENSORS] * 2
    return [int(count.group(1)) for count in counts]


def test_one_name_for_every_sum_of_a_tensor_gives_wrong_sums():
    """The defect is there, so that the test below means something. It shows within a few hundred rounds."""
    assert sum(wrong_sums("name", 300)) > 0


@pytest.mark.parametrize("kind", ["channels", "communicator"])
def test_no_sum_is_wrong(kind):
    assert wrong_sums(kind, 300) == [0, 0]
