"""Windows against Google's algorithm, question by question (bench/question_loop.py).

Tokens with offsets: the project's ids, and places that give back the text.
"""

from __future__ import annotations

import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from base.errors import InputError
from bench.question_loop import features, hugging_face
from data.questions.squad_files import TRAIN, Questions, read_questions
from data.questions.windows import OffsetEncoder, WindowSettings, collate, make_windows, max_context
from data.tokenizing.tokenizer import TokenizerSettings, lists_of
from tests.data.questions.squad import REASON, SHARED

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


@settings(max_examples=80)
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


@settings(max_examples=80)
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


def made(contexts: list[str], asked: list[tuple[int, str, int, int]]) -> Questions:
    """Questions (context, text, start and end of the answer or -1) without a file."""
    of, texts, starts, ends = zip(*asked)
    golds = tuple((contexts[each][start:end],) if start >= 0 else () for each, _, start, end in asked)
    ids = tuple(str(number) for number in range(len(asked)))
    numbers = (np.array(each, dtype=np.int64) for each in (of, starts, ends))
    context_of, starts, ends = numbers
    zeros = np.zeros(len(asked), dtype=np.int64)
    return Questions("made", ids, texts, tuple(contexts), context_of, zeros, golds, starts, ends, True)


def compare(questions: Questions, vocab, sizes: WindowSettings, cased: bool = False) -> None:
    """Every array of every window; the answer's place too, unless its word holds it twice."""
    windows = make_windows(questions, TokenizerSettings(vocab, cased=cased), sizes, training=True)
    theirs = list(features(questions, hugging_face(vocab, cased), vocab, sizes, training=True))
    theirs = [each for each in theirs if each.question not in windows.without_tokens]
    assert len(windows) == len(theirs)
    numbers = np.arange(len(windows))
    batch = collate(windows, numbers, sizes.max_seq_length)
    assert [each.dtype.name for each in batch] == ["int32"] * 5 + ["int64"]
    assert batch.input_ids.tolist() == [each.input_ids for each in theirs]
    assert batch.segment_ids.tolist() == [each.segment_ids for each in theirs]
    assert batch.valid_lengths.tolist() == [sum(each.input_mask) for each in theirs]
    assert windows.question.tolist() == [each.question for each in theirs]
    best = [each.token_is_max_context[at] for each in theirs for at in sorted(each.token_to_orig_map)]
    borders = np.searchsorted(windows.question, np.arange(len(questions) + 1)).tolist()
    mine = [max_context(windows, own) for own in map(range, borders, borders[1:]) if own]
    assert np.concatenate(sum(mine, [])).tolist() == best
    places = [[each.start_position, each.end_position] for each in theirs]
    for number, mine, place in zip(windows.question.tolist(), np.stack(batch[3:5], axis=1).tolist(), places):
        assert mine == place or has_twice(questions, number)


def has_twice(questions: Questions, number: int) -> bool:
    """Whether the words that an answer touches hold it more than once: Google's code takes the first."""
    context = questions.contexts[questions.context_of[number]]
    start, end = int(questions.answer_starts[number]), int(questions.answer_ends[number])
    first = max(context.rfind(space, 0, start) for space in " \t\n") + 1
    spaces = [context.find(space, end) for space in " \t\n" if space in context[end:]]
    last = min(spaces, default=len(context))
    words, answer = context[first:last].lower(), context[start:end].strip().lower()
    return sum(words.startswith(answer, place) for place in range(len(words))) > 1  # "000" holds "00" twice


@pytest.mark.skipif(not SHARED.exists(), reason=REASON)
@pytest.mark.parametrize("sizes", [(384, 128, 64), (128, 32, 10), (48, 10, 12)])
def test_real_questions(letters, sizes):
    """About three windows to a context, at single letters mostly; every eighth question."""
    questions = read_questions(str(SHARED), "--train_file", TRAIN, first_gold=True)
    compare(questions.select(np.arange(0, len(questions), 8)), letters, WindowSettings(*sizes))


WORD = st.text("abxyzé-(),.'東京0189", min_size=1, max_size=8)
CONTEXT = st.lists(
    st.one_of(WORD, st.sampled_from(["the", "japanese", "1895-1943", "spaces"])), min_size=1, max_size=40
)


@settings(max_examples=80)
@given(st.data())
def test_any_questions(letters, data):
    contexts = data.draw(st.lists(CONTEXT.map(" ".join), min_size=1, max_size=3, unique=True))
    asked = []
    for _ in range(data.draw(st.integers(1, 4))):
        number = data.draw(st.integers(0, len(contexts) - 1))
        start = data.draw(st.integers(-1, len(contexts[number]) - 1))
        end = start + data.draw(st.integers(1, 12))
        if start >= 0 and not contexts[number][start:end].strip():
            start = -1
        asked.append((number, data.draw(CONTEXT.map(" ".join)), start, min(end, len(contexts[number]))))
    length = data.draw(st.integers(9, 60))
    sizes = WindowSettings(length, data.draw(st.integers(1, 40)), data.draw(st.integers(1, length - 4)))
    compare(made(contexts, asked), letters, sizes, data.draw(st.booleans()))


def test_the_second_of_two_equal_answers_in_a_word(letters):
    """Google's code takes the first, whatever answer_start says."""
    questions = made(["in 1999-1999"], [(0, "the", 8, 12)])
    windows = make_windows(questions, TokenizerSettings(letters), WindowSettings(), True)
    batch = collate(windows, np.array([0]))
    assert batch.starts[0] == batch.ends[0] == 3 + 3 and batch.input_ids[0, 6] == batch.input_ids[0, 4]


def test_contexts_and_answers_without_tokens(letters):
    questions = made(["a \x00\u200b b", "\u200b \x07"], [(0, "x", 2, 4), (1, "x", -1, -1), (0, "", 0, 1)])
    windows = make_windows(questions, TokenizerSettings(letters), WindowSettings(), training=True)
    assert windows.without_tokens.tolist() == [0] and windows.question.tolist() == [1, 2]
    assert windows.count.tolist() == [0, 2] and windows.starts.tolist() == [0, 2]
    batch = collate(windows, np.array([0, 1]))
    cls_id, sep_id, pad_id = letters.cls_id, letters.sep_id, letters.pad_id
    x, a, b = (letters.ids()[each] for each in "xab")
    assert batch.input_ids.tolist() == [[cls_id, x, sep_id, sep_id, pad_id], [cls_id, sep_id, a, b, sep_id]]
    assert batch.segment_ids.tolist() == [[0, 0, 0, 1, 0], [0, 0, 1, 1, 1]]
    everything = make_windows(questions, TokenizerSettings(letters), WindowSettings())
    assert everything.question.tolist() == [0, 1, 2], "to predict, every question has a window"
    with pytest.raises(InputError, match="made: no answer has a token"):
        make_windows(
            questions.select(np.array([0])), TokenizerSettings(letters), WindowSettings(), training=True
        )


def test_a_context_of_100_000_characters(letters):
    context = " ".join(f"{number}" for number in range(20_000))
    start = context.index("19999")
    questions = made([context], [(0, "the", start, start + 5)])
    windows = make_windows(questions, TokenizerSettings(letters), WindowSettings(), training=True)
    assert len(context) > 100_000 and (windows.starts > 0).sum() >= 1
    assert sum(each.sum() for each in max_context(windows, range(len(windows)))) == windows.tokens.bounds[1]


@pytest.mark.parametrize("sizes", [(513, 128, 64), (0, 1, 1), (67, 1, 64)])
def test_sizes_without_room(sizes):
    with pytest.raises(InputError, match="^--max_seq_length"):
        WindowSettings(*sizes)
