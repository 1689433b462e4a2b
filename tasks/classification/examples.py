"""Texts as examples to train on, or to evaluate on with scores and predictions. MXNet is not imported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Sequence

import numpy as np

from base.errors import NotFiniteError, TrainingError
from data.classification.examples import Examples
from data.classification.features import Batch, Features
from data.classification.glue import lines, write_submission
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

    `prefix`: of its scores' names. `file`: name of the one with its predictions, without ".tsv".
    """

    prefix: str
    examples: Examples
    file: str


@dataclass(frozen=True, eq=False)
class EvaluationTexts:
    """The texts of several sets, one after the other; those without a label have -1, or NaN. Predictions are
    written into `folder`."""

    features: Features
    sets: tuple[EvaluationSet, ...]
    labelling: Labelling
    folder: str

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each, int32 (N,)."""
        return self.features.lengths

    def collate(self, examples: np.ndarray, padded: int) -> Batch:
        """The examples with these numbers as a batch."""
        return self.features.collate(examples, padded)

    def collector(self) -> OutputCollector:
        """A collector of the outputs."""
        return OutputCollector(self)


class OutputCollector:
    """Outputs of examples to scores and predictions. See tasks.base.Collector."""

    def __init__(self, evaluated: EvaluationTexts):
        self._evaluated = evaluated
        count = len(evaluated.features)
        self._outputs = np.zeros((count, max(1, len(evaluated.labelling.labels))), np.float32)
        self._filled = np.zeros(count, np.int32)

    def add(self, batch: Batch, outputs: Sequence[Any]) -> None:
        """Takes the outputs (B, max(1, labels)) of a batch."""
        (values,) = outputs
        if not np.isfinite(values).all():
            raise NotFiniteError("the model's outputs are no finite numbers: its training has diverged")
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
        predictions: dict[str, list[str]] = {}
        begin = labelled = 0
        for prefix, examples, file in self._evaluated.sets:
            own = predicted[begin : begin + len(examples)]
            begin += len(examples)
            if examples.labels is not None:
                labelled += len(examples)
                of_set = scores(labelling.metrics, own, examples.labels)
                if not found:
                    found[HEADLINE] = headline(labelling.metrics, of_set)
                found.update({prefix + name: value for name, value in of_set.items()})
            predictions[file] = lines(examples.ids, own, labelling.labels, labelling.least, labelling.most)
        write_submission(self._evaluated.folder, predictions)
        return {**found, "labelled": labelled}


def joined(sets: Sequence[Examples], classes: bool) -> Examples:
    """Several sets as one, whose numbers go on from set to set. Examples without a label have -1 in place of
    a class, NaN in place of a number."""
    dtype, missing = (np.int32, -1) if classes else (np.float32, np.nan)
    labels = [
        np.full(len(each), missing, dtype) if each.labels is None else each.labels.astype(dtype)
        for each in sets
    ]
    pairs = sets[0].second is not None
    return Examples(
        sets[0].path,
        [text for each in sets for text in each.first],
        [text for each in sets for text in each.second or ()] if pairs else None,
        np.concatenate(labels),
        [name for each in sets for name in each.ids],
    )
