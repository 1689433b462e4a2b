"""Tokenizers of the tests: WordPiece of single characters and common words, SentencePiece of the corpus."""

from __future__ import annotations

import string

import pytest

from data.tokenizing.tokenizer import TokenizerSettings, load_sentencepiece
from data.tokenizing.vocab import SPECIAL_TOKENS, Vocabulary, vocabulary_from_tokens

WORDS = [
    *("the", "of", "in", "and", "japan", "##ese", "living", "victor", "##ia", "1895", "1943", "1999"),
    *("to", "it", "is", "two", "spaces", "tabs"),
]
LETTERS = string.ascii_letters + string.digits + "éüçñ東京語中文한글"


@pytest.fixture(scope="session")
def letters() -> Vocabulary:
    """A vocabulary in which nearly every word has several pieces, down to single letters and jamo."""
    jamo = [chr(code) for code in (0x1112, 0x1161, 0x11AB, 0x1100, 0x1173, 0x11AF)]
    single = [*LETTERS, *jamo]
    tokens = [*SPECIAL_TOKENS, *single, *(f"##{each}" for each in single), *string.punctuation, *WORDS]
    return vocabulary_from_tokens(list(dict.fromkeys(tokens)))


@pytest.fixture(scope="session")
def sentencepiece_settings(sp_model) -> dict[bool, TokenizerSettings]:
    """By `cased`: SentencePiece on the embedded corpus."""
    vocab = load_sentencepiece(sp_model)
    return {cased: TokenizerSettings(vocab, sp_model, cased) for cased in (False, True)}
