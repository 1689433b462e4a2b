from __future__ import annotations

import threading
import time

import pytest

from data.pretraining.prefetch import Prefetcher
from tests.processes import until


def slow_squares(count, delays=(0.004, 0.0, 0.002)):
    def task(number):
        time.sleep(delays[number % len(delays)])
        return number * number

    return ((number, lambda number=number: task(number)) for number in range(count))


def prefetch_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("prefetch_")]


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_results_come_in_order_and_the_threads_end(num_workers):
    with Prefetcher(slow_squares(40), 4, num_workers) as results:
        assert list(results) == [(number, number * number) for number in range(40)]
        assert list(results) == []
    assert not prefetch_threads()


@pytest.mark.parametrize("num_workers", [1, 3])
def test_no_more_than_depth_tasks_run_ahead(num_workers):
    started = []
    tasks = ((number, lambda number=number: started.append(number)) for number in range(1000))
    with Prefetcher(tasks, 5, num_workers) as results:
        for expected in (5, 6):
            until(lambda expected=expected: len(started) == expected)
            time.sleep(0.1)
            assert len(started) == expected
            next(results)
    assert not prefetch_threads()


def fail():
    raise KeyError("in a task")


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_a_tasks_exception_comes_in_its_place(num_workers):
    results = Prefetcher(enumerate([lambda: 1, lambda: 2, fail, lambda: 4]), 4, num_workers)
    assert [next(results), next(results)] == [(0, 1), (1, 2)]
    with pytest.raises(KeyError, match="in a task"):
        next(results)
    results.close()
    assert not prefetch_threads()
    with pytest.raises(StopIteration):
        next(results)


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_an_exception_of_the_iterator_comes_after_the_results_before_it(num_workers):
    def tasks():
        yield 7, lambda: 1
        raise OSError("in the iterator")

    results = Prefetcher(tasks(), 4, num_workers)
    assert next(results) == (7, 1)
    with pytest.raises(OSError, match="in the iterator"):
        next(results)
    results.close()
    assert not prefetch_threads()


def test_closing_early_loses_what_was_made_and_ends_the_threads():
    results = Prefetcher(slow_squares(10_000), 8, 2)
    assert next(results) == (0, 0)
    results.close()
    results.close()
    assert not prefetch_threads()


def test_work_goes_on_while_the_consumer_is_busy():
    done = []
    with Prefetcher(enumerate([lambda: done.append(1)] * 8), 8, 2):
        until(lambda: len(done) == 8)
