"""Logits of windows to answers: Google's n-best rule.

An answer begins at one of a window's `n_best` largest start logits and ends at one of its `n_best` largest
end logits, within the context, no further than `max_answer_length` tokens, and begins at a token for which
the window is the best of its question's windows (`data.questions.windows.max_context`).
"""

from __future__ import annotations

import json
import math
import os
import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from base.errors import InputError
from base.files import replacing
from data.questions.squad_files import Questions, load_json
from data.questions.windows import Windows, max_context

NO_CANDIDATE_ODDS = 1e6  # null odds of a question without any answer; Google's start value of the null score


@dataclass(frozen=True)
class AnswerSettings:
    """`n_best` starts, ends and answers, of at most `max_answer_length` tokens; `version_2`: no answer is
    one too."""

    n_best: int = 20
    max_answer_length: int = 30
    version_2: bool = False


class Candidate(NamedTuple):
    """An answer among a question's best; no text means no answer."""

    text: str
    probability: float
    start_logit: float
    end_logit: float


@dataclass(frozen=True, eq=False)
class Answers:
    """Answers to the questions with these ids.

    nbest: each question's candidates, best first, all of different texts. texts: the best one that is not
    null, also where it is not among them; "" where there is none. null_odds: float64 (Q,), the score of no
    answer minus that of `texts`; NO_CANDIDATE_ODDS where there is no text; zeros unless `version_2`.
    """

    ids: tuple[str, ...]
    nbest: tuple[list[Candidate], ...]
    texts: tuple[str, ...]
    null_odds: np.ndarray
    version_2: bool

    def predictions(self, null_score_diff_threshold: float = 0.0) -> dict[str, str]:
        """The answer to each id: "" where its null odds are above the threshold."""
        if not self.version_2:
            return dict(zip(self.ids, self.texts))
        above = (self.null_odds > null_score_diff_threshold).tolist()
        return {each: "" if null else text for each, null, text in zip(self.ids, above, self.texts)}

    def odds(self) -> dict[str, float]:
        """The null odds of each id."""
        return dict(zip(self.ids, self.null_odds.tolist()))


class Logits:
    """Logits of all windows, float32, filled in any order: `start` and `end` have the windows' tokens one
    window after the other, window w those from `bounds[w]` to `bounds[w + 1]`.

    Ranks that have filled different windows add up their `start`, `end` and `filled`: what is not filled is
    zero.
    """

    def __init__(self, windows: Windows) -> None:
        self.bounds = np.concatenate([[0], np.cumsum(windows.lengths)])
        self.start = np.zeros(int(self.bounds[-1]), dtype=np.float32)
        self.end = np.zeros(int(self.bounds[-1]), dtype=np.float32)
        self.filled = np.zeros(len(windows), dtype=np.int32)

    def put(self, examples: np.ndarray, start: np.ndarray, end: np.ndarray) -> None:
        """Takes a batch: windows' numbers (B,) and their logits (B, L), of which padding is ignored.

        Raises ValueError for logits that are no finite numbers, which no answer can be read from.
        """
        lengths = np.diff(self.bounds)[examples]
        real = np.arange(start.shape[1])[None, :] < lengths[:, None]
        places = (self.bounds[examples][:, None] + np.arange(start.shape[1])[None, :])[real]
        for store, values in ((self.start, start), (self.end, end)):
            taken = np.asarray(values, dtype=np.float32)[real]
            if not np.isfinite(taken).all():
                raise ValueError("the model's logits are no finite numbers: its training has diverged")
            store[places] = taken
        self.filled[examples] += 1


def answer(questions: Questions, windows: Windows, logits: Logits, settings: AnswerSettings) -> Answers:
    """The n-best answers to every question, each a slice of its context.

    Probabilities are a softmax over the scores of a question's n-best. With `settings.version_2` no answer is
    among them (appended where it is not of the best), with the least score that a window gives to [CLS].

    Raises ValueError unless each window has been filled exactly once.
    """
    if not (logits.filled == 1).all():
        missing, twice = int((logits.filled == 0).sum()), int((logits.filled > 1).sum())
        raise ValueError(f"of {len(windows)} windows {missing} have no logits and {twice} have them twice")
    borders = np.searchsorted(windows.question, np.arange(len(questions) + 1)).tolist()
    found, texts, odds = [], [], np.zeros(len(questions))
    for number, own in enumerate(map(range, borders, borders[1:])):
        context = questions.contexts[questions.context_of[number]]
        entries = _distinct(context, windows, logits, own, settings)
        texts.append(entries[0][0] if entries else "")
        if settings.version_2:
            first = logits.bounds[own.start : own.stop]
            of_cls = zip(logits.start[first].tolist(), logits.end[first].tolist())
            start, end = min(of_cls, key=sum, default=(0.0, 0.0))
            odds[number] = start + end - entries[0][1] - entries[0][2] if entries else NO_CANDIDATE_ODDS
            rank = sum(each[1] + each[2] >= start + end for each in entries)
            # As one of the n best, no answer takes the place of the last; else it comes after them.
            entries.insert(rank, ("", start, end))
            del entries[max(settings.n_best, rank + 1) :]
        found.append(entries or [("", 0.0, 0.0)])
    scores = np.full((len(questions), settings.n_best + 1), -np.inf)
    for row, entries in zip(scores, found):
        row[: len(entries)] = [start + end for _, start, end in entries]
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares = (powers / powers.sum(axis=1, keepdims=True)).tolist()
    nbest = tuple(
        [Candidate(text, share, start, end) for (text, start, end), share in zip(entries, of_question)]
        for entries, of_question in zip(found, shares)
    )
    return Answers(questions.ids, nbest, tuple(texts), odds, settings.version_2)


def _distinct(
    context: str, windows: Windows, logits: Logits, own: range, settings: AnswerSettings
) -> list[tuple[str, float, float]]:
    """A question's best answers that are not null, best first, of equals the first, all different, with both
    logits. `own`: its windows."""
    if not own:
        return []
    pairs = []  # of each window: first and last token of the context, and their logits
    for window, best in zip(own, max_context(windows, own)):
        stop = int(logits.bounds[window + 1]) - 1  # before the last [SEP]
        start, end = (each[stop - len(best) : stop] for each in (logits.start, logits.end))
        allowed = np.flatnonzero(best)
        starts = allowed[np.argsort(-start[allowed], kind="stable")[: settings.n_best]]
        ends = np.argsort(-end, kind="stable")[: settings.n_best]
        length = ends - starts[:, None] + 1
        row, column = np.nonzero((length >= 1) & (length <= settings.max_answer_length))
        firsts, lasts, before = starts[row], ends[column], windows.first[window]
        pairs.append((before + firsts, before + lasts, start[firsts], end[lasts]))
    firsts, lasts, start, end = map(np.concatenate, zip(*pairs))
    start, end = start.astype(np.float64), end.astype(np.float64)
    order = np.argsort(-(start + end), kind="stable")
    tokens = windows.tokens
    before = tokens.bounds[windows.context_of[windows.question[own[0]]]]
    begins, stops = tokens.starts[before + firsts[order]], tokens.ends[before + lasts[order]]
    distinct: dict[str, int] = {}
    for begin, stop, place in zip(begins.tolist(), stops.tolist(), order.tolist()):
        text = context[begin:stop]
        if text and text not in distinct:
            distinct[text] = place
            if len(distinct) == settings.n_best:
                break
    return [(text, float(start[place]), float(end[place])) for text, place in distinct.items()]


PREDICTIONS, NBEST, NULL_ODDS = "predictions.json", "nbest_predictions.json", "null_odds.json"


def write_predictions(answers: Answers, folder: str, null_score_diff_threshold: float = 0.0) -> None:
    """Writes predictions.json (id -> text), nbest_predictions.json (id -> list of text, probability,
    start_logit, end_logit) and for version 2 null_odds.json (id -> odds) into `folder`."""
    _write(os.path.join(folder, PREDICTIONS), answers.predictions(null_score_diff_threshold))
    nbest = {each: [entry._asdict() for entry in own] for each, own in zip(answers.ids, answers.nbest)}
    _write(os.path.join(folder, NBEST), nbest)
    if answers.version_2:
        _write(os.path.join(folder, NULL_ODDS), answers.odds())


def read_predictions(path: str, flag: str) -> dict[str, str]:
    """A file id -> text. Raises InputError for anything else."""
    content = load_json(path, flag)
    if not isinstance(content, dict) or not all(isinstance(value, str) for value in content.values()):
        raise InputError(f"{flag} {path}: must be one object of ids and answers, such as {PREDICTIONS}")
    return content


def read_null_odds(path: str, flag: str) -> dict[str, float]:
    """A file id -> number. Raises InputError for anything else."""
    content = load_json(path, flag)
    if not isinstance(content, dict) or not all(
        type(value) in (int, float) and (abs(value) <= sys.float_info.max or abs(value) == math.inf)
        for value in content.values()
    ):
        raise InputError(f"{flag} {path}: must be one object of ids and numbers, such as {NULL_ODDS}")
    return {each: float(value) for each, value in content.items()}


def _write(path: str, content: Any) -> None:
    with replacing(path) as handle:
        handle.write((json.dumps(content, indent=4) + "\n").encode("ascii"))
