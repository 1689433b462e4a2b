"""Metrics against frozen values of scikit-learn 1.9.1 and SciPy 1.17.1."""

from __future__ import annotations

import math

import pytest

from data.classification.glue import TASKS
from data.classification.metrics import headline, own_metrics, scores

# Predictions and labels (a digit each), accuracy_score, f1_score (None with more than two classes), the same
# with average="macro", matthews_corrcoef.
CLASSES = [
    ("01101001", "01001101", 0.75, 0.75, 0.75, 0.5),
    ("111111", "011011", 0.6666666666666666, 0.8, 0.4, 0.0),
    ("00000", "00000", 1.0, 0.0, 1.0, 0.0),
    ("0000", "1111", 0.0, 0.0, 0.0, 0.0),
    ("0101", "1010", 0.0, 0.0, 0.0, -1.0),
    ("00001", "00000", 0.8, 0.0, 0.4444444444444444, 0.0),
    (
        "1111111000011001010010001010011111111101",
        "0010110000011011110100001000111010001110",
        0.6,
        0.6190476190476191,
        0.5989974937343359,
        0.22566773346211,
    ),
    (
        "102201222102100121122111001110",
        "001211121111111220111001201220",
        0.4,
        None,
        0.396264367816092,
        0.05834032048280743,
    ),
    ("220021", "210022", 0.6666666666666666, None, 0.5555555555555555, 0.45454545454545453),
    ("330", "000", 0.3333333333333333, None, 0.25, 0.0),
]
# Predictions and labels, pearsonr, spearmanr (None for NaN), mean_squared_error.
NUMBERS = [
    ("1.0 2 3 4", "1.5 1.0 3.5 3.0", 0.7592566023652968, 0.6000000000000001, 0.625),
    ("0.5 0.5 0.5", "1 2 3.0", None, None, 2.9166666666666665),
    ("1 1 2 2 3.0", "5 4 4 4 0.0", -0.8583950752789521, -0.8249579113843054, 8.4),
    ("1 2.0", "5 3.0", -1.0, -0.9999999999999999, 8.5),
    (
        "1.71 3.15 0.51 2.04 2.4 3.76 3.19 2.17 2.13 2.25 4.02 2.07 2.2 2.85 2.38 2.3 1.39 2.49 2.06 3.67",
        "0.2 4.4 2.4 2.8 1.6 3.8 0.2 1.8 0.2 0.6 4.8 3.2 2.2 2.6 4.4 1.8 3.0 3.4 1.8 2.6",
        0.3507582948659271,
        0.34339867141255903,
        1.75346,
    ),
    ("1e-09 2e-09 3e-09 5e-09", "1.0 2 3 4", 0.9827076298239908, 1.0, 7.499999983),
    ("1000001.0 1000002.0 1000002.5", "0.1 0.5 0.2", 0.4193139346887674, 0.5, 1000003133336.1167),
    ("3.0 1 2", "1.0 1 1", None, None, 1.6666666666666667),
]


@pytest.mark.parametrize("case", CLASSES, ids=range(len(CLASSES)))
def test_classes_as_scikit_learn(case):
    predictions, labels = ([int(digit) for digit in digits] for digits in case[:2])
    expected = list(case[2:])
    found = scores(("accuracy", "f1", "macro_f1", "mcc"), predictions, labels)
    if expected[1] is None:
        expected[1] = found["f1"]
    assert list(found.values()) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("case", NUMBERS, ids=range(len(NUMBERS)))
def test_numbers_as_scipy(case):
    predictions, labels = ([float(word) for word in words.split()] for words in case[:2])
    expected = case[2:]
    found = scores(("pearson", "spearman", "mse"), predictions, labels)
    for value, wanted in zip(found.values(), expected):
        assert value is None if wanted is None else value == pytest.approx(wanted, rel=1e-12)


def test_what_is_not_finite_has_no_score():
    for bad in (math.nan, math.inf):
        found = scores(("pearson", "spearman", "mse"), [1.0, bad, 2.0], [1.0, 2.0, 3.0])
        assert found == {"pearson": None, "spearman": None, "mse": None}
    assert scores(("pearson",), [1.0], [1.0]) == {"pearson": None}


def test_arguments_must_match():
    for predictions, labels in (([1], [1, 0]), ([], []), ([[1]], [[1]])):
        with pytest.raises(ValueError):
            scores(("accuracy",), predictions, labels)


def test_the_number_that_stands_for_a_task():
    assert headline(("accuracy", "f1"), {"accuracy": 0.8, "f1": 0.9}) == pytest.approx(0.85)
    assert headline(("pearson", "spearman"), {"pearson": None, "spearman": 0.5}) is None
    assert headline(("mcc",), {"mcc": 0.4}) == 0.4
    assert headline(own_metrics(2), {"accuracy": 0.7, "macro_f1": 0.1, "f1": 0.2}) == 0.7
    assert own_metrics(0)[0] == "pearson" and "f1" not in own_metrics(3)
    assert {name: task.metrics for name, task in TASKS.items() if task.metrics != ("accuracy",)} == {
        "CoLA": ("mcc",),
        "MRPC": ("accuracy", "f1"),
        "QQP": ("accuracy", "f1"),
        "STS-B": ("pearson", "spearman"),
    }
