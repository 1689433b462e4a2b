"""Texts to token ids and the characters of the text that each token stands for.

As in data.tokenizing.wordpiece, a table of words saves nearly all of the work: everything that BERT's
tokenizers do is a function of each white-space separated word, and so are the places of its tokens in it.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Callable, Sequence

import numpy as np
from tokenizers import PreTokenizedString, Regex
from tokenizers.pre_tokenizers import BertPreTokenizer, Split
from tokenizers.pre_tokenizers import Sequence as PreTokenizers

from base.errors import InputError
from data.text.sentences import UNKNOWN
from data.tokenizing.sentencepiece_tokenizer import load_processor
from data.tokenizing.tokenizer import TokenizerSettings
from data.tokenizing.vocab import Vocabulary
from data.tokenizing.wordpiece import NOT_BETWEEN_WORDS, bert_normalizer, hugging_face

_SPACES = "".join(
    character
    for character in map(chr, range(sys.maxunicode + 1))
    if character.isspace() and character not in NOT_BETWEEN_WORDS
)
_BETWEEN_WORDS = re.compile(f"([{re.escape(_SPACES)}]+)")
# Halves of surrogate pairs, which JSON's escapes can hold and UTF-8 cannot. U+FFFD is removed by BERT's
# cleaning like them, and has their length.
_SURROGATES = re.compile("[\ud800-\udfff]")
_REMOVED = "\ufffd"
_WORDS_PER_STRING = 128
_ROW_BYTES = 3 * 4


@dataclass(frozen=True, eq=False)
class Tokens:
    """Tokens of several texts, one after the other.

    ids: int32 (tokens,). starts, ends: int32 (tokens,); token t stands for the characters
    [starts[t], ends[t]) of its text. bounds: int64 (texts + 1,); text i has the tokens
    bounds[i] : bounds[i + 1].
    """

    ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    bounds: np.ndarray


class OffsetEncoder:
    """Encodes texts with the ids of the project's tokenizers, and with offsets.

    An accent that stands alone after its letter belongs to the letter's token, though BERT's cleaning may
    remove it; other removed characters (controls, zero-width ones) belong to no token, except inside one.
    WordPiece and SentencePiece, which may not sample. For one thread at a time; words are encoded by all
    cores unless TOKENIZERS_PARALLELISM=false is set.
    """

    def __init__(self, settings: TokenizerSettings) -> None:
        if settings.samples:
            raise InputError(
                "--sp_nbest: answers have places in the text only without sampling; leave it out"
            )
        self._pieces: Callable[[Sequence[str]], list[list[tuple[int, int, int]]]]
        if settings.sentencepiece is None:
            self._pieces = _WordPieces(settings.vocabulary, settings.cased)
        else:
            self._pieces = _SentencePieces(settings.sentencepiece, settings.vocabulary, settings.cased)
        self._table: dict[str, bytes] = {}

    def encode(self, texts: Sequence[str]) -> Tokens:
        """The tokens of each text, without special ones; a text may have none."""
        # Words are the even parts, what is between them the odd ones; the first and last may be empty.
        parts = [_BETWEEN_WORDS.split(text) for text in texts]
        unknown = [
            word
            for word in dict.fromkeys(chain.from_iterable(each[::2] for each in parts))
            if word not in self._table
        ]
        for word, pieces in zip(unknown, self._pieces(unknown) if unknown else ()):
            self._table[word] = np.array(pieces, dtype=np.int32).reshape(-1, 3).tobytes()
        looked_up = [list(map(self._table.__getitem__, each[::2])) for each in parts]
        counts = np.fromiter(map(len, chain.from_iterable(looked_up)), np.int64) // _ROW_BYTES
        rows = np.frombuffer(b"".join(chain.from_iterable(looked_up)), dtype=np.int32).reshape(-1, 3)
        words = np.array([len(each) for each in looked_up], dtype=np.int64)
        # The first character of each word in its text
        starts = (list(accumulate(map(len, each), initial=0))[:-1:2] for each in parts)
        places = np.repeat(np.fromiter(chain.from_iterable(starts), np.int64), counts)
        bounds = np.concatenate([[0], np.cumsum(counts)])[np.concatenate([[0], np.cumsum(words)])]
        return Tokens(
            np.ascontiguousarray(rows[:, 0]),
            (rows[:, 1] + places).astype(np.int32),
            (rows[:, 2] + places).astype(np.int32),
            bounds,
        )


class _WordPieces:
    """Pieces of words by Hugging Face `tokenizers`, many words to a string."""

    def __init__(self, vocab: Vocabulary, cased: bool) -> None:
        self._tokenizer = hugging_face(vocab.ids(), vocab.tokens[vocab.unk_id], cased)

    def __call__(self, words: Sequence[str]) -> list[list[tuple[int, int, int]]]:
        groups = [
            words[first : first + _WORDS_PER_STRING] for first in range(0, len(words), _WORDS_PER_STRING)
        ]
        strings = [_SURROGATES.sub(_REMOVED, " ".join(group)) for group in groups]
        encoded: list[list[tuple[int, int, int]]] = []
        for group, encoding in zip(groups, self._tokenizer.encode_batch(strings, add_special_tokens=False)):
            ids, offsets = encoding.ids, encoding.offsets
            place = number = 0
            for word in group:
                end, pieces = place + len(word), []
                while number < len(ids) and offsets[number][0] < end:
                    first, last = offsets[number]
                    pieces.append((ids[number], first - place, last - place))
                    number += 1
                encoded.append(_with_accents(word, pieces))
                place = end + 1
        return encoded


class _SentencePieces:
    """Pieces of words by SentencePiece.

    It is given basic tokens after BERT's cleaning, so that its own places are in the cleaned token; the
    cleaned token's characters are followed back into the word one by one.
    """

    def __init__(self, path: str, vocab: Vocabulary, cased: bool) -> None:
        self._processor = load_processor(path)
        self._normalizer = bert_normalizer(cased)
        self._words = BertPreTokenizer()
        self._characters = PreTokenizers([BertPreTokenizer(), Split(Regex(r"[\s\S]"), "isolated")])
        self._unk_id = vocab.unk_id

    def __call__(self, words: Sequence[str]) -> list[list[tuple[int, int, int]]]:
        return [_with_accents(word, self._pieces(_SURROGATES.sub(_REMOVED, word))) for word in words]

    def _pieces(self, word: str) -> list[tuple[int, int, int]]:
        places = [place for _, place in self._split(word, self._characters)]
        pieces, first = [], 0
        for token, (start, end) in self._split(word, self._words):
            own = places[first : first + len(token)]
            first += len(token)
            if UNKNOWN in token:
                pieces.append((self._unk_id, start, end))
                continue
            for piece in self._processor.encode(token, out_type="immutable_proto").pieces:
                begin, stop = piece.begin, piece.end
                if begin < stop:
                    pieces.append((piece.id, own[begin][0], own[stop - 1][1]))
                else:  # the mark of a word's start, alone, or what normalization made of nothing
                    place = own[begin][0] if begin < len(own) else end
                    pieces.append((piece.id, place, place))
        return pieces

    def _split(self, word: str, how: PreTokenizers | BertPreTokenizer) -> list[tuple[str, tuple[int, int]]]:
        text = PreTokenizedString(word)
        text.normalize(self._normalizer.normalize)
        how.pre_tokenize(text)
        return [(token, place) for token, place, _ in text.get_splits("original", "char")]


def _with_accents(word: str, pieces: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Pieces of a word, each up to the last combining mark between it and the next one."""
    if word.isascii():
        return pieces
    extended = []
    for number, (index, start, end) in enumerate(pieces):
        following = pieces[number + 1][1] if number + 1 < len(pieces) else len(word)
        for place in range(following - 1, end - 1, -1):
            if unicodedata.category(word[place]) == "Mn":
                end = place + 1
                break
        extended.append((index, start, end))
    return extended
