"""Sentences to token ids: WordPiece and SentencePiece, as GluonNLP's BERT scripts tokenize.

Both first clean and split as Google's BasicTokenizer: drop control characters, isolate CJK characters and
punctuation, and for uncased models lower-case and strip accents. (GluonNLP 0.10's BERTTokenizer strips
accents even with lower=False, which no published cased vocabulary was made with; here a cased text keeps its
accents, as in Google's code.)

Beyond that, the cleaning is that of Hugging Face. Through all of Unicode 14 it differs from Google's and
GluonNLP's Python code in this: a capital sigma at the end of a word becomes U+03C3, where str.lower makes
U+03C2; private-use characters are removed, where Google's code leaves them to become [UNK]; 256 ideographs
from U+2B820 are not isolated; and some 500 punctuation marks, accents and control characters of recent
Unicode versions are letters to it. Its tables are its own, not those of the Python that runs it, so that a
text has the same tokens everywhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, Sequence

import numpy as np

from base.errors import InputError
from base.files import sha256_of
from data.tokenizing.sentencepiece_tokenizer import (
    SentencePieceTokenizer,
    samples,
    sentencepiece_release,
)
from data.tokenizing.vocab import SPECIAL_TOKENS, Vocabulary
from data.tokenizing.wordpiece import MAX_CHARS_PER_WORD, WordPieceTokenizer, lists_of


class Tokenizer(Protocol):
    """Interface of a tokenizer."""

    def encode(self, lines: Sequence[str], stream: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """All ids of the lines, int32 (tokens,), without special tokens, and where each line ends in them,
        int64 (lines,): line i has ids[ends[i - 1] : ends[i]], the first ids[: ends[0]]; possibly none.

        The result depends on the settings, `stream` and the lines alone, not on earlier calls; only a
        tokenizer that samples looks at `stream`, so give each unit of a text its own.
        """
        ...


@dataclass(frozen=True, eq=False)
class TokenizerSettings:
    """Settings from which a worker process builds a tokenizer; may be pickled.

    `sentencepiece` is the path of a model, or None for WordPiece. `cased` keeps case and accents. `nbest`,
    `alpha` and `seed` are those of SentencePieceTokenizer and mean nothing for WordPiece.
    """

    vocabulary: Vocabulary
    sentencepiece: str | None = None
    cased: bool = False
    nbest: int = 0
    alpha: float = 1.0
    seed: int = 0

    @property
    def samples(self) -> bool:
        """True if the ids of a line are sampled anew under another seed."""
        return self.sentencepiece is not None and samples(self.nbest)

    @cached_property
    def fingerprint(self) -> str:
        """Identity of the tokenizer, part of that of a store: another one may give other tokens. It travels
        with the settings, so that `build` can compare.

        Raises InputError when the SentencePiece model cannot be read.
        """
        words = f"vocab={self.vocabulary.sha256}"
        if self.sentencepiece is None:
            return f"wordpiece-1 cased={self.cased} max_chars={MAX_CHARS_PER_WORD} {words}"
        sampling = ""
        if self.samples:
            # Releases draw differently; the best segmentation is the same in all.
            release = sentencepiece_release()
            sampling = f" nbest={self.nbest} alpha={self.alpha} seed={self.seed} release={release}"
        try:
            model = sha256_of(self.sentencepiece)
        except OSError as error:
            raise InputError(
                f"--sentencepiece: cannot read {self.sentencepiece}: {error.strerror}"
            ) from error
        return f"sentencepiece-1 cased={self.cased} model={model} {words}{sampling}"

    def build(self) -> Tokenizer:
        """The tokenizer. Raises InputError for a SentencePiece model that is not, or no longer, the one."""
        if self.sentencepiece is None:
            return WordPieceTokenizer(self.vocabulary, self.cased)
        expected = self.fingerprint
        tokenizer = SentencePieceTokenizer(
            self.sentencepiece, self.vocabulary, self.cased, self.nbest, self.alpha, self.seed
        )
        if replace(self).fingerprint != expected:  # of the file as it is now
            raise InputError(f"--sentencepiece: {self.sentencepiece} changed during the run; start again")
        return tokenizer


_SPECIAL = re.compile("(" + "|".join(map(re.escape, SPECIAL_TOKENS)) + ")")


def encode_marked(texts: Sequence[str], tokenizer: Tokenizer, vocabulary: Vocabulary) -> list[list[int]]:
    """The ids of each text, [PAD], [UNK], [CLS], [SEP] and [MASK] in it being those tokens, whatever the
    case of the rest, as in Hugging Face's tokenizers. (Tokenizers take "[MASK]" for punctuation and a word,
    as a text that is trained on may well contain it.)"""
    special = dict(zip(SPECIAL_TOKENS, vocabulary.special_ids))
    parts = [_SPECIAL.split(text) for text in texts]  # text and special tokens in turns
    plain = [part for each in parts for part in each if part not in special]
    encoded = iter(lists_of(*tokenizer.encode(plain)))
    return [
        [token for part in each for token in ([special[part]] if part in special else next(encoded))]
        for each in parts
    ]
