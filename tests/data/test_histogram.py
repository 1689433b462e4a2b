"""Bins hold every value once, in ranges that people like; bars are as long as their counts."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from data.inspection.histogram import bar, bars, bins


@pytest.mark.parametrize("seed", range(5))
def test_bins_hold_every_value_once(seed):
    generator = random.Random(seed)
    values = [generator.randint(0, generator.choice([1, 10, 512, 100_000])) for _ in range(300)]
    counts = sorted(Counter(values).items())
    for multiple, most, tail in ((1, 16, 0.0), (8, 16, 0.0), (1, 12, 0.01), (1, 2, 0.0)):
        found = bins(counts, multiple, most, tail)
        assert sum(each.number for each in found) == len(values)
        assert len(found) <= most + 2  # and one each for 0 and for the tail
        for each in found:
            inside = [v for v in values if v >= each.first and (each.last is None or v <= each.last)]
            assert each.number == len(inside)
        ranged = [each for each in found if each.first > 0]
        for before, after in zip(ranged, ranged[1:]):
            assert after.first == before.last + 1
        for each in ranged:
            if each.last is not None:
                width = each.last - each.first + 1
                assert width % multiple == 0 and each.last % width == 0


def test_widths_are_round():
    assert [each.name for each in bins([[1, 5], [97, 1]], most=12)][:2] == ["1-10", "11-20"]
    assert [each.name for each in bins([[17, 5], [512, 1]], multiple=8)][::15] == ["1-32", "481-512"]
    assert [each.name for each in bins([[17, 5], [128, 1]], multiple=8)][0] == "17-24"
    assert [each.name for each in bins([[0, 2], [3, 1]])] == ["0", "3"]
    assert bins([[0, 4]]) == [(0, 0, 4)]


def test_the_tail_shares_a_bin():
    found = bins([[1, 500], [2, 490], [5000, 10]], most=12, tail=0.01)
    assert [(each.name, each.number) for each in found] == [("1", 500), ("2", 490), ("3+", 10)]


def test_bars_are_as_long_as_their_counts():
    lines = bars(bins([[1, 100], [2, 50], [3, 0], [4, 1]]), 80, unicode=False)
    lengths = [line.count("#") for line in lines]
    assert lengths[1] * 2 in (lengths[0], lengths[0] - 1) and lengths[2] == 0 and lengths[3] == 1
    assert [line.split()[-2:] for line in lines][:2] == [["100", "66.2%"], ["50", "33.1%"]]
    assert {len(line) for line in lines} == {len(lines[0])} and len(lines[0]) <= 80


def test_eighths():
    assert bar(1.0, 10, True) == "\u2588" * 10
    assert bar(0.5, 1, True) == "\u258c"
    assert bar(0.0, 10, True) == "" and bar(1e-9, 10, True) == "\u258f"
    assert bar(0.0, 10, False) == "" and bar(1e-9, 10, False) == "#" and bar(0.5, 10, False) == "#####"
