"""Logits of windows to answers: Google's n-best rule, vectorised.

An answer begins at one of a window's `n_best` largest start logits and ends at one of its `n_best` largest
end logits, within the context, no further than `max_answer_length` tokens, and begins at a token for which
the window is the best of its question's windows (`data.questions.windows.max_context`).
"""

from __future__ import annotations

import json
import math
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from base.errors import InputError
from base.files import replacing
from data.questions.squad_files import Questions, load_json
from data.questions.windows import Windows, max_context

NO_CANDIDATE_ODDS = 1e6  # null odds of a question without any answer; Google's start value of the null score
_KEPT = 32  # candidates of a window looked at first; more only where too few of their texts differ
_CHUNK = 1 << 19  # logits looked at together


@dataclass(frozen=True)
class AnswerSettings:
    """`n_best` starts, ends and answers, of at most `max_answer_length` tokens; `version_2`: no answer is
    one too."""

    n_best: int = 20
    max_answer_length: int = 30
    version_2: bool = False

    def __post_init__(self) -> None:
        if self.n_best < 1 or self.max_answer_length < 1:
            raise InputError("--n_best_size and --max_answer_length: must be 1 or more")


class Candidate(NamedTuple):
    """An answer among a question's best; no text means no answer."""

    text: str
    probability: float
    start_logit: float
    end_logit: float


@dataclass(frozen=True, eq=False)
class Answers:
    """Answers to the questions with these ids.

    nbest_texts: each question's candidates, best first, all different; "" is no answer. probabilities,
    start_logits, end_logits: float64 (Q, n_best + 1), theirs, followed by zeros. texts: the best one that is
    not null, also where it is not among them; "" where there is none. null_odds: float64 (Q,), the score of
    no answer minus that of `texts`; NO_CANDIDATE_ODDS where there is no text; zeros unless `version_2`.
    """

    ids: tuple[str, ...]
    nbest_texts: tuple[tuple[str, ...], ...]
    probabilities: np.ndarray
    start_logits: np.ndarray
    end_logits: np.ndarray
    texts: tuple[str, ...]
    null_odds: np.ndarray
    version_2: bool

    def nbest(self, number: int) -> list[Candidate]:
        """The candidates of question `number`, best first."""
        columns = (each[number].tolist() for each in (self.probabilities, self.start_logits, self.end_logits))
        return [Candidate(*each) for each in zip(self.nbest_texts[number], *columns)]

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
    found = _Found([()] * len(questions), *np.full((2, len(questions), settings.n_best), -np.inf))
    everything = settings.n_best * settings.n_best
    todo, kept = np.arange(len(questions)), min(_KEPT, everything)
    while todo.size:
        chosen = np.flatnonzero(np.isin(windows.question, todo))
        spans = _spans(windows, logits, chosen, settings, kept)
        todo, kept = _take_distinct(questions, windows, spans, found), everything
    return _with_null(questions.ids, found, _null_scores(len(questions), windows, logits), settings)


def _null_scores(num_questions: int, windows: Windows, logits: Logits) -> np.ndarray:
    """Start and end logit of [CLS] in the window of the least sum, float64 (2, Q); zeros without windows."""
    first = logits.bounds[:-1]
    both = np.stack([logits.start[first], logits.end[first]]).astype(np.float64)
    order = np.lexsort([both.sum(axis=0), windows.question])  # stable: the first window of equals
    question = windows.question[order]
    least = np.ones(len(order), dtype=bool)
    least[1:] = question[1:] != question[:-1]
    null = np.zeros((2, num_questions))
    null[:, question[least]] = both[:, order[least]]
    return null


@dataclass(frozen=True, eq=False)
class _Spans:
    """Candidates of windows, the window's best first. All of shape (N,): window, the first and last
    token of the context, the logits; `floor`: no other candidate of the window has a higher score."""

    window: np.ndarray
    first: np.ndarray
    last: np.ndarray
    start: np.ndarray
    end: np.ndarray
    floor: np.ndarray


def _spans(
    windows: Windows, logits: Logits, chosen: np.ndarray, settings: AnswerSettings, kept: int
) -> _Spans:
    """The `kept` best candidates of each window in `chosen`, by all cores, in the order of the windows."""
    # Windows of about the same length together: little is padded.
    order = chosen[np.argsort(windows.count[chosen], kind="stable")]
    width = np.maximum(1, windows.count[order])
    borders = [0]
    while borders[-1] < len(order):
        begin = borders[-1]
        rows = _CHUNK // int(width[begin])
        rows = max(1, _CHUNK // int(width[min(len(order), begin + rows) - 1]))  # as the longest of them need
        borders.append(min(len(order), begin + rows))
    chunks = [order[begin:end] for begin, end in zip(borders, borders[1:])] or [order]
    with ThreadPoolExecutor(min(len(os.sched_getaffinity(0)), len(chunks))) as pool:
        parts = list(pool.map(lambda chunk: _chunk_spans(windows, logits, chunk, settings, kept), chunks))
    columns = [np.concatenate([part[index] for part in parts]) for index in range(6)]
    by_window = np.argsort(columns[0], kind="stable")
    return _Spans(*(column[by_window] for column in columns))


def _chunk_spans(
    windows: Windows, logits: Logits, chunk: np.ndarray, settings: AnswerSettings, kept: int
) -> tuple[np.ndarray, ...]:
    """The columns of _Spans for some windows of about the same length."""
    counts = windows.count[chunk]
    width = int(counts.max(initial=0))
    places = np.arange(width)[None, :]
    real = places < counts[:, None]
    flat = ((logits.bounds[chunk] + windows.offset[chunk])[:, None] + places)[real]
    start = np.full((len(chunk), width), -np.inf, dtype=np.float32)
    end = start.copy()
    end[real] = logits.end[flat]
    start[real] = np.where(max_context(windows, chunk), logits.start[flat], np.float32(-np.inf))
    starts, ends = _largest(start, settings.n_best), _largest(end, settings.n_best)
    start_logits = np.take_along_axis(start, starts, axis=1)
    end_logits = np.take_along_axis(end, ends, axis=1)
    length = ends[:, None, :] - starts[:, :, None] + 1
    valid = (length >= 1) & (length <= settings.max_answer_length)
    scores = start_logits[:, :, None].astype(np.float64) + end_logits[:, None, :]
    scores = np.where(valid, scores, -np.inf).reshape(len(chunk), starts.shape[1] * ends.shape[1])
    best = _largest(scores, kept)
    rows, ranks = np.nonzero(np.take_along_axis(scores, best, axis=1) > -np.inf)
    pairs = best[rows, ranks]
    of_start, of_end = pairs // max(1, ends.shape[1]), pairs % max(1, ends.shape[1])
    least = np.take_along_axis(scores, best[:, -1:], axis=1)[:, 0] if best.size else np.zeros(len(chunk))
    floor = np.where((scores > -np.inf).sum(axis=1) > kept, least, -np.inf)
    return (
        chunk[rows],
        starts[rows, of_start] + windows.first[chunk[rows]],
        ends[rows, of_end] + windows.first[chunk[rows]],
        start_logits[rows, of_start],
        end_logits[rows, of_end],
        floor[rows],
    )


def _largest(values: np.ndarray, count: int) -> np.ndarray:
    """Indices of the `count` largest of each row, largest first, the first of equals first; (rows, count)."""
    rows, width = values.shape
    if width <= count:
        return np.argsort(-values, axis=1, kind="stable")
    chosen = np.argpartition(-values, count - 1, axis=1)[:, :count]
    chosen.sort(axis=1)
    taken = np.take_along_axis(values, chosen, axis=1)
    least = taken.min(axis=1)
    # Where several equal the least one, the partition may have taken any of them.
    tied = np.flatnonzero((least > -np.inf) & ((values >= least[:, None]).sum(axis=1) > count))
    order = np.argsort(-taken, axis=1, kind="stable")
    chosen = np.take_along_axis(chosen, order, axis=1)
    if tied.size:
        chosen[tied] = np.argsort(-values[tied], axis=1, kind="stable")[:, :count]
    return chosen


@dataclass(frozen=True, eq=False)
class _Found:
    """Candidates that are not null of each question: texts, and float64 (Q, n_best) logits, else -inf."""

    texts: list[tuple[str, ...]]
    start: np.ndarray
    end: np.ndarray


def _take_distinct(questions: Questions, windows: Windows, spans: _Spans, found: _Found) -> np.ndarray:
    """Takes each question's best candidates with different texts into `found`.

    Returns the questions for which candidates are missing that may be among the best, int64.
    """
    question = windows.question[spans.window]
    scores = spans.start.astype(np.float64) + spans.end
    order = np.lexsort([-scores, question])
    question = question[order]
    base = windows.contexts.bounds[windows.context_of[question]]
    begins = windows.contexts.starts[base + spans.first[order]].tolist()
    stops = windows.contexts.ends[base + spans.last[order]].tolist()
    firsts = np.flatnonzero(np.diff(question, prepend=-1))
    numbers, borders = question[firsts], [*firsts.tolist(), len(question)]
    n_best = found.start.shape[1]
    taken: list[int] = []
    sizes = []
    for number, first, last in zip(numbers.tolist(), borders, borders[1:]):
        context = questions.contexts[questions.context_of[number]]
        distinct: dict[str, int] = {}
        for index in range(first, last):
            text = context[begins[index] : stops[index]]
            if text not in distinct and text:
                distinct[text] = index
                if len(distinct) == n_best:
                    break
        found.texts[number] = tuple(distinct)
        taken.extend(distinct.values())
        sizes.append(len(distinct))
    counts = np.array(sizes, dtype=np.int64)
    rows = np.repeat(numbers, counts)
    columns = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    places = order[np.array(taken, dtype=np.int64)]
    found.start[rows, columns], found.end[rows, columns] = spans.start[places], spans.end[places]
    if not len(numbers):
        return numbers
    # A window of which not all is known may have candidates that are no worse than the last one taken.
    floor = np.maximum.reduceat(spans.floor[order], firsts)
    worst = np.where(counts == n_best, found.start[numbers, -1] + found.end[numbers, -1], -np.inf)
    return numbers[(floor > -np.inf) & (worst <= floor)]


def _with_null(ids: tuple[str, ...], found: _Found, null: np.ndarray, settings: AnswerSettings) -> Answers:
    """Answers of the candidates found, with no answer among them in version 2, and probabilities."""
    rows, n_best = np.arange(len(ids)), settings.n_best
    none = np.full((len(ids), 1), -np.inf)
    start, end = np.hstack([found.start, none]), np.hstack([found.end, none])
    scores = start + end
    empty = scores[:, 0] == -np.inf
    odds = np.zeros(len(ids))
    texts = found.texts
    if settings.version_2:
        odds = np.where(empty, NO_CANDIDATE_ODDS, null[0] + null[1] - start[:, 0] - end[:, 0])
        rank = (scores >= null.sum(axis=0)[:, None]).sum(axis=1)
        # As one of the n best, no answer takes the place of the last; else it comes after them.
        texts = [
            (*each[:place], "", *each[place:])[: n_best + (place == n_best)]
            for each, place in zip(texts, rank.tolist())
        ]
        source = np.arange(n_best + 1)[None, :] - (np.arange(n_best + 1)[None, :] > rank[:, None])
        start, end = np.take_along_axis(start, source, axis=1), np.take_along_axis(end, source, axis=1)
        start[rows, rank], end[rows, rank] = null
        start[rank < n_best, -1] = end[rank < n_best, -1] = -np.inf
    elif empty.any():
        texts = [each or ("",) for each in texts]
        start[empty, 0] = end[empty, 0] = 0.0
    scores = start + end
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    real = scores > -np.inf
    return Answers(
        ids,
        tuple(texts),
        powers / powers.sum(axis=1, keepdims=True),
        np.where(real, start, 0.0),
        np.where(real, end, 0.0),
        tuple(each[0] if each else "" for each in found.texts),
        odds,
        settings.version_2,
    )


PREDICTIONS, NBEST, NULL_ODDS = "predictions.json", "nbest_predictions.json", "null_odds.json"


def write_predictions(answers: Answers, folder: str, null_score_diff_threshold: float = 0.0) -> None:
    """Writes predictions.json (id -> text), nbest_predictions.json (id -> list of text, probability,
    start_logit, end_logit) and for version 2 null_odds.json (id -> odds) into `folder`."""
    _write(os.path.join(folder, PREDICTIONS), answers.predictions(null_score_diff_threshold))
    nbest = {
        each: [entry._asdict() for entry in answers.nbest(number)] for number, each in enumerate(answers.ids)
    }
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
        isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)
        for value in content.values()
    ):
        raise InputError(f"{flag} {path}: must be one object of ids and numbers, such as {NULL_ODDS}")
    return {each: float(value) for each, value in content.items()}


def _write(path: str, content: Any) -> None:
    with replacing(path) as handle:
        handle.write((json.dumps(content, indent=4) + "\n").encode("ascii"))
