"""Exact match and F1 as the official scripts evaluate-v1.1.py and evaluate-v2.0.py define them.

    python -m data.questions.score dev-v2.0.json predictions.json [--null_odds null_odds.json]

prints the scores of a file of predictions as JSON: those of evaluate-v2.0.py, or of evaluate-v1.1.py where
the file does not say which questions are unanswerable. They are those of the predictions as they are; the
official script given null odds (--na-prob-file) also counts what has odds above 1 as no answer:
--odds_threshold 1 does that here.

Rajpurkar et al. 2016 and 2018. Both compare texts without case, punctuation, articles and extra spaces; F1 is
of the words that two texts share, and the best over the right answers counts.
"""

from __future__ import annotations

import functools
import json
import re
import string
import sys
from collections import Counter
from typing import Iterable, Mapping, Sequence

import numpy as np

from base.command_line import OptionParser, code_of, finite, path_name
from base.errors import InputError
from data.questions.answers import read_null_odds, read_predictions
from data.questions.squad_files import Questions, read_questions

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def answer_words(text: str) -> list[str]:
    """The words of a text that count: in lower case, without ASCII punctuation, without articles."""
    return _ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split()


def score_v1(questions: Questions, predictions: Mapping[str, str]) -> dict[str, float]:
    """`exact_match` and `f1` in percent, as evaluate-v1.1.py; a question without prediction scores 0.

    Raises InputError for questions without a right answer, which that script cannot score.
    """
    unanswerable = [each for each, golds in zip(questions.ids, questions.golds) if not golds]
    if unanswerable:
        raise InputError(
            f"{questions.name}: question {unanswerable[0]} has no answer, so it is no SQuAD 1.1; score it "
            "as 2.0"
        )
    words = functools.cache(answer_words)  # golds come in threes
    exact = f1 = 0.0
    for each, golds in zip(questions.ids, questions.golds):
        if each in predictions:
            # Texts without words share none.
            one, other = _compare(map(words, dict.fromkeys(golds)), words(predictions[each]), 0.0)
            exact, f1 = exact + one, f1 + other
    total = len(questions)
    return {"exact_match": 100.0 * exact / total, "f1": 100.0 * f1 / total}


def score_v2(
    questions: Questions,
    predictions: Mapping[str, str],
    null_odds: Mapping[str, float] | None = None,
    odds_threshold: float | None = None,
) -> dict[str, float]:
    """The dictionary that evaluate-v2.0.py prints, in its order.

    exact, f1, total; the same with HasAns_ and NoAns_ for the questions with and without an answer, if there
    are any; with `null_odds`, best_exact, best_exact_thresh, best_f1 and best_f1_thresh. `odds_threshold`
    (the script's --na-prob-thresh, which it sets to 1.0 where it has odds) counts predictions with higher
    odds as no answer before anything but the best thresholds; None takes them as they are.

    Raises InputError naming an id without prediction or odds: the script ends with a KeyError there.
    """
    _check_complete(questions, predictions, "prediction")
    answerable = questions.answerable
    scores = raw = np.stack(raw_scores(questions, predictions))
    if null_odds is not None:
        _check_complete(questions, null_odds, "null odds")
        if odds_threshold is not None:
            above = np.array([null_odds[each] > odds_threshold for each in questions.ids])
            scores = np.where(above, ~answerable, raw).astype(np.float64)
    result = _means(scores, np.ones(len(questions), dtype=bool), "")
    for name, chosen in (("HasAns_", answerable), ("NoAns_", ~answerable)):
        if chosen.any():
            result.update(_means(scores, chosen, name))
    if null_odds is not None:
        for name, each in zip(("exact", "f1"), raw):
            best = _best(questions, predictions, null_odds, each)
            result[f"best_{name}"], result[f"best_{name}_thresh"] = best
    return result


def best_threshold(questions: Questions, texts: Mapping[str, str], null_odds: Mapping[str, float]) -> float:
    """The --null_score_diff_threshold with the best F1.

    `texts` are the best answers that are not null, whatever their odds. For a split of the training data
    (`data.questions.squad_files.split_by_article`): a threshold tuned on what is reported is worth nothing.
    """
    _check_complete(questions, texts, "prediction")
    _check_complete(questions, null_odds, "null odds")
    return _best(questions, texts, null_odds, raw_scores(questions, texts)[1])[1]


def raw_scores(questions: Questions, predictions: Mapping[str, str]) -> tuple[np.ndarray, np.ndarray]:
    """Exact match and F1 of each question by evaluate-v2.0.py, float64 (Q,), from 0 to 1."""
    words = functools.cache(answer_words)  # golds come in threes
    exact, f1 = np.zeros(len(questions)), np.zeros(len(questions))
    for number, (each, golds) in enumerate(zip(questions.ids, questions.golds)):
        kept = [found for found in map(words, dict.fromkeys(golds)) if found] or [[]]
        exact[number], f1[number] = _compare(kept, words(predictions[each]), 1.0)  # without words: equal
    return exact, f1


def _compare(golds: Iterable[list[str]], answer: list[str], both_empty: float) -> tuple[float, float]:
    """The best exact match and F1 of an answer's words; `both_empty`: F1 of texts that have none."""
    exact = best = 0.0
    for gold in golds:
        shared = sum((Counter(gold) & Counter(answer)).values())
        if gold == answer:
            exact, f1 = 1.0, 1.0 if gold else both_empty
        elif shared:
            precision, recall = shared / len(answer), shared / len(gold)
            f1 = 2 * precision * recall / (precision + recall)
        else:
            f1 = 0.0
        best = max(best, f1)
    return exact, best


def _means(scores: np.ndarray, chosen: np.ndarray, name: str) -> dict[str, float]:
    # Python's sum adds one after the other like the script; NumPy's adds in pairs, for another last digit.
    total = int(chosen.sum())
    exact, f1 = (100.0 * sum(each[chosen].tolist()) / total for each in scores)
    return {f"{name}exact": exact, f"{name}f1": f1, f"{name}total": total}


def _best(
    questions: Questions, predictions: Mapping[str, str], null_odds: Mapping[str, float], scores: np.ndarray
) -> tuple[float, float]:
    """The best score in percent, and the null odds above which no answer is given for it.

    The script's search: from no answers at all, answers are added in the order of rising null odds."""
    number_of = {each: number for number, each in enumerate(questions.ids)}
    ids = [each for each in null_odds if each in number_of]
    odds = np.array([null_odds[each] for each in ids])
    order = np.argsort(odds, kind="stable")
    numbers = np.array([number_of[each] for each in ids])[order]
    answerable = questions.answerable
    answered = np.array([bool(predictions[each]) for each in questions.ids])
    gains = np.where(answerable, scores, -1.0 * answered)[numbers]
    running = np.cumsum(np.concatenate([[float((~answerable).sum())], gains]))
    best = int(np.argmax(running))  # the first of equals, as the script
    threshold = float(odds[order][best - 1]) if best else 0.0
    return 100.0 * float(running[best]) / len(questions), threshold


def _check_complete(questions: Questions, given: Mapping[str, object], what: str) -> None:
    missing = [each for each in questions.ids if each not in given]
    if missing:
        raise InputError(
            f"{questions.name}: {len(missing)} of {len(questions)} questions have no {what}, such as "
            f"{missing[0]}; SQuAD 2.0 needs one for each"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = OptionParser(
        prog="python -m data.questions.score",
        description="Score a file of predictions as the official SQuAD scripts do.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "questions", type=path_name, help="SQuAD's JSON file with the right answers, 1.1 or 2.0"
    )
    parser.add_argument(
        "predictions", type=path_name, help="JSON file id -> answer, such as predictions.json"
    )
    parser.add_argument(
        "--null_odds", type=path_name, help="JSON file id -> odds of no answer, such as null_odds.json"
    )
    parser.add_argument("--odds_threshold", type=finite, help="count predictions above it as no answer")
    try:
        options = parser.parse_args(arguments)
        if options.odds_threshold is not None and not options.null_odds:
            raise InputError("--odds_threshold is for --null_odds; give both")
        questions = read_questions(options.questions, "questions")
        predictions = read_predictions(options.predictions, "predictions")
        if questions.version_2:
            odds = read_null_odds(options.null_odds, "--null_odds") if options.null_odds else None
            result = score_v2(questions, predictions, odds, options.odds_threshold)
        elif options.null_odds:
            raise InputError(
                f"--null_odds: {options.questions} is SQuAD 1.1, where every question has an answer"
            )
        else:
            result = score_v1(questions, predictions)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(result, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(code_of(main))
