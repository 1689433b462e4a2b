"""Scores against a second implementation, character by character and word by word, in exact fractions."""

from __future__ import annotations

import json
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from base.errors import InputError
from data.questions import score
from data.questions.score import answer_words, best_threshold, score_v1, score_v2
from data.questions.squad_files import Questions, read_questions
from tests.data.questions.squad import REASON, SHARED, question, squad, written

PUNCTUATION = r"""!"#$%&'()*+,-./:;<=>?@[\]^_`{|}~"""


def words(text: str) -> list[str]:
    """The words that count: a scan over characters, where an article stands between characters of no word."""
    kept = [each for each in text.lower() if each not in PUNCTUATION]
    found, run = [""], ""
    for each in [*kept, ""]:
        if each and (each.isalnum() or each == "_"):
            run += each
            continue
        if run in ("a", "an", "the"):
            found.append("")
        else:
            found[-1] += run
        run = ""
        if each.isspace():
            found.append("")
        else:
            found[-1] += each
    return [each for each in found if each]


def one(gold: str, prediction: str, both_empty: int) -> tuple[int, Fraction]:
    mine, theirs = words(prediction), words(gold)
    if not mine or not theirs:
        return int(mine == theirs), Fraction(both_empty * (mine == theirs))
    left = list(theirs)
    for each in mine:
        if each in left:
            left.remove(each)
    shared = len(theirs) - len(left)
    return int(mine == theirs), Fraction(2 * shared, len(mine) + len(theirs))


def reference_v1(questions: Questions, predictions) -> dict[str, Fraction]:
    exact = f1 = Fraction(0)
    for each, golds in zip(questions.ids, questions.golds):
        if each in predictions:
            exact += max(one(gold, predictions[each], 0)[0] for gold in golds)
            f1 += max(one(gold, predictions[each], 0)[1] for gold in golds)
    return {"exact_match": 100 * exact / len(questions), "f1": 100 * f1 / len(questions)}


def reference_v2(questions: Questions, predictions, odds=None, limit=None) -> dict[str, Fraction]:
    raw = {}
    for each, golds in zip(questions.ids, questions.golds):
        usable = [gold for gold in golds if words(gold)] or [""]
        pairs = [one(gold, predictions[each], 1) for gold in usable]
        raw[each] = max(pair[0] for pair in pairs), max(pair[1] for pair in pairs)
    answerable = {each: bool(golds) for each, golds in zip(questions.ids, questions.golds)}
    given = dict(raw)
    if limit is not None:
        given.update({each: (not answerable[each],) * 2 for each in raw if odds[each] > limit})
    result = {}
    for name, wanted in (("", (True, False)), ("HasAns_", (True,)), ("NoAns_", (False,))):
        chosen = [given[each] for each in raw if answerable[each] in wanted]
        if chosen:
            for place, kind in enumerate(("exact", "f1")):
                result[name + kind] = 100 * Fraction(sum(each[place] for each in chosen)) / len(chosen)
            result[name + "total"] = len(chosen)
    if odds is not None:
        for place, kind in enumerate(("exact", "f1")):
            # Every number of questions answered, in the order of rising odds, of equals as in the file
            order = sorted(odds, key=odds.get)
            totals = []
            for count in range(len(order) + 1):
                answered = set(order[:count])
                points = (
                    (raw[each][place] if answerable[each] else not predictions[each])
                    if each in answered
                    else not answerable[each]
                    for each in raw
                )
                totals.append(sum(points))
            best = totals.index(max(totals))
            result[f"best_{kind}"] = 100 * Fraction(totals[best]) / len(raw)
            result[f"best_{kind}_thresh"] = odds[order[best - 1]] if best else 0.0
    return result


def close(ours, reference) -> None:
    assert list(ours) == list(reference)
    for name, value in reference.items():
        assert abs(ours[name] - float(value)) <= 1e-9, name


def made(golds) -> Questions:
    zeros = np.zeros(len(golds), dtype=np.int64)
    ids = tuple(f"q{number}" for number in range(len(golds)))
    return Questions("made", ids, ids, ("c",), zeros, zeros, tuple(map(tuple, golds)), zeros, zeros, True)


_WORDS = (
    "a an the The A, an- the's cat Cat cats a–b the—the théâtre thé athe _a a_ ñandú É "
    "1,000 $5 ''' ... ß ẞ İ 東京 the\xa0cat a\u200bn «the» “a” \u0301a 3.5% U.S.A. \t\n"
)
TEXT = st.lists(st.one_of(st.sampled_from(_WORDS.split(" ")), st.text(max_size=4)), max_size=5).map(" ".join)


@settings(max_examples=200)
@given(TEXT)
def test_normalization(text):
    assert answer_words(text) == words(text)


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.lists(TEXT, max_size=3), TEXT, st.integers(-3, 3)), min_size=1, max_size=8),
    st.data(),
)
def test_any_answers(cases, data):
    questions = made([golds for golds, _, _ in cases])
    predictions = {each: case[1] for each, case in zip(questions.ids, cases)}
    odds = {each: float(case[2]) for each, case in zip(questions.ids, cases)}
    odds = {each: odds[each] for each in data.draw(st.permutations(questions.ids))}
    close(score_v2(questions, predictions), reference_v2(questions, predictions))
    close(score_v2(questions, predictions, odds), reference_v2(questions, predictions, odds))
    close(score_v2(questions, predictions, odds, 1.0), reference_v2(questions, predictions, odds, 1.0))
    best = score_v2(questions, predictions, odds)["best_f1_thresh"]
    assert best_threshold(questions, predictions, odds) == best
    if all(golds for golds, _, _ in cases):
        for each in data.draw(st.lists(st.sampled_from(questions.ids))):
            predictions.pop(each, None)
        close(score_v1(questions, predictions), reference_v1(questions, predictions))


@pytest.mark.skipif(not SHARED.exists(), reason=REASON)
def test_real_questions_to_the_last_digit():
    """Predictions made of other questions' golds; sums go through the file as the script's do."""
    questions = read_questions(str(SHARED), "--dev_file")
    generator = np.random.default_rng(0)
    texts = [gold for golds in questions.golds for gold in golds]
    predictions = {}
    for each, golds in zip(questions.ids, questions.golds):
        own = golds[-1] + generator.choice([" the", "", " x", "..."]) if golds else ""
        predictions[each] = str(generator.choice([own, own, str(generator.choice(texts)), ""]))
    odds = dict(zip(questions.ids, generator.normal(size=len(questions)).round(2).tolist()))
    for limit in (None, 1.0):
        given = (questions, predictions, odds, limit)
        close(score_v2(*given), reference_v2(*given))
    f1 = 0.0
    for each, golds in zip(questions.ids, questions.golds):
        best = 0.0
        for gold in golds or ("",):
            mine, theirs = words(predictions[each]), words(gold)
            shared = sum(min(mine.count(word), theirs.count(word)) for word in set(mine))
            if not mine or not theirs:
                best = max(best, float(mine == theirs))
            elif shared:
                precision, recall = 1.0 * shared / len(mine), 1.0 * shared / len(theirs)
                best = max(best, (2 * precision * recall) / (precision + recall))
        f1 += best
    assert score_v2(questions, predictions)["f1"] == 100.0 * f1 / len(questions)
    answered = questions.select(np.flatnonzero(questions.answerable))
    some = {each: predictions[each] for each in answered.ids[::2]}
    close(score_v1(answered, some), reference_v1(answered, some))


def test_what_cannot_be_scored():
    questions = made([["x"], []])
    with pytest.raises(InputError, match="question q1 has no answer"):
        score_v1(questions, {})
    with pytest.raises(InputError, match="1 of 2 questions have no prediction, such as q1"):
        score_v2(questions, {"q0": "x"})
    with pytest.raises(InputError, match="2 of 2 questions have no null odds, such as q0"):
        score_v2(questions, {"q0": "x", "q1": ""}, {})


def test_command(tmp_path, capsys):
    context = "alpha beta"
    one = squad((context, [question("a", "?", ("beta", 6), ("alpha beta", 0))]))
    first = written(tmp_path / "1.json", one)
    second = [question("a", "?", ("beta", 6), impossible=False), question("b", "?", impossible=True)]
    second = written(tmp_path / "2.json", squad((context, second), version="v2.0"))
    predictions = written(tmp_path / "p.json", {"a": "the beta", "b": "alpha"})
    odds = written(tmp_path / "o.json", {"a": -2.0, "b": 3})
    assert score.main([first, predictions]) == 0
    assert json.loads(capsys.readouterr().out) == {"exact_match": 100.0, "f1": 100.0}
    assert score.main([second, predictions, "--null_odds", odds, "--odds_threshold", "1"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["exact"] == 100.0 and result["best_f1_thresh"] == -2.0
    without = [second, predictions, "--odds_threshold", "1"]
    for bad in ([first, predictions, "--null_odds", odds], without, [second]):
        assert score.main(bad) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ") and error.count("\n") == 1
