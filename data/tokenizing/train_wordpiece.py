"""Training a WordPiece vocabulary with Hugging Face `tokenizers`."""

from __future__ import annotations

import unicodedata
from collections import Counter

from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.trainers import WordPieceTrainer

from base.errors import InputError
from data.tokenizing.training_text import TrainingText
from data.tokenizing.vocab import SPECIAL_TOKENS
from data.tokenizing.wordpiece import bert_normalizer

MIN_VOCAB_SIZE = 100
ALPHABET_LIMIT = (
    1000  # rarer characters become [UNK]; Hugging Face's BertWordPieceTokenizer has the same limit
)


def wordpiece_tokens(text: TrainingText, vocab_size: int, cased: bool = False) -> list[str]:
    """The vocabulary's tokens, special tokens first; fewer than `vocab_size` if the text has no more.

    The same text gives the same tokens. Memory grows with the number of distinct words, not with the text.
    Raises InputError for bad text or none, and for a `vocab_size` below MIN_VOCAB_SIZE.
    """
    if vocab_size < MIN_VOCAB_SIZE:
        raise InputError(f"--vocab_size {vocab_size}: must be at least {MIN_VOCAB_SIZE}")
    alphabet = _alphabet(text, cased, min(ALPHABET_LIMIT, vocab_size // 8))
    if not alphabet:
        raise InputError("--input: no text to train a vocabulary on")
    tokenizer = Tokenizer(WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = bert_normalizer(cased)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    # Left alone, the trainer numbers characters in the order of a randomized hash table, and its merges break
    # ties by these numbers. Naming all characters beforehand, the continuing ones as if special, makes it
    # repeatable.
    continuing = ["##" + character for character in alphabet if _joins_words(character)]
    trainer = WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        show_progress=False,
        special_tokens=[*SPECIAL_TOKENS, *continuing],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        continuing_subword_prefix="##",
    )
    tokenizer.train_from_iterator(text.passes("counting words"), trainer)
    ids = tokenizer.get_vocab()
    return sorted(ids, key=ids.__getitem__)


def _alphabet(text: TrainingText, cased: bool, limit: int) -> list[str]:
    """The `limit` most frequent characters of the cleaned text, in code point order."""
    normalizer = bert_normalizer(cased)
    counts: Counter[str] = Counter()
    for line in text.passes("counting characters"):
        counts.update(normalizer.normalize_str(line))
    frequent = sorted((c for c in counts if not c.isspace()), key=lambda c: (-counts[c], c))
    return sorted(frequent[:limit])


def _joins_words(character: str) -> bool:
    """True if basic tokenization leaves the character in words; punctuation and ideographs it isolates."""
    ascii_punctuation = character.isascii() and not character.isalnum()
    ideograph = "CJK" in unicodedata.name(character, "")
    return not (ascii_punctuation or ideograph or unicodedata.category(character).startswith("P"))
