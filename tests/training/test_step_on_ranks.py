"""The optimizer step on two real ranks: the same as one large batch, and skipped by all or by none."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.processes import run_ranks

WORKER = Path(__file__).with_name("step_worker.py")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    directory = tmp_path_factory.mktemp("steps")
    result = run_ranks(WORKER, 2, args=[directory]).check()
    return directory, [json.loads(rank.stdout.splitlines()[-1]) for rank in result.ranks]


def test_two_ranks_take_the_step_of_one_large_batch(runs):
    directory, ranks = runs
    alone = ranks[0]["alone"]
    assert ranks[0]["applied"][:5] == alone["applied"] == [True] * 5
    np.testing.assert_allclose(ranks[0]["grad_norm"], alone["grad_norm"], rtol=1e-5)
    of_two = np.load(directory / "rank-0.npz")
    of_one = np.load(directory / "alone.npz")
    for name in of_one.files:
        # LAMB divides by sqrt(v): rounding in nearly vanishing gradients (the key biases') is blown up.
        if not name.endswith("proj_key.bias"):
            np.testing.assert_allclose(of_two[name], of_one[name], rtol=2e-4, atol=2e-6, err_msg=name)


def test_sums_of_two_ranks_give_the_bits_of_means(runs):
    _, ranks = runs
    for seen in ranks:
        assert seen["factors"] == [2, 1]  # the number of ranks left to the step, and not
        assert seen["as_if_divided"]


def test_ranks_stay_bit_identical(runs):
    directory, _ = runs
    first, second = (np.load(directory / f"rank-{rank}.npz") for rank in (0, 1))
    for name in first.files:
        assert np.array_equal(first[name], second[name]), name


def test_a_nan_on_one_rank_skips_the_step_on_all(runs):
    _, ranks = runs
    for seen in ranks:
        assert seen["applied"][5:] == [False] * 20
        assert seen["unchanged"]


def test_twenty_skipped_steps_end_the_run(runs):
    _, ranks = runs
    for seen in ranks:
        assert "20th time in a row" in seen["message"]
        assert "0000005.params" in seen["message"]


def test_one_rank_asked_to_stop_stops_all(runs):
    _, ranks = runs
    assert [seen["keep_going"] for seen in ranks] == [False, False]
