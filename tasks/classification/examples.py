"""Texts as examples to train on, or to evaluate on with scores and predictions. MXNet is not imported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, NamedTuple, Sequence

import numpy as np

from base.errors import TrainingError
from data.classification.examples import Examples
from data.classification.features import Batch, Features
from data.classification.glue import Predictions, write_submission
from data.classification.metrics import headline, scores

HEADLINE = "score"  # the one number of a task


@dataclass(frozen=True)
class Labelling:
    """The kind of prediction: classes by name (none: numbers, from `least` to `most` where they differ), and
    the metrics, of which the first counts."""

    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    least: float = 0.0
    most: float = 0.0


class EvaluationSet(NamedTuple):
    """Some of the examples evaluated on, after those of the set before.

    `size`: number of examples. `prefix`: of its scores' names. `labels`: None for a set without.
    `file`: name of the one with its predictions, without ".tsv".
    """

    prefix: str
    size: int
    ids: Sequence[str]
    labels: np.ndarray | None
    file: str


@dataclass(frozen=True, eq=False)
class TrainingTexts:
    """Texts with labels."""

    features: Features

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each, int32 (N,)."""
        return self.features.lengths()

    def collate(self, examples: np.ndarray, padded: int) -> Batch:
        """The examples with these numbers as a batch."""
        return self.features.collate(examples, padded)


@dataclass(frozen=True, eq=False)
class EvaluationTexts(TrainingTexts):
    """The texts of several sets, one after the other; `features` have no labels. Predictions are written
    into `folder`."""

    sets: tuple[EvaluationSet, ...]
    labelling: Labelling
    folder: str

    def collate(self, examples: np.ndarray, padded: int) -> Batch:
        """The examples with these numbers as a batch; those without a label have -1, or NaN."""
        dtype, missing = (np.int32, -1) if self.labelling.labels else (np.float32, np.nan)
        labels = [
            np.full(each.size, missing, dtype) if each.labels is None else each.labels.astype(dtype)
            for each in self.sets
        ]
        return super().collate(examples, padded)._replace(labels=np.concatenate(labels)[examples])

    def collector(self) -> OutputCollector:
        """A collector of the outputs."""
        return OutputCollector(self)


class OutputCollector:
    """Outputs of examples to scores and predictions. See tasks.base.Collector."""

    def __init__(self, evaluated: EvaluationTexts):
        self._evaluated = evaluated
        count = sum(each.size for each in evaluated.sets)
        self._outputs = np.zeros((count, max(1, len(evaluated.labelling.labels))), np.float32)
        self._filled = np.zeros(count, np.int32)

    def add(self, batch: Batch, outputs: Sequence[Any]) -> None:
        """Takes the outputs (B, max(1, labels)) of a batch."""
        (values,) = outputs
        if not np.isfinite(values).all():
            raise TrainingError("the model's outputs are no finite numbers: its training has diverged")
        self._outputs[batch.examples] = values
        self._filled[batch.examples] += 1

    def arrays(self) -> list[np.ndarray]:
        """Outputs of all examples, and how often each has been filled."""
        return [self._outputs, self._filled]

    def scores(self, arrays: Sequence[np.ndarray]) -> dict[str, float | None]:
        """Writes the predictions; each set's metrics, `score`, the one number of the first set, and the
        number of examples with a label."""
        outputs, filled = arrays
        if not (filled == 1).all():
            raise TrainingError(f"{int((filled != 1).sum())} examples were not evaluated exactly once")
        labelling = self._evaluated.labelling
        predicted = outputs.argmax(axis=1) if labelling.labels else outputs[:, 0]
        found: dict[str, float | None] = {}
        predictions: dict[str, Predictions] = {}
        begin = labelled = 0
        for each in self._evaluated.sets:
            own = predicted[begin : begin + each.size]
            begin += each.size
            if each.labels is not None:
                labelled += each.size
                of_set = scores(labelling.metrics, own, each.labels)
                if not found:
                    found[HEADLINE] = headline(labelling.metrics, of_set)
                found.update({each.prefix + name: value for name, value in of_set.items()})
            predictions[each.file] = Predictions(
                each.ids, own, labelling.labels, labelling.least, labelling.most
            )
        write_submission(self._evaluated.folder, predictions)
        return {**found, "labelled": labelled}


def joined(sets: Mapping[str, Examples]) -> Examples:
    """The texts of several sets as one, without labels, whose numbers go on from set to set."""
    every = list(sets.values())
    pairs = every[0].second is not None
    return Examples(
        every[0].path,
        [text for each in every for text in each.first],
        [text for each in every for text in each.second or ()] if pairs else None,
        None,
        [name for each in every for name in each.ids],
    )
