"""Tokens with offsets: the project's ids, and places that give back the text."""

from __future__ import annotations

import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from base.errors import InputError
from bench.question_loop import hugging_face
from data.questions.offsets import OffsetEncoder
from data.tokenizing.tokenizer import TokenizerSettings
from data.tokenizing.wordpiece import lists_of

# text, a part of it that is whole tokens
SLICES = [
    ("He lives in Malmö.", "Malmö"),
    ("He lives in Malmo\u0308, today", "Malmo\u0308"),  # the accent is a character of its own
    ("a\u0301\u0302b\u0301", "a\u0301\u0302b\u0301"),
    ("東京都に住む", "京"),
    ("한글 text", "한글"),
    ("tab\there  and\r\nthere", "here  and"),
    ("a \u3000wide\u2003space", "wide\u2003space"),
    ("zero\u200bwidth\u200b space", "zero\u200bwidth"),
    ("right שלום עולם left", "שלום עולם"),
    ("mark \u200fשָׁלוֹם\u200e end", "שָׁלוֹם"),
    ("smile 😀👍🏽 now", "😀👍🏽"),
    ("control\x00char\x07s \x1fin", "control\x00char\x07s"),
    ("İstanbul İ", "İstanbul"),
    ("half \ud83d pair", "half \ud83d pair"),
    ("(1895-1943)", "1895"),
    ("x" * 250 + " y", "x" * 250),
]


ODD = "abcxyzABÉéüñ東京語한글 \t\n\u00a0\u3000\u200b\u0301\u0308.,-'’()😀\x1c\x85\ufeff\u202f"
TEXTS = st.lists(st.text(st.one_of(st.characters(), st.sampled_from(ODD)), max_size=60), max_size=4)


@pytest.fixture(scope="module")
def encoders(letters, sentencepiece_settings):
    """Both of each tokenizer: with offsets, and the one that training has."""
    words = (TokenizerSettings(letters, cased=cased) for cased in (False, True))
    return [(OffsetEncoder(each), each.build()) for each in (*words, *sentencepiece_settings.values())]


@pytest.mark.parametrize("text, part", SLICES)
def test_tokens_of_a_part_give_back_the_part(encoders, text, part):
    for encoder, _ in encoders:
        tokens = encoder.encode([text])
        start, end = text.index(part), text.index(part) + len(part)
        inside = np.flatnonzero((tokens.starts < end) & (tokens.ends > start))
        assert text[tokens.starts[inside[0]] : tokens.ends[inside[-1]]] == part


@settings(max_examples=80, deadline=None)
@given(TEXTS)
def test_ids_are_the_tokenizers_and_places_rise(encoders, texts):
    for encoder, tokenizer in encoders:
        tokens = encoder.encode(texts)
        expected = lists_of(*tokenizer.encode(texts))
        assert np.diff(tokens.bounds).tolist() == [len(ids) for ids in expected]
        assert tokens.ids.tolist() == [index for ids in expected for index in ids]
        for text, begin, end in zip(texts, tokens.bounds, tokens.bounds[1:]):
            starts, ends = tokens.starts[begin:end], tokens.ends[begin:end]
            assert (starts <= ends).all() and (np.diff(starts) >= 0).all() and (np.diff(ends) >= 0).all()
            assert not len(starts) or (starts[0] >= 0 and ends[-1] <= len(text))


@settings(max_examples=80, deadline=None)
@given(TEXTS)
def test_places_are_hugging_faces_but_for_accents_at_the_end(letters, texts):
    texts = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]
    for cased in (False, True):
        tokens = OffsetEncoder(TokenizerSettings(letters, cased=cased)).encode(texts)
        for text, begin, end in zip(texts, tokens.bounds, tokens.bounds[1:]):
            theirs = hugging_face(letters, cased).encode(text).offsets
            assert tokens.starts[begin:end].tolist() == [start for start, _ in theirs]
            for (_, theirs_end), ours in zip(theirs, tokens.ends[begin:end].tolist()):
                assert ours == theirs_end or unicodedata.category(text[ours - 1]) == "Mn"


def test_a_second_call_and_no_texts(letters):
    encoder = OffsetEncoder(TokenizerSettings(letters))
    first, again = (encoder.encode(["Tabs\tto", "", "  "]) for _ in range(2))
    assert first.bounds.tolist() == again.bounds.tolist() == [0, 2, 2, 2]
    assert first.ids.tolist() == again.ids.tolist() and again.ends.tolist() == [4, 7]
    assert encoder.encode([]).bounds.tolist() == [0]


def test_sampling_is_rejected(sentencepiece_settings):
    plain = sentencepiece_settings[False]
    with pytest.raises(InputError, match="--sp_nbest"):
        OffsetEncoder(TokenizerSettings(plain.vocabulary, plain.sentencepiece, nbest=-1))
