"""Windows against Google's algorithm, question by question (bench/question_loop.py)."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from base.errors import InputError
from bench.question_loop import features, hugging_face
from data.finetuning.batching import EvaluationOrder, OrderedBatches, TrainingOrder
from data.questions.squad_files import TRAIN, Questions, read_questions
from data.questions.windows import WindowSettings, collate, make_windows, max_context
from data.tokenizing.tokenizer import TokenizerSettings
from tests.data.questions.squad import REASON, SHARED, about, question, squad, written
from tests.data.streams import Stream


def made(contexts: list[str], asked: list[tuple[int, str, int, int]]) -> Questions:
    """Questions (context, text, start and end of the answer or -1) without a file."""
    of, texts, starts, ends = zip(*asked)
    golds = tuple((contexts[each][start:end],) if start >= 0 else () for each, _, start, end in asked)
    ids = tuple(str(number) for number in range(len(asked)))
    numbers = (np.array(each, dtype=np.int64) for each in (of, starts, ends))
    context_of, starts, ends = numbers
    zeros = np.zeros(len(asked), dtype=np.int64)
    return Questions(
        "made", ids, texts, tuple(contexts), context_of, ("t",), zeros, golds, starts, ends, True
    )


def compare(questions: Questions, vocab, sizes: WindowSettings, cased: bool = False) -> None:
    """Every array of every window; the answer's place too, unless its word holds it twice."""
    windows = make_windows(questions, TokenizerSettings(vocab, cased=cased), sizes, training=True)
    theirs = list(features(questions, hugging_face(vocab, cased), vocab, sizes, training=True))
    theirs = [each for each in theirs if each.question not in windows.without_tokens]
    assert len(windows) == len(theirs)
    numbers = np.arange(len(windows))
    batch = collate(windows, numbers, sizes.max_seq_length)
    assert batch.input_ids.tolist() == [each.input_ids for each in theirs]
    assert batch.segment_ids.tolist() == [each.segment_ids for each in theirs]
    assert batch.valid_lengths.tolist() == [sum(each.input_mask) for each in theirs]
    assert windows.question.tolist() == [each.question for each in theirs]
    best = [each.token_is_max_context[at] for each in theirs for at in sorted(each.token_to_orig_map)]
    assert max_context(windows, numbers).tolist() == best
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


@settings(max_examples=80, deadline=None)
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


@pytest.mark.parametrize(
    "context, answer, tokens",
    [
        ("It is (1895-1943) in", "1895", ["1895"]),
        ("It is (1895-1943) in", "1943", ["1943"]),
        ("The Japanese in", "Japan", ["japan"]),
        ("The Japanese in", "pan", ["japan", "##ese"]),  # no tokens are the answer: the whole word
        ("The Japanese in", "Japanese", ["japan", "##ese"]),
        ("1999 1999-1999 in", "1999", ["1999"]),
    ],
)
def test_the_tokens_of_an_answer(letters, tmp_path, context, answer, tokens):
    questions = read_questions(written(tmp_path / "x.json", about(context, answer)), "--train_file", TRAIN)
    windows = make_windows(questions, TokenizerSettings(letters), WindowSettings(), training=True)
    batch = collate(windows, np.array([0]))
    inside = batch.input_ids[0, batch.starts[0] : batch.ends[0] + 1]
    assert [letters.tokens[each] for each in inside] == tokens


def test_the_second_of_two_equal_answers_in_a_word(letters):
    """Google's code takes the first, whatever answer_start says."""
    questions = made(["in 1999-1999"], [(0, "the", 8, 12)])
    windows = make_windows(questions, TokenizerSettings(letters), WindowSettings(), True)
    batch = collate(windows, np.array([0]))
    assert batch.starts[0] == batch.ends[0] == 3 + 3 and batch.input_ids[0, 6] == batch.input_ids[0, 4]


def test_max_context_of_the_last_token_of_a_window(letters):
    """Twelve tokens in windows of six, every three: GluonNLP gives a window's last token to no window."""
    questions = made(["a b c d e f g h i j k l"], [(0, "x", -1, -1)])
    windows = make_windows(questions, TokenizerSettings(letters), WindowSettings(10, 3, 1))
    assert windows.first.tolist() == [0, 3, 6] and windows.count.tolist() == [6, 6, 6]
    best = max_context(windows, np.arange(3)).reshape(3, 6)
    assert best.tolist() == [
        [True] * 5 + [False],
        [False] * 2 + [True] * 3 + [False],
        [False] * 2 + [True] * 4,
    ]
    every = np.bincount(np.nonzero(best)[1] + windows.first[np.nonzero(best)[0]], minlength=12)
    assert every.tolist() == [1] * 12
    # Also for windows chosen alone and in another order
    assert max_context(windows, np.array([2, 0])).reshape(2, 6).tolist() == best[[2, 0]].tolist()
    # Without overlap the last token of a window has no other window.
    apart = make_windows(questions, TokenizerSettings(letters), WindowSettings(10, 6, 1))
    assert len(apart) == 2 and max_context(apart, np.arange(2)).all()


def test_an_answer_outside_a_window_and_one_that_is_cut(letters):
    context = "a b c d e f g h i j k l"
    questions = made([context], [(0, "x", context.index("e"), context.index("g")), (0, "x", -1, -1)])
    windows = make_windows(questions, TokenizerSettings(letters), WindowSettings(10, 5, 1), training=True)
    assert windows.first.tolist() == [0, 5, 10] * 2
    assert windows.starts.tolist() == [3 + 4] + [0] * 5 and windows.ends.tolist() == [3 + 5] + [0] * 5
    windows = make_windows(questions, TokenizerSettings(letters), WindowSettings(9, 5, 1), training=True)
    assert windows.starts.tolist()[:3] == [0, 0, 0], "no window has all of e f"


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


def test_a_context_of_100_000_characters(letters):
    context = " ".join(f"{number}" for number in range(20_000))
    start = context.index("19999")
    questions = made([context], [(0, "the", start, start + 5)])
    windows = make_windows(questions, TokenizerSettings(letters), WindowSettings(), training=True)
    assert len(context) > 100_000 and (windows.starts > 0).sum() >= 1
    assert int(max_context(windows, np.arange(len(windows))).sum()) == len(windows.contexts.ids)


def test_types_and_batches_by_length(letters, tmp_path):
    asked = [(f"the {'a ' * n} of", [question(str(n), "the", ("of", 5 + 2 * n))]) for n in range(1, 30)]
    questions = read_questions(written(tmp_path / "x.json", squad(*asked)), "--train_file", TRAIN)
    windows = make_windows(questions, TokenizerSettings(letters), WindowSettings(), training=True)
    order = TrainingOrder(windows.lengths, 4, 0, 0, 1)
    batch = next(Stream(OrderedBatches(order, partial(collate, windows))))
    assert batch.input_ids.shape == batch.segment_ids.shape and len(batch.examples) == 4
    assert [each.dtype.name for each in batch] == ["int32"] * 5 + ["int64"]
    evaluated = [collate(windows, *rows) for rows in EvaluationOrder(windows.lengths, 4, 0, 1).batches()]
    assert sorted(np.concatenate([each.examples for each in evaluated])) == list(range(29))
    for each in (batch, *evaluated):
        ends = each.input_ids[np.arange(len(each.ends)), each.ends]
        assert (ends == letters.ids()["of"]).all() and (each.starts == each.ends).all()


@pytest.mark.parametrize("sizes", [(513, 128, 64), (0, 1, 1), (384, 0, 64), (384, 128, 0), (67, 1, 64)])
def test_sizes_without_room(sizes):
    with pytest.raises(InputError, match="^--(max_seq_length|doc_stride)"):
        WindowSettings(*sizes)
