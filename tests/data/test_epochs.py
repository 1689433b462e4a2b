from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from data.pretraining.epochs import EpochCache
from tests.processes import LIMIT

LARGE = 1 << 30


def test_large_results_are_kept_for_two_epochs_and_given_up_before_the_next_is_made():
    made, held = [], set()

    def make(epoch):
        made.append(epoch)
        assert len(held) <= 1, "at most one other is held while one is made"
        return Held(epoch, held)

    cache = EpochCache(make, lambda result: LARGE)
    for epoch in (0, 1, 0, 1, 2, 1, 3, 2):
        assert cache.get(epoch).epoch == epoch
    assert made == [0, 1, 2, 3, 2]
    assert held == {3, 2}


class Held:
    """Notes when it comes and goes."""

    def __init__(self, epoch, held):
        self.epoch, self.held = epoch, held
        held.add(epoch)

    def __del__(self):
        self.held.discard(self.epoch)


def test_small_results_are_kept_for_many_epochs_but_not_without_end():
    made, held = [], set()
    cache = EpochCache(lambda epoch: made.append(epoch) or Held(epoch, held), lambda result: 1000)
    for epoch in [*range(40), *range(40)]:
        assert cache.get(epoch).epoch == epoch
    assert made == list(range(40))
    for epoch in range(1000):
        cache.get(epoch)
    # A run over a small text makes a plan every few steps: its memory shall not grow for days.
    assert len(held) < 60
    assert cache.get(0).epoch == 0 and made.count(0) == 2


def test_threads_that_want_the_same_wait_for_the_one_that_makes_it():
    made = []

    def make(epoch):
        made.append(epoch)
        time.sleep(0.1)
        return object()

    cache = EpochCache(make, lambda result: 1)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(cache.get, [5] * 8))
    assert made == [5] and len(set(map(id, results))) == 1


def test_other_results_can_be_had_while_one_is_prepared():
    go = threading.Event()

    def make(epoch):
        if epoch == 1:
            assert go.wait(LIMIT)
        return epoch + 100

    cache = EpochCache(make, lambda result: LARGE)
    assert cache.get(0) == 100
    cache.prepare(1)
    cache.prepare(1)
    assert cache.get(0) == 100
    go.set()
    assert cache.get(1) == 101


@pytest.mark.parametrize("prepared", [False, True])
def test_an_error_is_raised_by_get_and_the_next_get_tries_again(prepared):
    attempts = []

    def make(epoch):
        attempts.append(epoch)
        if len(attempts) == 1:
            raise OSError("disk full")
        return epoch + 100

    cache = EpochCache(make, lambda result: 1)
    if prepared:
        cache.prepare(3)
    with pytest.raises(OSError, match="disk full"):
        cache.get(3)
    assert cache.get(3) == 103 and attempts == [3, 3]
