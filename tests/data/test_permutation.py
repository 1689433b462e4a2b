from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from data.pretraining.randomness import permuted
from tests.data.chance import UNLIKELY, chi_square_p


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 16, 17, 1000, 65536, 65537, 300_001])
def test_each_comes_once(count):
    order = permuted(np.arange(count), count, key=7)
    assert order.dtype == np.int64
    assert (np.sort(order) == np.arange(count)).all()


def test_any_part_can_be_had_alone_and_in_any_order():
    whole = permuted(np.arange(10_000), 10_000, key=3)
    places = np.random.default_rng(0).permutation(10_000)[:500]
    assert (permuted(places, 10_000, key=3) == whole[places]).all()
    assert len(permuted(np.arange(0), 10, key=3)) == 0


def test_beyond_32_bits():
    count = (1 << 40) + 5
    places = np.arange(count - 100_000, count)
    order = permuted(places, count, key=1)
    assert order.min() >= 0 and order.max() < count
    assert len(np.unique(order)) == len(order)
    # Places side by side go anywhere: the mean of 100,000 uniform numbers has a standard error of 0.0009.
    assert abs(order.mean() / count - 0.5) < 0.005


def test_keys_give_all_orders_of_four_equally_often():
    drawn = 2400
    orders = Counter(tuple(permuted(np.arange(4), 4, key).tolist()) for key in range(drawn))
    observed = np.array([orders[order] for order in itertools.permutations(range(4))])
    assert chi_square_p(observed, np.full(24, drawn / 24)) > UNLIKELY
