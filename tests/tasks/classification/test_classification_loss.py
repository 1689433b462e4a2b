"""Cross entropy and squared error of the first token, and gradients, against float64 NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from data.classification.features import Batch
from tasks.classification.task import Classification
from tests.tasks.heads import (
    CONFIG,
    SETTINGS,
    Parameters,
    check_task,
    network_of,
    texts,
    values_of,
)
from tests.tasks.test_loss import dense, encoded, log_softmax

CLASSES, NUMBERS = Classification(3, ("score", "accuracy")), Classification(0, ("score", "pearson"))
TASKS = {"three classes": CLASSES, "regression": NUMBERS}


def batch_of(task: Classification) -> Batch:
    labels = np.array([2, 0, -1, 1], np.int32)
    if task is NUMBERS:
        labels = np.array([2.5, -0.5, np.nan, 4.0], np.float32)
    return Batch(*texts(4, 14), labels, np.arange(4))


def reference(task: Classification, parameters: Parameters, factor: float) -> tuple[float, list, np.ndarray]:
    """Loss, sums and outputs of LabelLoss, in float64."""
    p, batch = dict(parameters), batch_of(task)
    pooled = np.tanh(dense(encoded(CONFIG, p, batch)[:, 0], p, "pooler"))
    outputs = dense(pooled, p, "label_classifier")
    known = [row for row in range(4) if row != 2]
    if task is NUMBERS:
        total = float(sum((outputs[row, 0] - batch.labels[row]) ** 2 for row in known))
        return total * factor, [total], outputs
    total = -float(sum(log_softmax(outputs)[row, batch.labels[row]] for row in known))
    right = sum(int(outputs[row].argmax() == batch.labels[row]) for row in known)
    return total * factor, [total, right], outputs


@pytest.mark.parametrize("operators", SETTINGS, ids="-".join)
@pytest.mark.parametrize("name", TASKS)
def test_loss_sums_outputs_and_gradients_are_the_references(name, operators):
    task = TASKS[name]
    network = network_of(task, *operators)
    check_task(task, network, batch_of(task), lambda parameters: reference(task, parameters, 1 / 3))


def test_both_operators_have_the_same_parameters():
    names = [[*values_of(network_of(CLASSES, *setting))] for setting in SETTINGS]
    assert names[0] == names[1] and names[0][-2:] == ["label_classifier.weight", "label_classifier.bias"]
    assert "pooler.weight" in names[0] and "classifier.weight" not in names[0]


def test_figures():
    assert CLASSES.count([batch_of(CLASSES)]) == NUMBERS.count([batch_of(NUMBERS)]) == (3.0,)
    found = CLASSES.figures({"label_loss": 2.0, "label_correct": 3.0, "labels": 4.0})
    assert found == {"label_loss": 0.5, "label_acc": 0.75}
    assert NUMBERS.figures({"label_loss": 2.0, "labels": 4.0}) == {"label_loss": 0.5}
    assert NUMBERS.figures({"label_loss": 0.0, "labels": 0.0}) == {"label_loss": None}
    line = NUMBERS.line({"eval_label_loss": 0.5, "eval_score": 0.9, "eval_pearson": None}, "eval_")
    assert line == "label_loss 0.5000  score 0.9000"
