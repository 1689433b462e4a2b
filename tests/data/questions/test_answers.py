"""Logits to answers, against Google's loop over windows and positions (bench/question_loop.py)."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from base.errors import InputError
from bench.question_loop import best_answers, features, hugging_face
from data.questions.answers import (
    NO_CANDIDATE_ODDS,
    Answers,
    AnswerSettings,
    Logits,
    answer,
    read_null_odds,
    read_predictions,
    write_predictions,
)
from data.questions.squad_files import Questions, read_questions
from data.questions.windows import Windows, WindowSettings, make_windows
from data.tokenizing.tokenizer import TokenizerSettings
from tests.data.questions.squad import REASON, SHARED, written
from tests.data.questions.test_windows import made


def filled(windows: Windows, draw, seed: int = 0) -> Logits:
    """Logits `draw(shape)` put batch by batch, windows in a random order, padding full of NaN."""
    logits = Logits(windows)
    order = np.random.default_rng(seed).permutation(len(windows))
    for begin in range(0, len(order), 7):
        examples = order[begin : begin + 7]
        width = int(windows.lengths[examples].max()) + 2
        pair = [draw((len(examples), width)).astype(np.float32) for _ in range(2)]
        for each in pair:
            each[np.arange(width)[None, :] >= windows.lengths[examples][:, None]] = np.nan
        logits.put(examples, *pair)
    return logits


def compare(questions: Questions, vocab, sizes: WindowSettings, rule: AnswerSettings, draw) -> Answers:
    """Texts, order, logits, probabilities and null odds of every question."""
    windows = make_windows(questions, TokenizerSettings(vocab), sizes)
    logits = filled(windows, draw)
    ours = answer(questions, windows, logits, rule)
    loop = list(features(questions, hugging_face(vocab, False), vocab, sizes))
    pairs = [
        (logits.start[begin:end].tolist(), logits.end[begin:end].tolist())
        for begin, end in zip(logits.bounds, logits.bounds[1:])
    ]
    theirs, odds = best_answers(questions, loop, pairs, rule, only_context=True)
    for number, entries in enumerate(theirs):
        mine = ours.nbest[number]
        if not entries:
            assert [tuple(each) for each in mine] == [("", 1.0, 0.0, 0.0)]
            continue
        found = [(each.text, each.start_logit, each.end_logit) for each in mine]
        assert found == [each[:3] for each in entries]
        assert np.allclose([each.probability for each in mine], [each.probability for each in entries])
        assert math.isclose(sum(each.probability for each in mine), 1.0)
        texts = [each.text for each in entries if each.text]
        if rule.version_2 and rule.n_best == 1 and not texts:
            continue  # Google's code ends with an error where no answer is the only candidate kept
        assert ours.texts[number] == (texts or [""])[0]
        if rule.version_2:
            expected = odds[number] if math.isfinite(odds[number]) else NO_CANDIDATE_ODDS
            assert ours.null_odds[number] == expected
    return ours


@pytest.mark.skipif(not SHARED.exists(), reason=REASON)
@pytest.mark.parametrize("version_2", [False, True])
def test_real_questions(letters, version_2):
    questions = read_questions(str(SHARED), "--dev_file")
    questions = questions.select(np.arange(0, len(questions), 40))
    draw, rule = np.random.default_rng(1).normal, AnswerSettings(version_2=version_2)
    answers = compare(questions, letters, WindowSettings(96, 32, 30), rule, lambda shape: draw(size=shape))
    for number, text in enumerate(answers.texts):
        assert text and text in questions.contexts[questions.context_of[number]]


@settings(max_examples=60)
@given(st.data())
def test_any_logits_with_many_equal_ones(letters, data):
    """Equal logits come in the order of Google's loop, and equal texts once."""
    words = st.lists(st.sampled_from(["a", "b", "the", "of", "spaces", "é."]), min_size=0, max_size=60)
    contexts = [f"x{number} " + " ".join(data.draw(words)) for number in range(3)] + ["\u200b"]
    questions = made(contexts, [(number % 4, "a b"[: number % 4], -1, -1) for number in range(7)])
    generator = np.random.default_rng(data.draw(st.integers(0, 1000)))
    levels = data.draw(st.sampled_from([1, 2, 5, 1000]))
    most, longest = data.draw(st.sampled_from([1, 2, 5, 20])), data.draw(st.sampled_from([1, 3, 30]))
    rule = AnswerSettings(most, longest, data.draw(st.booleans()))
    sizes = WindowSettings(data.draw(st.integers(9, 40)), data.draw(st.integers(1, 20)), 3)
    compare(questions, letters, sizes, rule, lambda shape: generator.integers(0, levels, shape) / 4)


def peaks(windows: Windows, chosen: dict[int, tuple[int, int]], null: float = 0.0) -> Logits:
    """Logits 5 at each window's (first, last) context token, `null` / 2 at [CLS], -5 elsewhere."""
    logits = Logits(windows)
    for window in range(len(windows)):
        pair = np.full((2, 1, windows.lengths[window]), -5.0, dtype=np.float32)
        pair[:, 0, 0] = null / 2
        if window in chosen:
            for each, token in zip(pair, chosen[window]):
                each[0, token - windows.first[window] - windows.count[window] - 1] = 5.0
        logits.put(np.array([window]), *pair)
    return logits


@pytest.mark.parametrize(
    "context, text",
    [
        ("He met Zoë Müller, there", "Zoë Müller"),
        ("He met Zoe\u0308 Mu\u0308ller, there", "Zoe\u0308 Mu\u0308ller"),
        ("住む東京都中文 there", "東京"),
        ("a\tb   of\r\nthe end", "b   of\r\nthe"),
        ("go 😀 the\u200bre now", "😀 the\u200bre"),
    ],
)
def test_answers_are_slices_of_the_text_as_it_was(letters, context, text):
    """Google's get_final_text guesses where such an answer is, from stripped and lower-cased words."""
    questions = made([context], [(0, "x", context.index(text), context.index(text) + len(text))])
    windows = make_windows(questions, TokenizerSettings(letters), WindowSettings(), training=True)
    question = 3  # [CLS] x [SEP]
    place = (windows.starts[0] - question, windows.ends[0] - question)
    found = answer(questions, windows, peaks(windows, {0: place}), AnswerSettings())
    assert found.texts == (text,) and found.predictions() == {"0": text}


def test_no_candidate_is_no_answer(letters):
    """Google's code ends with an exception here in 2.0, and answers "empty" in 1.1."""
    questions = made(["\u200b", "a"], [(0, "x", -1, -1), (1, "x", -1, -1)])
    windows = make_windows(questions, TokenizerSettings(letters), WindowSettings())
    for version_2 in (False, True):
        found = answer(questions, windows, peaks(windows, {}), AnswerSettings(version_2=version_2))
        assert found.predictions(1e3) == {"0": "", "1": "a"}
        assert found.nbest[0] == [("", 1.0, 0.0, 0.0)]
        assert found.predictions(0.0) == {"0": "", "1": "" if version_2 else "a"}
    assert found.null_odds.tolist() == [NO_CANDIDATE_ODDS, 10.0]


def test_null_odds_and_threshold(letters):
    questions = made(["a b c d e f g h i j k l"], [(0, "x", -1, -1)])
    windows = make_windows(questions, TokenizerSettings(letters), WindowSettings(10, 6, 1))
    logits = peaks(windows, {1: (7, 8)}, null=12.0)
    logits.start[0] = -1.0  # the first window's [CLS]: the least null score counts
    found = answer(questions, windows, logits, AnswerSettings(version_2=True))
    assert found.odds() == {"0": -1.0 + 6.0 - 10.0}
    assert found.predictions(-6.0) == {"0": ""} and found.predictions(-5.0) == {"0": "h i"}


def test_logits_are_complete_and_finite(letters):
    questions = made(["a b c"], [(0, "x", -1, -1), (0, "y", -1, -1)])
    windows = make_windows(questions, TokenizerSettings(letters), WindowSettings())
    logits = Logits(windows)
    values = np.zeros((1, 9), dtype=np.float32)
    logits.put(np.array([1]), values, values)
    with pytest.raises(ValueError, match="of 2 windows 1 have no logits"):
        answer(questions, windows, logits, AnswerSettings())
    values[0, 2] = np.inf
    with pytest.raises(ValueError, match="diverged"):
        logits.put(np.array([0]), values, values)


def test_files(letters, tmp_path):
    context = 'quote " and é and \ud83d'
    questions = made([context], [(0, "x", 0, 5)])
    windows = make_windows(questions, TokenizerSettings(letters), WindowSettings())
    found = answer(questions, windows, peaks(windows, {0: (0, 8)}), AnswerSettings(version_2=True))
    write_predictions(found, str(tmp_path), -100.0)
    assert read_predictions(str(tmp_path / "predictions.json"), "--p") == {"0": ""}
    assert read_null_odds(str(tmp_path / "null_odds.json"), "--p") == found.odds()
    nbest = json.loads((tmp_path / "nbest_predictions.json").read_text())["0"]
    assert list(nbest[0]) == ["text", "probability", "start_logit", "end_logit"]
    assert nbest == [each._asdict() for each in found.nbest[0]]
    for content in ("[]", '{"a": true}', '{"a": null}', f'{{"a": {10**400}}}'):
        path = written(tmp_path / "bad.json", content)
        for read in (read_predictions, read_null_odds):
            with pytest.raises(InputError, match="^--p .*must be one object of ids and"):
                read(path, "--p")
