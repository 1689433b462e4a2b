"""Outputs of two ranks to the scores and predictions of several sets."""

from __future__ import annotations

import numpy as np
import pytest

from base.errors import TrainingError
from data.classification.examples import Examples
from data.classification.features import featurize
from data.classification.metrics import accuracy
from data.tokenizing.tokenizer import TokenizerSettings
from data.tokenizing.vocab import load_vocab
from tasks.classification.examples import EvaluationSet, EvaluationTexts, Labelling, joined
from tests.finetuned import ANIMALS, write_data

LABELS = ("no", "yes", "maybe")


def evaluated(tmp_path, labelling: Labelling, labels: list) -> EvaluationTexts:
    """Three sets of 5, 4 and 6 pairs, the last without labels, for a submission."""
    write_data(tmp_path)
    sets, texts = [], {}
    for number, (name, size) in enumerate((("m", 5), ("mm", 4), ("MNLI-m", 6))):
        first = [" ".join(ANIMALS[: 1 + place % 5]) for place in range(size)]
        ids = [f"{name}{place}" for place in range(size)]
        texts[name] = Examples(name, first, first[::-1], None, ids)
        sets.append(EvaluationSet("" if not number else f"{name}_", size, ids, labels[number], name))
    settings = TokenizerSettings(load_vocab(str(tmp_path / "vocab.txt")))
    return EvaluationTexts(featurize(joined(texts), settings, 16), tuple(sets), labelling, str(tmp_path))


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
