"""Reading SQuAD's JSON files, versions 1.1 and 2.0, and dividing their questions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Iterator, Sequence

import numpy as np

from base.errors import InputError
from base.json_files import read_json_file

# Uses of a file, for which it must hold different things.
TRAIN, SCORE, PREDICT = "train", "score", "predict"
MAX_MISPLACED = 0.01  # of a file's answers; more mean that the file is damaged
_MOST_BYTES = 1 << 32  # a hundred times SQuAD 2.0
_LISTED = 5  # ids in a message


@dataclass(frozen=True, eq=False)
class Questions:
    """Questions of a file, in its order; question i is `texts[i]`.

    name: the file, for messages. ids, texts: one string a question. contexts: distinct paragraphs; question
    i is about `contexts[context_of[i]]`, int64 (Q,). article_of: int64 (Q,), number of the article that each
    question belongs to. golds: the right answers of each question, none where it is unanswerable.
    answer_starts, answer_ends: int64 (Q,), the characters [start, end) of the first answer in the context, -1
    where there is none or it does not stand there. version_2: the file says which questions are unanswerable.
    misplaced: ids of questions with an answer that does not stand at its `answer_start`; a training file's
    are left out of the others.
    """

    name: str
    ids: tuple[str, ...]
    texts: tuple[str, ...]
    contexts: tuple[str, ...]
    context_of: np.ndarray
    article_of: np.ndarray
    golds: tuple[tuple[str, ...], ...]
    answer_starts: np.ndarray
    answer_ends: np.ndarray
    version_2: bool
    misplaced: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def answerable(self) -> np.ndarray:
        """Questions with an answer, bool (Q,)."""
        return np.array([bool(golds) for golds in self.golds], dtype=bool)

    def select(self, chosen: Sequence[int] | np.ndarray) -> Questions:
        """Only the questions with these numbers, in the given order, with only their contexts."""
        numbers = np.asarray(chosen, dtype=np.int64)
        contexts, context_of = np.unique(self.context_of[numbers], return_inverse=True)
        return replace(
            self,
            ids=tuple(self.ids[number] for number in numbers),
            texts=tuple(self.texts[number] for number in numbers),
            contexts=tuple(self.contexts[number] for number in contexts),
            context_of=context_of.astype(np.int64),
            article_of=self.article_of[numbers],
            golds=tuple(self.golds[number] for number in numbers),
            answer_starts=self.answer_starts[numbers],
            answer_ends=self.answer_ends[numbers],
        )

    def answer(self, number: int) -> str:
        """The first answer of a question as it stands in its context; "" without one."""
        start = int(self.answer_starts[number])
        if start < 0:
            return ""
        return self.contexts[self.context_of[number]][start : int(self.answer_ends[number])]


def read_questions(path: str, flag: str, purpose: str = SCORE, first_gold: bool = False) -> Questions:
    """Reads a SQuAD file, given as option `flag`, for one purpose.

    TRAIN: each answerable question has one answer, which stands at its place; `first_gold` permits several,
    as in the files to evaluate on, and takes the first. SCORE: each has at least one. PREDICT: answers are
    neither needed nor looked at.

    Answers that do not stand at their `answer_start` are counted (`misplaced`). Their questions are left out
    of a training; for scoring, which compares texts only, they stay.

    Raises InputError, which names the file and the place in it, for malformed JSON, missing fields, two
    questions of one id, empty contexts, unanswerable questions with answers, more than 1% misplaced answers,
    and a file without questions.
    """
    return _Reader(f"{flag} {path}", purpose, first_gold).read(load_json(path, flag))


def load_json(path: str, flag: str) -> Any:
    """The content of a JSON file in UTF-8. Raises InputError naming the line and column of what is wrong."""
    return read_json_file(path, _MOST_BYTES, f"{flag} {path}")


def split_by_article(questions: Questions, share: float, seed: int) -> tuple[Questions, Questions]:
    """Divides questions into a larger part and one of about `share`, no article being in both.

    Articles are drawn with `seed` until they make up the share. Raises InputError where one article has them
    all.
    """
    articles, counts = np.unique(questions.article_of, return_counts=True)
    if len(articles) < 2:
        raise InputError(
            f"{questions.name}: all questions are about one article, so that none can be held out; give a "
            "file with several"
        )
    order = np.random.default_rng(seed).permutation(len(articles))
    # The first always, the last never; one between while the share would not be exceeded by more than half
    # of it.
    before = np.cumsum(counts[order]) - counts[order] / 2
    taken = before <= share * counts.sum()
    taken[0], taken[-1] = True, False
    held_out = np.isin(questions.article_of, articles[order[taken]])
    return questions.select(np.flatnonzero(~held_out)), questions.select(np.flatnonzero(held_out))


def check_disjoint(train: Questions, evaluation: Questions) -> None:
    """Raises InputError when questions to evaluate on are among those to train on."""
    shared = set(train.ids) & set(evaluation.ids)
    if shared:
        raise InputError(
            f"{train.name}: {len(shared)} of its questions are those of {evaluation.name} too, such as "
            f"{min(shared)}; what is trained on cannot be evaluated on"
        )


class _Reader:
    """Goes through a file's JSON; `_place` is where, for messages."""

    def __init__(self, name: str, purpose: str, first_gold: bool) -> None:
        self._name, self._purpose, self._first_gold = name, purpose, first_gold
        self._place = ""
        self._seen: dict[str, str] = {}
        self._misplaced: dict[str, None] = {}
        self._num_answers = self._num_misplaced = 0
        self._version_2 = False

    def read(self, content: Any) -> Questions:
        contexts: dict[str, int] = {}
        rows: list[tuple[str, str, int, int, tuple[str, ...], int, int]] = []
        for article_number, article in enumerate(self._items(content, "data", "")):
            place = self._place
            for paragraph in self._items(article, "paragraphs", place):
                place_of_paragraph = self._place
                context = self._string(paragraph, "context")
                if not context.strip():
                    raise self._error("its context is empty; every question needs a text to answer from")
                number = contexts.setdefault(context, len(contexts))
                for question in self._items(paragraph, "qas", place_of_paragraph):
                    row = self._question(question, context)
                    if row is not None:
                        identity, text, golds, start, end = row
                        rows.append((identity, text, number, article_number, golds, start, end))
        self._check(len(rows))
        ids, texts, context_of, article_of, golds_of, starts, ends = zip(*rows)
        questions = Questions(
            self._name,
            ids,
            texts,
            tuple(contexts),
            np.array(context_of, dtype=np.int64),
            np.array(article_of, dtype=np.int64),
            golds_of,
            np.array(starts, dtype=np.int64),
            np.array(ends, dtype=np.int64),
            self._version_2,
            tuple(self._misplaced),
        )
        return questions.select(np.arange(len(ids)))  # without contexts of which no question is left

    def _question(self, question: Any, context: str) -> tuple[str, str, tuple[str, ...], int, int] | None:
        """Id, text, golds, start and end of the first answer; None for one that cannot be trained on."""
        identity = question.get("id")
        if not isinstance(identity, (str, int)) or isinstance(identity, bool):
            raise self._error("'id' is missing or no string")
        identity = str(identity)
        if identity in self._seen:
            raise self._error(f"the id {identity} is that of {self._seen[identity]} too; ids must differ")
        self._seen[identity] = self._place
        text = self._string(question, "question")
        impossible = question.get("is_impossible", False)
        if not isinstance(impossible, bool):
            raise self._error("'is_impossible' must be true or false")
        self._version_2 |= "is_impossible" in question
        if self._purpose == PREDICT:
            return identity, text, (), -1, -1
        answers = question.get("answers", [])
        if not isinstance(answers, list) or not all(isinstance(each, dict) for each in answers):
            raise self._error("'answers' must be a list of objects")
        if impossible and answers:
            raise self._error(f"question {identity} is said to be impossible and has answers")
        if not impossible and not answers:
            raise self._error(
                f"question {identity} has no answers and is not said to be impossible; is this a test file?"
            )
        if self._purpose == TRAIN and len(answers) > 1 and not self._first_gold:
            raise self._error(
                f"question {identity} has {len(answers)} answers; a training file has one for each question; "
                "is this the file to evaluate on?"
            )
        stands = [self._stands(answer, context) for answer in answers]
        self._num_answers += len(answers)
        self._num_misplaced += len(stands) - sum(stands)
        if not all(stands):
            self._misplaced[identity] = None
            if self._purpose == TRAIN and not stands[0]:
                return None
        golds = tuple(answer["text"] for answer in answers)
        if not answers or not stands[0]:
            return identity, text, golds, -1, -1
        start = answers[0]["answer_start"]
        return identity, text, golds[:1] if self._purpose == TRAIN else golds, start, start + len(golds[0])

    def _stands(self, answer: dict[str, Any], context: str) -> bool:
        text, start = answer.get("text"), answer.get("answer_start")
        if not isinstance(text, str):
            raise self._error("an answer's 'text' is missing or no string")
        if not isinstance(start, int) or isinstance(start, bool):
            raise self._error("an answer's 'answer_start' is missing or no whole number")
        return bool(text.strip()) and start >= 0 and context.startswith(text, start)

    def _check(self, num_questions: int) -> None:
        if self._num_misplaced > MAX_MISPLACED * self._num_answers:
            listed = ", ".join(list(self._misplaced)[:_LISTED])
            more = ", ..." if len(self._misplaced) > _LISTED else ""
            raise InputError(
                f"{self._name}: {self._num_misplaced} of {self._num_answers} answers do not stand at their "
                f"'answer_start', which is more than {MAX_MISPLACED:.0%}: questions {listed}{more}; "
                "'answer_start' counts characters of the context"
            )
        if not num_questions:
            raise InputError(f"{self._name}: no questions in it")

    def _items(self, holder: Any, field: str, place: str) -> Iterator[dict[str, Any]]:
        """The objects of a list; sets the place while they are looked at."""
        self._place = place
        items = holder.get(field) if isinstance(holder, dict) else None
        if not isinstance(items, list):
            raise self._error(f"{field!r} is missing or no list; SQuAD's files have data, paragraphs, qas")
        for number, item in enumerate(items):
            self._place = f"{place}.{field}[{number}]".lstrip(".")
            if not isinstance(item, dict):
                raise self._error("no object")
            yield item

    def _string(self, holder: dict[str, Any], field: str) -> str:
        value = holder.get(field)
        if not isinstance(value, str):
            raise self._error(f"{field!r} is missing or no string")
        return value

    def _error(self, what: str) -> InputError:
        return InputError(f"{self._name}: {self._place or 'top level'}: {what}")
