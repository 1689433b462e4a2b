"""Train a WordPiece vocabulary on raw text.

python -m data.train_vocab --input 'corpus/*.txt' --output vocab.txt --vocab_size 30522 [--cased]
"""

from __future__ import annotations

import argparse
import os
import sys
import unicodedata
from collections import Counter
from typing import Iterator, Sequence

from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.trainers import WordPieceTrainer

from data.errors import InputError
from data.files import replacing
from data.text import expand_globs, sentences
from data.tokenizer import bert_normalizer
from data.vocab import SPECIAL_TOKENS, load_vocab

MIN_VOCAB_SIZE = 100
ALPHABET_LIMIT = (
    1000  # rarer characters become [UNK]; Hugging Face's BertWordPieceTokenizer has the same limit
)


def train_wordpiece(paths: Sequence[str], output: str, vocab_size: int, cased: bool = False) -> int:
    """Train on the files and write `output`, a vocab.txt with the special tokens first. Returns its size.

    The same text gives the same vocabulary. Raises InputError for bad text or a text too small to give any
    pieces.
    """
    if vocab_size < MIN_VOCAB_SIZE:
        raise InputError(f"--vocab_size {vocab_size}: must be at least {MIN_VOCAB_SIZE}")
    alphabet = _alphabet(paths, cased, min(ALPHABET_LIMIT, vocab_size // 8))
    if not alphabet:
        raise InputError(f"no text to train a vocabulary on in {', '.join(paths)}")
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
    tokenizer.train_from_iterator(_lines(paths), trainer)
    ids = tokenizer.get_vocab()
    tokens = sorted(ids, key=ids.__getitem__)
    with replacing(output) as handle:
        handle.write("".join(token + "\n" for token in tokens).encode("utf-8"))
    return len(load_vocab(output))


def _alphabet(paths: Sequence[str], cased: bool, limit: int) -> list[str]:
    """The `limit` most frequent characters of the cleaned text, in code point order."""
    normalizer = bert_normalizer(cased)
    counts: Counter[str] = Counter()
    for line in _lines(paths):
        counts.update(normalizer.normalize_str(line))
    frequent = sorted((c for c in counts if not c.isspace()), key=lambda c: (-counts[c], c))
    return sorted(frequent[:limit])


def _lines(paths: Sequence[str]) -> Iterator[str]:
    return (line for line in sentences(paths) if line is not None)


def _joins_words(character: str) -> bool:
    """Whether basic tokenization leaves the character in words; punctuation and ideographs it isolates."""
    ascii_punctuation = character.isascii() and not character.isalnum()
    ideograph = "CJK" in unicodedata.name(character, "")
    return not (ascii_punctuation or ideograph or unicodedata.category(character).startswith("P"))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(description="Train a WordPiece vocabulary on raw text.")
    parser.add_argument(
        "--input", required=True, help="text files: globs, comma-separated; one sentence a line"
    )
    parser.add_argument("--output", required=True, help="the vocab.txt to write")
    parser.add_argument("--vocab_size", type=int, default=30522)
    parser.add_argument("--cased", action="store_true", help="keep case and accents")
    options = parser.parse_args(arguments)
    try:
        directory = os.path.dirname(os.path.abspath(options.output))
        if not os.path.isdir(directory):
            raise InputError(f"--output: no such directory: {directory}")
        size = train_wordpiece(
            expand_globs(options.input, "--input"), options.output, options.vocab_size, options.cased
        )
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"wrote {options.output}: {size} tokens")
    return 0


if __name__ == "__main__":
    sys.exit(main())
