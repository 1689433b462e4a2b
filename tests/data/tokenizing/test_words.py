from __future__ import annotations

import random

import pytest

from data.tokenizing.tokenizer import MAX_KEPT_CHARS, WordTable, lists_of


class Spelling:
    """Encodes a word as its code points; notes what it was asked."""

    def __init__(self):
        self.asked = []

    def __call__(self, words):
        self.asked.extend(words)
        return [[ord(character) for character in word] for word in words]


def spelled(line):
    return [ord(character) for word in line.split() for character in word]


@pytest.mark.parametrize("generation_words", [1, 2, 7, 100_000])
def test_ids_do_not_depend_on_what_is_remembered(generation_words, monkeypatch):
    monkeypatch.setattr("data.tokenizing.tokenizer.GENERATION_WORDS", generation_words)
    generator = random.Random(generation_words)
    words = ["".join(generator.choice("abc") for _ in range(generator.randrange(1, 5))) for _ in range(60)]
    spelling = Spelling()
    table = WordTable(spelling)
    for _ in range(30):
        lines = [" ".join(generator.choices(words, k=generator.randrange(6))) for _ in range(20)]
        assert lists_of(*table.encode(lines)) == [spelled(line) for line in lines]
    forgotten = len(spelling.asked) > len(set(spelling.asked))
    assert forgotten == (generation_words < 100), "memory is bounded"


def test_a_word_is_encoded_once_while_it_is_kept():
    spelling = Spelling()
    table = WordTable(spelling)
    table.encode(["a b a", "c b"])
    table.encode(["c b a d"])
    assert spelling.asked == ["a", "b", "c", "d"]


def test_words_that_keep_coming_outlive_those_that_do_not(monkeypatch):
    monkeypatch.setattr("data.tokenizing.tokenizer.GENERATION_WORDS", 8)
    spelling = Spelling()
    table = WordTable(spelling)
    for number in range(200):
        table.encode([f"often x{number}"])
    assert spelling.asked.count("often") == 1 and len(spelling.asked) == 201


def test_long_words_are_not_kept():
    spelling = Spelling()
    table = WordTable(spelling)
    long = "x" * (MAX_KEPT_CHARS + 1)
    for _ in range(2):
        assert lists_of(*table.encode([f"a {long} a", long])) == [[97, *[120] * 65, 97], [120] * 65]
    assert spelling.asked == ["a", long, long]
