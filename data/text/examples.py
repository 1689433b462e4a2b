"""Sentences of a text with one word masked, chosen before anybody can have looked at a model's answers."""

from __future__ import annotations

import hashlib
import heapq
import re
from typing import NamedTuple, Sequence

from base.errors import InputError
from data.text.corpus import sentences
from data.tokenizing.tokenizer import Tokenizer, lists_of
from data.tokenizing.vocab import Vocabulary

FEWEST_WORDS, MOST_WORDS = 8, 20  # of a sentence: enough of a context, on one line
_DRAWN = 100  # for each example, since not every sentence has a word that is one token
_WORD = re.compile(r"(?<!\S)[A-Za-z]{4,}(?=[.,;:!?]?(?:\s|$))")


class Example(NamedTuple):
    """A sentence with [MASK] in the place of the word whose token id is `answer`."""

    text: str
    answer: int


def masked_examples(
    paths: Sequence[str], tokenizer: Tokenizer, vocabulary: Vocabulary, count: int
) -> list[Example]:
    """The same examples at every call: their sentences have the least SHA-256, which also chooses the word.

    A word has four letters or more and is one token, so that a model can name it.

    Raises:
        InputError: bad text, or too few sentences with such a word.
    """
    suitable = {
        each
        for each in sentences(paths)
        if each and FEWEST_WORDS <= len(each.split()) <= MOST_WORDS and "[" not in each
    }
    found: list[Example] = []
    for digest, sentence in heapq.nsmallest(count * _DRAWN, ((_digest(each), each) for each in suitable)):
        words = list(_WORD.finditer(sentence))
        encoded = lists_of(*tokenizer.encode([word[0] for word in words]))
        single = [(word, ids[0]) for word, ids in zip(words, encoded) if len(ids) == 1]
        single = [(word, token) for word, token in single if token != vocabulary.unk_id]
        if single and len(found) < count:
            word, answer = single[digest % len(single)]
            found.append(Example(f"{sentence[: word.start()]}[MASK]{sentence[word.end() :]}", answer))
    if len(found) < count:
        raise InputError(
            f"{', '.join(paths)}: fewer than {count} sentences of {FEWEST_WORDS} to {MOST_WORDS} words with "
            "one to mask; name more text"
        )
    return found


def _digest(sentence: str) -> int:
    return int.from_bytes(hashlib.sha256(sentence.encode("utf-8")).digest(), "big")
