"""WordPiece: Google's basic tokenization, then greedy longest-match-first pieces."""

from __future__ import annotations

import re
from typing import Callable, Iterator, Sequence

import numpy as np
from tokenizers import Tokenizer as HuggingFaceTokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from data.text.sentences import UNKNOWN
from data.tokenizing.vocab import Vocabulary

# str.split() also splits at these, which BERT's cleaning removes as control characters; they join words.
# Whatever else str.split() splits at, the cleaning turns into spaces; tests go through all of Unicode.
NOT_BETWEEN_WORDS = "\x0b\x0c\x1c\x1d\x1e\x1f\x85"

# Two generations of this many words are kept: about 50 MB when full.
GENERATION_WORDS = 1 << 17
MAX_KEPT_CHARS = 64  # longer words hardly ever come back

_ID_BYTES = 4


class WordTable:
    """Turns lines to ids word by word, and remembers the ids of words.

    `encode_words` gives the ids of each of some distinct words, which hold no white space. The words are kept
    in two generations: when the young one is full it becomes the old one, whose words move back to the young
    one as they are met again, so that memory is bounded and frequent words stay. For one thread at a time.
    """

    def __init__(
        self,
        encode_words: Callable[[Sequence[str]], Sequence[Sequence[int]]],
        generation_words: int = GENERATION_WORDS,
    ) -> None:
        self._encode_words = encode_words
        self._generation_words = generation_words
        # word -> its ids as the bytes of int32, so that a line is one join
        self._young: dict[str, bytes] = {}
        self._old: dict[str, bytes] = {}

    def __len__(self) -> int:
        """Words kept."""
        return len(self._young) + len(self._old)

    def encode(self, lines: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """All ids of the lines, int32 (tokens,), and where each line ends in them, int64 (lines,)."""
        text = "\n".join(lines)
        for character in NOT_BETWEEN_WORDS:
            if character in text:
                lines = [line.replace(character, "") for line in lines]
        look_up, join = self._young.__getitem__, b"".join
        parts: list[bytes] = []
        unfinished: list[int] = []
        for line in lines:
            try:
                parts.append(join(map(look_up, line.split())))
            except KeyError:
                unfinished.append(len(parts))
                parts.append(b"")
        if unfinished:
            fresh = self._fresh(lines[index] for index in unfinished)
            for index in unfinished:
                parts[index] = join(
                    [fresh[word] if word in fresh else look_up(word) for word in lines[index].split()]
                )
            self._keep(fresh)
        ends = np.cumsum(np.array([len(part) for part in parts], dtype=np.int64)) // _ID_BYTES
        return np.frombuffer(join(parts), dtype=np.int32), ends

    def _fresh(self, lines: Iterator[str]) -> dict[str, bytes]:
        """The ids of those words of the lines that are not in the young generation."""
        # A dict, not a set: the order must not depend on the randomized hash of strings.
        wanted = dict.fromkeys(word for line in lines for word in line.split() if word not in self._young)
        unknown = [word for word in wanted if word not in self._old]
        fresh = {word: self._old.pop(word) for word in wanted if word in self._old}
        for word, ids in zip(unknown, self._encode_words(unknown) if unknown else ()):
            fresh[word] = np.array(ids, dtype=np.int32).tobytes()
        return fresh

    def _keep(self, fresh: dict[str, bytes]) -> None:
        for word, ids in fresh.items():
            if len(word) > MAX_KEPT_CHARS:
                continue
            if len(self._young) >= self._generation_words:
                self._young, self._old = {}, self._young
            self._young[word] = ids


def lists_of(ids: np.ndarray, ends: np.ndarray) -> list[list[int]]:
    """One list of ids for each line, of what a tokenizer's `encode` returns."""
    flat, borders = ids.tolist(), [0, *ends.tolist()]
    return [flat[start:end] for start, end in zip(borders, borders[1:])]


MAX_CHARS_PER_WORD = 200  # longer words become [UNK], as in Google's code
# Encoding a string has a price of its own, so new words are encoded many at a time, with this Unicode
# noncharacter between them as a token of its own.
_SEPARATOR = "\ufdd1"
_WORDS_PER_STRING = 128
_SURROGATES = re.compile("[\ud800-\udfff]")


def bert_normalizer(cased: bool) -> BertNormalizer:
    """Google's cleaning, CJK isolation and, unless cased, lower-casing and accent stripping."""
    return BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=not cased, lowercase=not cased
    )


def hugging_face(ids: dict[str, int], unknown: str, cased: bool) -> HuggingFaceTokenizer:
    """The tokenizer of `tokenizers` with this vocabulary. No special token is registered, so "[MASK]" written
    in a text is punctuation and a word, not the token."""
    model = WordPiece(ids, unk_token=unknown, max_input_chars_per_word=MAX_CHARS_PER_WORD)
    tokenizer = HuggingFaceTokenizer(model)
    tokenizer.normalizer = bert_normalizer(cased)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    return tokenizer


def without_surrogates(word: str) -> str:
    """The word without halves of surrogate pairs, which no UTF-8 can hold (a JSON file's escapes can).

    They are removed like control characters; Hugging Face takes no string with one.
    """
    return word if word.isascii() else _SURROGATES.sub("", word)


class WordPieceTokenizer:
    """WordPiece by a table of words; the words it has not met go to Hugging Face `tokenizers`.

    Gives what `tokenizers` gives for the same line, at over ten times its speed.
    """

    def __init__(self, vocab: Vocabulary, cased: bool = False) -> None:
        unknown = vocab.tokens[vocab.unk_id]
        # To any sane vocabulary the separator is a character it has not, like the one it is replaced by.
        self._joins = not any(_SEPARATOR in token or UNKNOWN in token for token in vocab.tokens)
        self._separator_id = len(vocab)
        ids = {**vocab.ids(), _SEPARATOR: self._separator_id} if self._joins else vocab.ids()
        tokenizer = hugging_face(ids, unknown, cased)
        # Releases since 0.20 skip the offsets that nobody here reads.
        self._encode = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)
        self._table = WordTable(self._encode_words)

    def encode(self, lines: Sequence[str], stream: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """All ids of the lines, and where each line ends in them; `stream` makes no difference."""
        return self._table.encode(lines)

    def _encode_words(self, words: Sequence[str]) -> list[list[int]]:
        cleaned = [without_surrogates(word) for word in words]
        if not self._joins:
            return [encoding.ids for encoding in self._encode(cleaned, add_special_tokens=False)]
        cleaned = [word.replace(_SEPARATOR, UNKNOWN) for word in cleaned]
        strings = [
            f" {_SEPARATOR} ".join(cleaned[start : start + _WORDS_PER_STRING])
            for start in range(0, len(cleaned), _WORDS_PER_STRING)
        ]
        encoded: list[list[int]] = []
        for encoding in self._encode(strings, add_special_tokens=False):
            encoded.append([])
            for index in encoding.ids:
                if index == self._separator_id:
                    encoded.append([])
                else:
                    encoded[-1].append(index)
        return encoded
