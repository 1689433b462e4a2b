from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from data.pretraining.prefetch import EpochCache, Feed
from tests.processes import LIMIT, until


def slow_squares(count, delays=(0.004, 0.0, 0.002)):
    def task(number):
        time.sleep(delays[number % len(delays)])
        return number * number

    return ((number, lambda number=number: task(number)) for number in range(count))


def started(tasks, num_workers, depth=4):
    feed = Feed(lambda position: tasks, num_workers=num_workers, depth=depth)
    feed.seek(0)
    return feed


def prefetch_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("prefetch_")]


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_results_come_in_order_and_the_threads_end(num_workers):
    with closing(started(slow_squares(40), num_workers)) as feed:
        assert [(batch, feed.position) for batch in feed] == [(number**2, number) for number in range(40)]
        assert list(feed) == []
    assert not prefetch_threads()


@pytest.mark.parametrize("num_workers", [1, 3])
def test_no_more_than_depth_tasks_run_ahead(num_workers):
    begun = []
    tasks = ((number, lambda number=number: begun.append(number)) for number in range(1000))
    with closing(started(tasks, num_workers, depth=5)) as feed:
        for expected in (5, 6):
            until(lambda expected=expected: len(begun) == expected)
            time.sleep(0.1)
            assert len(begun) == expected
            next(feed)
    assert not prefetch_threads()


def fail():
    raise KeyError("in a task")


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_a_tasks_exception_comes_in_its_place(num_workers):
    feed = started(enumerate([lambda: 1, lambda: 2, fail, lambda: 4]), num_workers)
    assert [next(feed), next(feed), feed.position] == [1, 2, 1]
    with pytest.raises(KeyError, match="in a task"):
        next(feed)
    assert feed.position == 1
    feed.close()
    feed.close()
    assert not prefetch_threads()
    with pytest.raises(StopIteration):
        next(feed)


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_an_exception_of_the_iterator_comes_after_the_results_before_it(num_workers):
    def tasks():
        yield 7, lambda: 1
        raise OSError("in the iterator")

    feed = started(tasks(), num_workers)
    assert (next(feed), feed.position) == (1, 7)
    with pytest.raises(OSError, match="in the iterator"):
        next(feed)
    feed.close()
    assert not prefetch_threads()


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
