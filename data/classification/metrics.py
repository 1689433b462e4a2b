"""Scores of predictions, as GLUE defines them (Wang et al., arXiv:1804.07461), in NumPy.

They are scikit-learn's and SciPy's, to rounding: neither is imported, since MXNet imports SciPy wherever it
is installed, which costs every rank a third of a second. All are fractions; GLUE's tables show 100 times as
much.
"""

from __future__ import annotations

from typing import Callable, Mapping, Sequence

import numpy as np

CLASSES = ("accuracy", "macro_f1")
TWO_CLASSES = (*CLASSES, "f1")
NUMBERS = ("pearson", "spearman", "mse")


def accuracy(predictions: np.ndarray, labels: np.ndarray) -> float:
    """The share of predictions that are the label; both whole numbers (N,), N >= 1."""
    return float(np.mean(predictions == labels))


def f1(predictions: np.ndarray, labels: np.ndarray, positive: int = 1) -> float:
    """F1 of one class: 2 TP / (2 TP + FP + FN); 0 where it is neither a label nor predicted, as in
    scikit-learn."""
    hits = int(np.sum((predictions == positive) & (labels == positive)))
    total = int(np.sum(predictions == positive)) + int(np.sum(labels == positive))
    return 2 * hits / total if total else 0.0


def macro_f1(predictions: np.ndarray, labels: np.ndarray) -> float:
    """The mean F1 of all classes that are a label or predicted (scikit-learn's average="macro")."""
    return float(np.mean([f1(predictions, labels, each) for each in np.union1d(predictions, labels)]))


def matthews(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Matthews' correlation coefficient, for any number of classes (Gorodkin 2004); 0 where predictions or
    labels are constant, as in scikit-learn."""
    classes, both = np.unique(np.concatenate((predictions, labels)), return_inverse=True)
    given, true = both[: len(predictions)], both[len(predictions) :]
    confusion = np.zeros((len(classes), len(classes)))
    np.add.at(confusion, (true, given), 1)
    true_counts, given_counts, total = confusion.sum(axis=1), confusion.sum(axis=0), confusion.sum()
    covariance = np.trace(confusion) * total - true_counts @ given_counts
    variances = (total**2 - given_counts @ given_counts) * (total**2 - true_counts @ true_counts)
    return float(covariance / np.sqrt(variances)) if variances else 0.0


def pearson(predictions: np.ndarray, labels: np.ndarray) -> float | None:
    """Pearson's correlation coefficient; None where predictions or labels are constant or not finite, or
    where there are fewer than two (SciPy: NaN or an error)."""
    first, second = np.asarray(predictions, np.float64), np.asarray(labels, np.float64)
    if len(first) < 2 or not (np.isfinite(first).all() and np.isfinite(second).all()):
        return None
    if (first == first[0]).all() or (second == second[0]).all():
        return None
    first, second = first - first.mean(), second - second.mean()
    # Norms first: products of very small deviations would vanish.
    cosine = (first / np.linalg.norm(first)) @ (second / np.linalg.norm(second))
    return float(np.clip(cosine, -1.0, 1.0))


def spearman(predictions: np.ndarray, labels: np.ndarray) -> float | None:
    """Spearman's rank correlation: Pearson's of the ranks, where ties have their mean rank. None as for
    Pearson's."""
    first, second = np.asarray(predictions, np.float64), np.asarray(labels, np.float64)
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        return None
    return pearson(average_ranks(first), average_ranks(second))


def average_ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1 on, float64 (N,); equal values share the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse]


def mean_squared_error(predictions: np.ndarray, labels: np.ndarray) -> float | None:
    """The mean squared difference; None where it is not finite."""
    difference = np.asarray(predictions, np.float64) - np.asarray(labels, np.float64)
    error = float(np.mean(difference**2))
    return error if np.isfinite(error) else None


_METRICS: Mapping[str, Callable[[np.ndarray, np.ndarray], float | None]] = {
    "accuracy": accuracy,
    "f1": f1,
    "macro_f1": macro_f1,
    "mcc": matthews,
    "pearson": pearson,
    "spearman": spearman,
    "mse": mean_squared_error,
}


def own_metrics(num_classes: int) -> tuple[str, ...]:
    """Names of the metrics for one's own files; 0 classes is regression. The first one counts."""
    return NUMBERS if not num_classes else TWO_CLASSES if num_classes == 2 else CLASSES


def scores(names: Sequence[str], predictions: np.ndarray, labels: np.ndarray) -> dict[str, float | None]:
    """Each metric by its name. `predictions`, `labels`: (N,) each, numbers of classes or real numbers.

    Raises ValueError for no examples, or not as many predictions.
    """
    predictions, labels = np.asarray(predictions), np.asarray(labels)
    if predictions.shape != labels.shape or predictions.ndim != 1 or not len(labels):
        raise ValueError(f"{predictions.shape} predictions for {labels.shape} labels")
    return {name: _METRICS[name](predictions, labels) for name in names}


def headline(names: Sequence[str], found: Mapping[str, float | None]) -> float | None:
    """The one number that stands for a task: GLUE's mean where it has two metrics (accuracy and F1, Pearson
    and Spearman), else the first. None where one of these is."""
    taken = [found[name] for name in (names if tuple(names) in _AVERAGED else names[:1])]
    known = [value for value in taken if value is not None]
    return sum(known) / len(known) if len(known) == len(taken) else None


_AVERAGED = (("accuracy", "f1"), ("pearson", "spearman"))
