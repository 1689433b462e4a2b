"""Cross entropy and squared error of the first token, and gradients, against float64 NumPy; outputs of two
ranks to the scores and predictions of several sets."""

from __future__ import annotations

import numpy as np
import pytest

from base.errors import TrainingError
from data.classification.examples import Examples
from data.classification.features import Batch, featurize
from data.classification.metrics import accuracy
from data.tokenizing.tokenizer import TokenizerSettings
from data.tokenizing.vocab import load_vocab
from tasks.classification.examples import EvaluationSet, EvaluationTexts, Labelling, joined
from tasks.classification.task import Classification
from tests.finetuned import ANIMALS, write_data
from tests.tasks.heads import CONFIG, SETTINGS, Parameters, check_task, network_of, texts
from tests.tasks.pretraining.test_loss import dense, encoded, log_softmax

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


@pytest.mark.parametrize("operators", SETTINGS)
@pytest.mark.parametrize("name", TASKS)
def test_loss_sums_outputs_and_gradients_are_the_references(name, operators):
    task = TASKS[name]
    network = network_of(task, operators)
    check_task(task, network, batch_of(task), lambda parameters: reference(task, parameters, 1 / 3))


def test_figures():
    assert CLASSES.count([batch_of(CLASSES)]) == NUMBERS.count([batch_of(NUMBERS)]) == (3.0,)
    found = CLASSES.figures({"label_loss": 2.0, "label_correct": 3.0, "labels": 4.0})
    assert found == {"label_loss": 0.5, "label_acc": 0.75}
    assert NUMBERS.figures({"label_loss": 2.0, "labels": 4.0}) == {"label_loss": 0.5}
    assert NUMBERS.figures({"label_loss": 0.0, "labels": 0.0}) == {"label_loss": None}
    line = NUMBERS.line({"eval_label_loss": 0.5, "eval_score": 0.9, "eval_pearson": None}, "eval_")
    assert line == "label_loss 0.5000  score 0.9000"


LABELS = ("no", "yes", "maybe")


def evaluated(tmp_path, labelling: Labelling, labels: list) -> EvaluationTexts:
    """Three sets of 5, 4 and 6 pairs, the last without labels, for a submission."""
    write_data(tmp_path)
    sets = []
    for number, (name, size) in enumerate((("m", 5), ("mm", 4), ("MNLI-m", 6))):
        first = [" ".join(ANIMALS[: 1 + place % 5]) for place in range(size)]
        examples = Examples(name, first, first[::-1], labels[number], [f"{name}{n}" for n in range(size)])
        sets.append(EvaluationSet("" if not number else f"{name}_", examples, name))
    settings = TokenizerSettings(load_vocab(str(tmp_path / "vocab.txt")))
    together = joined([each.examples for each in sets], bool(labelling.labels))
    return EvaluationTexts(featurize(together, settings, 16), tuple(sets), labelling, str(tmp_path))


def collected(texts: EvaluationTexts, outputs: np.ndarray, ranks: int) -> tuple:
    collectors = [texts.collector() for _ in range(ranks)]
    for rank, collector in enumerate(collectors):
        examples = np.arange(len(outputs))[rank::ranks]
        batch = texts.collate(examples, int(texts.lengths.max()))
        collector.add(batch, [outputs[examples]])
    return collectors[0], [sum(each) for each in zip(*(each.arrays() for each in collectors))]


def test_sets_are_scored_each_by_itself(tmp_path):
    labels = [np.array([0, 1, 2, 1, 0]), np.array([2, 2, 1, 0]), None]
    texts = evaluated(tmp_path, Labelling(LABELS, ("accuracy",)), labels)
    outputs = np.random.default_rng(0).normal(size=(15, 3)).astype(np.float32)
    predicted = outputs.argmax(-1)
    collector, arrays = collected(texts, outputs, 2)
    found = collector.scores(arrays)
    assert found["accuracy"] == found["score"] == accuracy(predicted[:5], labels[0])
    assert found["mm_accuracy"] == accuracy(predicted[5:9], labels[1]) and len(found) == 4
    assert found["labelled"] == 9
    for name, begin, size in (("m", 0, 5), ("mm", 5, 4), ("MNLI-m", 9, 6)):
        own = [f"{name}{place}\t{LABELS[predicted[begin + place]]}" for place in range(size)]
        assert (tmp_path / f"{name}.tsv").read_text().splitlines() == ["index\tprediction", *own]
    batch = texts.collate(np.array([4, 5, 14]), 16)
    assert batch.labels.tolist() == [0, 2, -1] and batch.labels.dtype == np.int32


def test_regression(tmp_path):
    labels = [np.array([0.5, 1, 2, 3, 4], np.float32), np.array([1, 2, 3, 5], np.float32), None]
    labelling = Labelling((), ("pearson", "spearman"), 0.0, 5.0)
    texts = evaluated(tmp_path, labelling, labels)
    outputs = np.concatenate([*labels[:2], np.linspace(-1, 7, 6)]).astype(np.float32)[:, None]
    collector, arrays = collected(texts, outputs, 3)
    found = collector.scores(arrays)
    assert found["score"] == pytest.approx(1) and found["mm_spearman"] == pytest.approx(1)
    lines = (tmp_path / "MNLI-m.tsv").read_text().splitlines()
    assert lines[1].endswith("\t0.000") and lines[-1].endswith("\t5.000"), "within the scale"
    assert np.isnan(texts.collate(np.array([14]), 16).labels).all()


def test_outputs_that_are_missing_or_not_finite(tmp_path):
    texts = evaluated(tmp_path, Labelling(LABELS, ("accuracy",)), [np.zeros(5), np.zeros(4), None])
    outputs = np.zeros((15, 3), np.float32)
    collector, arrays = collected(texts, outputs, 1)
    arrays[1][3] = 0
    with pytest.raises(TrainingError, match="1 examples were not evaluated exactly once"):
        collector.scores(arrays)
    outputs[2, 1] = np.inf
    with pytest.raises(TrainingError, match="diverged"):
        collected(texts, outputs, 1)
