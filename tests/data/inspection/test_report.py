"""Tokens written as words: joined pieces, markers, line breaks, and nothing that a terminal could act on.
Bins hold every value once, in ranges that people like; bars are as long as their counts.
"""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest

from data.inspection.decoding import KEPT, MASKED, REPLACED, Style, Token, Words, columns, fate, printable
from data.inspection.report import bar, bars, bins
from data.tokenizing.vocab import SPECIAL_TOKENS, vocabulary_from_pieces, vocabulary_from_tokens

PLAIN = Style()


def wordpiece(*tokens):
    return vocabulary_from_tokens([*SPECIAL_TOKENS, *tokens])


def kept(vocab, *names):
    """Tokens that are not predicted."""
    ids = vocab.ids()
    return [Token(ids[name], ids[name], False) for name in names]


def hidden(vocab, name, shown="[MASK]"):
    return Token(vocab.ids()[shown], vocab.ids()[name], True)


def test_pieces_join_to_words():
    vocab = wordpiece("un", "##believ", "##able", "news", "##")
    text = Words(vocab, PLAIN).text(kept(vocab, "[CLS]", "un", "##believ", "##able", "news", "[SEP]"))
    assert text == "[CLS] unbelievable news [SEP]"
    raw = Words(vocab, Style(pieces=True)).text(kept(vocab, "[CLS]", "un", "##believ", "##able", "[SEP]"))
    assert raw == "[CLS] un ##believ ##able [SEP]"


def test_a_piece_whose_word_was_cut_off_keeps_its_mark():
    vocab = wordpiece("good", "##able")
    assert Words(vocab, PLAIN).text(kept(vocab, "[CLS]", "##able", "good")) == "[CLS] ##able good"
    assert Words(vocab, PLAIN).text(kept(vocab, "##able", "good")) == "##able good"


def test_markers():
    vocab = wordpiece("un", "##believ", "##able", "news", "##xy")
    words = Words(vocab, PLAIN)
    tokens = [
        *kept(vocab, "[CLS]", "un"),
        hidden(vocab, "##believ"),
        hidden(vocab, "##able", "##xy"),
        hidden(vocab, "news", "news"),
        hidden(vocab, "un", "news"),
    ]
    assert words.text(tokens) == "[CLS] un[MASK\u2192believ][##xy\u2192able] [=news] [news\u2192un]"
    assert [fate(token, vocab) for token in tokens[2:]] == [MASKED, REPLACED, KEPT, REPLACED]
    ascii_only = Words(vocab, Style(unicode=False)).text(tokens)
    assert ascii_only == "[CLS] un[MASK->believ][##xy->able] [=news] [news->un]"


def test_sentencepiece():
    pieces = ["<unk>", "[CLS]", "[SEP]", "[MASK]", "[PAD]", "\u2581un", "able", "\u2581news", "\u2581"]
    vocab = vocabulary_from_pieces(pieces, 0, 4, "test")
    words = Words(vocab, PLAIN)
    text = words.text(kept(vocab, "[CLS]", "\u2581un", "able", "\u2581news", "[SEP]"))
    assert text == "[CLS] unable news [SEP]"
    assert words.text([*kept(vocab, "\u2581un"), hidden(vocab, "able")]) == "un[MASK\u2192able]"
    # A space on its own begins the next word; where none follows it is shown.
    text = words.text(kept(vocab, "\u2581", "able", "\u2581news", "\u2581", "\u2581un"))
    assert text == "able news \u2581 un"
    assert words.text([hidden(vocab, "\u2581"), *kept(vocab, "able")]) == "[MASK\u2192\u2581]able"


def test_ids_without_a_vocabulary():
    words = Words(None, PLAIN)
    assert words.text([Token(7, 7, False), Token(103, 9, True), Token(5, 5, True)]) == "7 [103\u21929] [=5]"
    assert fate(Token(103, 9, True), None) == REPLACED


@pytest.mark.parametrize("colour", [False, True])
def test_lines_are_no_wider_than_asked(colour):
    vocab = wordpiece("un", "##believ", "##able", "news", "\u4e2d")
    tokens = [*kept(vocab, "un", "##believ", "##able", "\u4e2d"), hidden(vocab, "news")] * 50
    lines = Words(vocab, Style(width=60, colour=colour)).lines(tokens, "  A ")
    plain = [re.sub("\033\\[[0-9;]*m", "", line) for line in lines]
    assert len(lines) > 10 and max(map(columns, plain)) <= 60
    # And no shorter than they must be.
    assert min(map(columns, plain[:-1])) > 60 - columns("unbelievable") - 1
    assert plain[0].startswith("  A un") and all(line.startswith("    ") for line in plain[1:])
    assert " ".join(" ".join(plain).split()) == "A " + Words(vocab, PLAIN).text(tokens)
    assert any("\033[" in line for line in lines) is colour


def test_a_word_wider_than_the_line_stands_alone():
    vocab = wordpiece("a" * 100, "b")
    lines = Words(vocab, Style(width=60)).lines(kept(vocab, "b", "a" * 100, "b"), "  A ")
    assert lines == ["  A b", "    " + "a" * 100, "    b"]


def test_what_a_terminal_acts_on_is_escaped():
    evil = "x\033[2Jy\r\x9b\u202e"
    assert printable(evil) == "x\\x1b[2Jy\\r\\x9b\\u202e"
    vocab = wordpiece(evil)
    text = Words(vocab, PLAIN).text([*kept(vocab, evil), hidden(vocab, evil)])
    assert text == "x\\x1b[2Jy\\r\\x9b\\u202e [MASK\u2192x\\x1b[2Jy\\r\\x9b\\u202e]"
    assert printable("na\u00efve \u4e2d") == "na\u00efve \u4e2d"


@pytest.mark.parametrize("seed", range(5))
def test_bins_hold_every_value_once(seed):
    generator = random.Random(seed)
    values = [generator.randint(1, generator.choice([1, 10, 512, 100_000])) for _ in range(300)]
    counts = sorted(Counter(values).items())
    for multiple, most, tail in ((1, 16, 0.0), (8, 16, 0.0), (1, 12, 0.01), (1, 2, 0.0)):
        found = bins(counts, multiple, most, tail)
        assert sum(each.number for each in found) == len(values)
        assert len(found) <= most + 1  # and one for the tail
        for each in found:
            inside = [v for v in values if v >= each.first and (each.last is None or v <= each.last)]
            assert each.number == len(inside)
        for before, after in zip(found, found[1:]):
            assert after.first == before.last + 1
        for each in found:
            if each.last is not None:
                width = each.last - each.first + 1
                assert width % multiple == 0 and each.last % width == 0


def test_widths_are_round():
    assert [each.name for each in bins([[1, 5], [97, 1]], most=12)][:2] == ["1-10", "11-20"]
    assert [each.name for each in bins([[17, 5], [512, 1]], multiple=8)][::15] == ["1-32", "481-512"]
    assert [each.name for each in bins([[17, 5], [128, 1]], multiple=8)][0] == "17-24"


def test_the_tail_shares_a_bin():
    found = bins([[1, 500], [2, 490], [5000, 10]], most=12, tail=0.01)
    assert [(each.name, each.number) for each in found] == [("1", 500), ("2", 490), ("3+", 10)]


def test_bars_are_as_long_as_their_counts():
    lines = bars(bins([[1, 100], [2, 50], [3, 0], [4, 1]]), 80, unicode=False)
    lengths = [line.count("#") for line in lines]
    assert lengths[1] * 2 in (lengths[0], lengths[0] - 1) and lengths[2] == 0 and lengths[3] == 1
    assert [line.split()[-2:] for line in lines][:2] == [["100", "66.2%"], ["50", "33.1%"]]
    assert {len(line) for line in lines} == {len(lines[0])} and len(lines[0]) <= 80


def test_eighths():
    assert bar(1.0, 10, True) == "\u2588" * 10
    assert bar(0.5, 1, True) == "\u258c"
    assert bar(0.0, 10, True) == "" and bar(1e-9, 10, True) == "\u258f"
    assert bar(0.0, 10, False) == "" and bar(1e-9, 10, False) == "#" and bar(0.5, 10, False) == "#####"
