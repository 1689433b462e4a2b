"""Windows over contexts as examples to train on, or to evaluate on with scores of the answers. MXNet is not
imported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Sequence

import numpy as np

from base.errors import TrainingError
from data.questions.answers import Answers, AnswerSettings, Logits, answer
from data.questions.prediction_files import write_predictions
from data.questions.scores import score_v1, score_v2
from data.questions.squad_files import Questions
from data.questions.windows import QuestionBatch, Windows, collate


@dataclass(frozen=True, eq=False)
class TrainingWindows:
    """Windows with the positions of their answers."""

    windows: Windows

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each window, int64 (W,)."""
        return self.windows.lengths

    def collate(self, examples: np.ndarray, padded: int) -> QuestionBatch:
        """The windows with these numbers as a batch."""
        return collate(self.windows, examples, padded)


@dataclass(frozen=True)
class Scoring:
    """Answers from logits, and their scores.

    scored: whether the file has right answers; folder: where predictions are written; null_threshold: null
    odds above which there is no answer.
    """

    settings: AnswerSettings
    null_threshold: float
    folder: str
    scored: bool = True


@dataclass(frozen=True, eq=False)
class EvaluationWindows:
    """Windows whose answers are asked for."""

    questions: Questions
    windows: Windows
    scoring: Scoring

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each window, int64 (W,)."""
        return self.windows.lengths

    def collate(self, examples: np.ndarray, padded: int) -> QuestionBatch:
        """The windows with these numbers as a batch; its starts and ends are not known: -1."""
        batch = collate(self.windows, examples, padded)
        unknown = np.full(len(examples), -1, dtype=np.int32)
        return batch._replace(starts=unknown, ends=unknown)

    def collector(self) -> AnswerCollector:
        """A collector of the windows' logits."""
        return AnswerCollector(self)


class AnswerCollector:
    """Logits of windows to answers, their files and scores. See tasks.base.Collector."""

    def __init__(self, evaluated: EvaluationWindows):
        self._evaluated = evaluated
        self._logits = Logits(evaluated.windows)

    def add(self, batch: QuestionBatch, outputs: Sequence[Any]) -> None:
        """Takes the logits (B, 2, L) of a batch."""
        (logits,) = outputs
        try:
            self._logits.put(batch.examples, logits[:, 0], logits[:, 1])
        except ValueError as error:
            raise TrainingError(str(error)) from error

    def arrays(self) -> list[np.ndarray]:
        """Start and end logits of all windows, and how often each has been filled."""
        return [self._logits.start, self._logits.end, self._logits.filled]

    def scores(self, arrays: Sequence[np.ndarray]) -> dict[str, float | None]:
        """Writes the predictions; exact match and F1 in percent, with their parts and the best threshold for
        files that have unanswerable questions. Nothing for files without answers."""
        evaluated, scoring = self._evaluated, self._evaluated.scoring
        whole = Logits(evaluated.windows)
        whole.start[:], whole.end[:], whole.filled[:] = arrays
        answers = answer(evaluated.questions, evaluated.windows, whole, scoring.settings)
        write_predictions(answers, scoring.folder, scoring.null_threshold)
        if not scoring.scored:
            return {}
        return dict(_scores(evaluated.questions, answers, scoring.null_threshold))


def _scores(questions: Questions, answers: Answers, threshold: float) -> Mapping[str, float]:
    predictions = answers.predictions(threshold)
    if not answers.version_2:
        return score_v1(questions, predictions)
    found = score_v2(questions, predictions, answers.odds())
    return {"exact_match": found["exact"], "f1": found["f1"], **found}
