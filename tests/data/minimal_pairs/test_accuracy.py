"""Accuracies and standard errors of a small example, by the textbook, and by chance."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest

from data.minimal_pairs.accuracy import accuracies
from data.minimal_pairs.read import MinimalPair

# Paradigm, group, judgements: right, wrong or a tie.
SAMPLE = [("p", "one", "++-="), ("q", "one", "+-"), ("r", "two", "+++"), ("s", "three", "=====")]
SCORES = {"+": (-1.0, -2.0), "-": (-2.0, -1.0), "=": (-3.0, -3.0)}


def judged(sample):
    pairs = [MinimalPair("", name, group, "", "") for name, group, judgements in sample for _ in judgements]
    good, bad = np.array([SCORES[each] for _, _, judgements in sample for each in judgements]).T
    return accuracies(pairs, good, bad)


def test_a_small_example():
    found = judged(SAMPLE)
    paradigms = {each.name: each for each in found.paradigms}
    assert {name: each.accuracy for name, each in paradigms.items()} == {
        "p": 0.625,
        "q": 0.5,
        "r": 1,
        "s": 0.5,
    }
    assert {name: (each.pairs, each.ties) for name, each in paradigms.items()} == {
        **{"p": (4, 1), "q": (2, 0), "r": (3, 0), "s": (5, 5)},
    }
    p, q = statistics.stdev([1, 1, 0, 0.5]) / 2, statistics.stdev([1, 0]) / math.sqrt(2)
    errors = {name: each.error for name, each in paradigms.items()}
    assert errors == pytest.approx({"p": p, "q": q, "r": 0, "s": 0})
    groups = {each.group: each for each in found.groups}
    assert {name: each.accuracy for name, each in groups.items()} == {"one": 0.5625, "three": 0.5, "two": 1}
    assert groups["one"].error == pytest.approx(math.hypot(p, q) / 2) and groups["one"].pairs == 6
    assert found.mean_of_groups.accuracy == pytest.approx((0.5625 + 0.5 + 1) / 3)
    assert found.mean_of_groups.error == pytest.approx(math.hypot(p, q) / 2 / 3)
    assert found.mean_of_paradigms.accuracy == pytest.approx((0.625 + 0.5 + 1 + 0.5) / 4)
    assert found.mean_of_paradigms.error == pytest.approx(math.hypot(p, q) / 4)
    assert (found.mean_of_groups.pairs, found.mean_of_groups.ties) == (14, 6)


def test_one_pair_has_no_standard_error():
    found = judged([("p", "one", "+"), ("q", "two", "++")])
    assert math.isnan(found.paradigms[0].error) and math.isnan(found.mean_of_groups.error)
    assert found.paradigms[1].error == 0 and found.mean_of_paradigms.accuracy == 1
