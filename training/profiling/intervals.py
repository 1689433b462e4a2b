"""Arithmetic of time intervals: (start, end) pairs in any unit, empty ones (end <= start) allowed."""

from __future__ import annotations

import math
from typing import Hashable, Iterable, Sequence, TypeVar

Interval = tuple[float, float]
Key = TypeVar("Key", bound=Hashable)


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same points as sorted intervals that neither overlap nor touch."""
    merged: list[Interval] = []
    for start, end in sorted(each for each in intervals if each[1] > each[0]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def total(intervals: Iterable[Interval]) -> float:
    """Length of the union."""
    return sum(end - start for start, end in union(intervals))


def subtract(intervals: Iterable[Interval], holes: Iterable[Interval]) -> list[Interval]:
    """The union of `intervals` without the points in `holes`."""
    edges = [-math.inf, *(edge for hole in union(holes) for edge in hole), math.inf]
    return intersect(intervals, zip(edges[::2], edges[1::2]))


def intersect(intervals: Iterable[Interval], others: Iterable[Interval]) -> list[Interval]:
    """The points in both, as `union` has them."""
    first, second = union(intervals), union(others)
    found: list[Interval] = []
    i = j = 0
    while i < len(first) and j < len(second):
        found += clip([first[i]], second[j])
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return found


def clip(intervals: Iterable[Interval], window: Interval) -> list[Interval]:
    """Each interval's part in the window, in order; those outside are left out."""
    low, high = window
    clipped = ((max(start, low), min(end, high)) for start, end in intervals)
    return [each for each in clipped if each[1] > each[0]]


def shared(intervals: Sequence[tuple[Key, float, float]]) -> dict[Key, float]:
    """Each key's time, where intervals that overlap share the time equally: the sum is the union's length.

    `intervals`: (key, start, end).
    """
    edges = []
    for index, (_, start, end) in enumerate(intervals):
        if end > start:
            edges += [(start, index), (end, ~index)]
    shares: dict[Key, float] = {}
    running: set[int] = set()
    before = 0.0
    for time, index in sorted(edges):
        for each in running:
            key = intervals[each][0]
            shares[key] = shares.get(key, 0.0) + (time - before) / len(running)
        running.symmetric_difference_update({index if index >= 0 else ~index})
        before = time
    return shares
