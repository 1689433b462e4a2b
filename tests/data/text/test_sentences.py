from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from data.text.sentences import MAX_SENTENCE_CHARS, UNKNOWN, split_sentences

CASES = [
    case.split("\n")
    for case in (Path(__file__).parent / "split_cases.txt").read_text("utf-8").strip().split("\n\n")
]
# These need to know what words mean.
BEYOND_RULES = {"Vitamin C.", "The value is 3.14159."}


@pytest.mark.parametrize("case", CASES, ids=[case[0][:40] for case in CASES])
def test_hard_cases(case):
    result = list(split_sentences(" ".join(case)))
    if case[0] in BEYOND_RULES:
        assert result != case, "the rules got better: take the case off the list"
    else:
        assert result == case


def test_full_stops_that_stand_alone_always_end_where_a_sentence_may_begin():
    text = f"He saw {UNKNOWN} . {UNKNOWN} was big . 12 came . ( One left . ) they stayed"
    assert list(split_sentences(text)) == [
        f"He saw {UNKNOWN} .",
        f"{UNKNOWN} was big .",
        "12 came .",
        "( One left . ) they stayed",
    ]


def test_other_scripts():
    assert list(split_sentences("私は行く。彼は「来る。」と言う。")) == [
        "私は行く。",
        "彼は「来る。」",
        "と言う。",
    ]
    assert list(split_sentences("Это дом. Он стар.")) == ["Это дом.", "Он стар."]
    assert list(split_sentences("यह घर है। वह पुराना है।")) == ["यह घर है।", "वह पुराना है।"]


def squeezed(text):
    return "".join(text.split())


@settings(max_examples=300)
@given(st.text(st.sampled_from("aB1 \t.!?\"')(…。」“é\u2028\ufdd0I"), max_size=60))
@example("\t\u2028 ")
def test_only_white_space_is_lost(text):
    result = list(split_sentences(text))
    assert squeezed("".join(result)) == squeezed(text)
    assert all(sentence and sentence == sentence.strip() for sentence in result)
    assert all("\n" not in sentence for sentence in result)


@settings(max_examples=50)
@given(st.lists(st.integers(1, 3 * MAX_SENTENCE_CHARS), max_size=6))
@example([1, MAX_SENTENCE_CHARS])
def test_long_sentences_are_cut_between_words_where_there_is_a_space(lengths):
    text = " ".join("x" * length for length in lengths)
    result = list(split_sentences(text))
    assert all(len(sentence) <= MAX_SENTENCE_CHARS for sentence in result)
    assert squeezed("".join(result)) == squeezed(text)
    if all(length <= MAX_SENTENCE_CHARS for length in lengths):
        assert " ".join(result) == text


@pytest.mark.parametrize(
    "unit", [".", ". ", '. "', '. " a ', "A. ", '."', "( ", ". (", " ", "!?", "Mr. A ", ". \u2028", "…'", "x"]
)
def test_time_is_linear_for_hostile_text(unit):
    def seconds(length):
        text = (unit * (length // len(unit) + 1))[:length]
        start = time.process_time()
        for _ in split_sentences(text):
            pass
        return time.process_time() - start

    small, large = min(seconds(50_000) for _ in range(3)), seconds(400_000)
    assert large < 20 * small + 0.05  # quadratic time would be 64 times


def test_real_text_splits_at_its_full_stops(wikitext):
    # WikiText sets full stops apart and leaves the dots of abbreviations attached, so " . " before a capital
    # that is not in quotation marks tells the truth.
    lines = [line.strip() for line in Path(wikitext).read_text("utf-8").split("\n") if line.strip()]
    lines = [line for line in lines if '"' not in line and "'" not in line and " . . " not in line]
    missed = right = false = 0
    for line in lines:
        result = list(split_sentences(line))
        ends, position = set(), 0
        for sentence in result[:-1]:
            position += len(sentence) + 1
            ends.add(position)
        words, offset, truth = line.split(" "), 0, set()
        for word, following in zip(words, words[1:]):
            offset += len(word) + 1
            if word in (".", "?", "!") and following[:1].isupper():
                truth.add(offset)
        right += len(truth & ends)
        missed += len(truth - ends)
        # Not judged: borders before numbers, brackets and <unk>, which the truth leaves out.
        false += sum(line[end].isupper() and end not in truth for end in ends)
    assert right > 1000
    assert missed < 0.01 * right
    assert false < 0.03 * right
