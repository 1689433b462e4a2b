"""Windows over contexts as examples to train on, or to evaluate on with scores of the answers. MXNet is not
imported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Sequence

import numpy as np

from base.errors import NotFiniteError
from data.questions.answers import Answers, AnswerSettings, Logits, answer, write_predictions
from data.questions.score import best_threshold, score_v1, score_v2
from data.questions.squad_files import Questions
from data.questions.windows import QuestionBatch, Windows, collate


@dataclass(frozen=True, eq=False)
class TrainingWindows:
    """Windows with the positions of their answers. `padded`: all are padded to so many tokens at least."""

    windows: Windows
    padded: int = 0

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each window, padding to `padded` included, int64 (W,)."""
        return np.maximum(self.windows.lengths, self.padded)

    def collate(self, examples: np.ndarray, padded: int) -> QuestionBatch:
        """The windows with these numbers as a batch."""
        return collate(self.windows, examples, padded)


class Asked(NamedTuple):
    """Questions and their windows."""

    questions: Questions
    windows: Windows


@dataclass(frozen=True, eq=False)
class EvaluationWindows:
    """Windows whose answers are asked for: those of `asked`, then those of `tuning`, questions on which the
    threshold for no answer is tuned, if there are any.

    folder: where predictions are written; null_threshold: null odds above which there is no answer, where it
    is not tuned; scored: whether the file has right answers.
    """

    asked: Asked
    settings: AnswerSettings
    folder: str
    null_threshold: float = 0.0
    scored: bool = True
    tuning: Asked | None = None

    @property
    def parts(self) -> tuple[Asked, ...]:
        """Both, in the order of the windows' numbers."""
        return (self.asked,) if self.tuning is None else (self.asked, self.tuning)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each window, int64 (W,)."""
        return np.concatenate([each.windows.lengths for each in self.parts])

    def collate(self, examples: np.ndarray, padded: int) -> QuestionBatch:
        """The windows with these numbers as a batch, those to tune on last; starts and ends are not known:
        -1."""
        batches, first = [], 0
        for each in self.parts:
            own = examples[(examples >= first) & (examples < first + len(each.windows))]
            if len(own):
                batches.append(collate(each.windows, own - first, padded)._replace(examples=own))
            first += len(each.windows)
        batch = QuestionBatch(*(np.concatenate(columns) for columns in zip(*batches)))
        unknown = np.full(len(examples), -1, dtype=np.int32)
        return batch._replace(starts=unknown, ends=unknown)

    def collector(self) -> AnswerCollector:
        """A collector of the windows' logits."""
        return AnswerCollector(self)


class AnswerCollector:
    """Logits of windows to answers, their files and scores. See tasks.base.Collector."""

    def __init__(self, evaluated: EvaluationWindows):
        self._evaluated = evaluated
        self._logits = [Logits(each.windows) for each in evaluated.parts]

    def add(self, batch: QuestionBatch, outputs: Sequence[Any]) -> None:
        """Takes the logits (B, 2, L) of a batch."""
        (logits,) = outputs
        first = 0
        for each, store in zip(self._evaluated.parts, self._logits):
            numbers = batch.examples - first
            own = (numbers >= 0) & (numbers < len(each.windows))
            first += len(each.windows)
            try:
                store.put(numbers[own], logits[own, 0], logits[own, 1])
            except ValueError as error:
                raise NotFiniteError(str(error)) from error

    def arrays(self) -> list[np.ndarray]:
        """Start and end logits of all windows, and how often each has been filled, of each part."""
        return [array for each in self._logits for array in (each.start, each.end, each.filled)]

    def scores(self, arrays: Sequence[np.ndarray]) -> dict[str, float | None]:
        """Writes the predictions; exact match and F1 in percent, with their parts and the best threshold for
        SQuAD 2.0, and the threshold taken. Nothing for files without answers."""
        evaluated, asked, tuning = self._evaluated, self._evaluated.asked, self._evaluated.tuning
        threshold = evaluated.null_threshold
        if tuning is not None:
            held_out = self._answers(tuning, arrays[3:])
            texts = dict(zip(held_out.ids, held_out.texts))
            threshold = best_threshold(tuning.questions, texts, held_out.odds())
        answers = self._answers(asked, arrays[:3])
        write_predictions(answers, evaluated.folder, threshold)
        if not evaluated.scored:
            return {}
        predictions = answers.predictions(threshold)
        if not answers.version_2:
            return dict(score_v1(asked.questions, predictions))
        found = score_v2(asked.questions, predictions, answers.odds())
        return {
            "exact_match": found["exact"],
            "f1": found["f1"],
            **{name: value for name, value in found.items() if name not in ("exact", "f1", "total")},
            "null_score_diff_threshold": threshold,
        }

    def _answers(self, asked: Asked, arrays: Sequence[np.ndarray]) -> Answers:
        whole = Logits(asked.windows)
        whole.start[:], whole.end[:], whole.filled[:] = arrays
        return answer(asked.questions, asked.windows, whole, self._evaluated.settings)
