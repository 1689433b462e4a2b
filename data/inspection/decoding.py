"""Instances made readable: the words as the model sees them, the hidden ones beside what stands for them."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import Any, NamedTuple, Sequence

import numpy as np

from data.pretraining.buckets import padded_to
from data.pretraining.sources import Source
from data.tokenizing.vocab import WORD_START, WORDPIECE, Vocabulary

MASKED, KEPT, REPLACED = "masked", "kept", "replaced"  # what became of a token that is to be predicted
_SPECIAL = "special"
_COLOURS = {MASKED: "1;33", KEPT: "36", REPLACED: "1;31", _SPECIAL: "2"}


class Token(NamedTuple):
    """One token: what stands in the input, what stood in the text, and whether the model predicts it."""

    shown: int
    original: int
    predicted: bool


@dataclass(frozen=True)
class Instance:
    """One decoded instance. `segment_a` and `segment_b` hold its tokens by segment id, special ones too."""

    index: int
    segment_a: tuple[Token, ...]
    segment_b: tuple[Token, ...]
    is_random: bool

    @property
    def tokens(self) -> tuple[Token, ...]:
        """All tokens in order."""
        return self.segment_a + self.segment_b


@dataclass(frozen=True)
class Style:
    """Style of the report: `width` columns, `colour` by terminal codes, `unicode` or ASCII alone."""

    width: int = 100
    colour: bool = False
    unicode: bool = True
    pieces: bool = False  # every piece on its own, as it stands in the vocabulary

    @property
    def arrow(self) -> str:
        return "\u2192" if self.unicode else "->"


def decode(source: Source, seed: int, epoch: int, indices: Sequence[int]) -> list[Instance]:
    """The samples `indices` of an epoch as the training would see them."""
    lengths = source.lengths(seed, epoch)
    instances = []
    for index in indices:
        padded = padded_to(int(lengths[index]), source.max_length)
        batch = source.collate(seed, epoch, np.array([index]), padded)
        length = int(batch.valid_lengths[0])
        originals = batch.input_ids[0, :length].copy()
        chosen = np.flatnonzero(batch.masked_weights[0] > 0)
        originals[batch.masked_positions[0, chosen]] = batch.masked_ids[0, chosen]
        predicted = np.zeros(length, dtype=bool)
        predicted[batch.masked_positions[0, chosen]] = True
        tokens = [
            Token(shown, original, hidden)
            for shown, original, hidden in zip(
                batch.input_ids[0, :length].tolist(), originals.tolist(), predicted.tolist()
            )
        ]
        # By segment id, so that files whose segments are not in order are shown as they are.
        in_b = batch.segment_ids[0, :length].astype(bool).tolist()
        parts = [tuple(token for token, b in zip(tokens, in_b) if b is wanted) for wanted in (False, True)]
        label = bool(batch.next_sentence_labels[0])
        instances.append(Instance(int(index), parts[0], parts[1], label))
    return instances


def fate(token: Token, vocab: Vocabulary | None) -> str:
    """MASKED, KEPT or REPLACED, of a token that is predicted. Without a vocabulary none is MASKED."""
    if token.shown == token.original:
        return KEPT
    return MASKED if vocab is not None and token.shown == vocab.mask_id else REPLACED


class Words:
    """Writes tokens as words. Without a vocabulary their ids stand for them."""

    def __init__(self, vocab: Vocabulary | None, style: Style) -> None:
        self._vocab = vocab
        self._style = style
        self._special = frozenset(vocab.special_ids) if vocab is not None else frozenset()
        self._wordpiece = vocab is not None and vocab.kind == WORDPIECE

    def name(self, token_id: int) -> str:
        """The token as it stands in the vocabulary, made safe to print."""
        if self._vocab is None or token_id >= len(self._vocab):
            return str(token_id)
        return printable(self._vocab.tokens[token_id])

    def lines(self, tokens: Sequence[Token], indent: str) -> list[str]:
        """The tokens as lines of at most `style.width` columns, all but the first indented by spaces.

        `[MASK->word]`: hidden; `[other->word]`: replaced by a random token; `[=word]`: left in place, but to
        be predicted. A marker that belongs to a word stands in it: un[MASK->believ]able.
        """
        lines: list[str] = []
        line, used = indent, len(indent)
        for text, plain in self._units(tokens):
            if used + 1 + plain > self._style.width and used > len(indent):
                lines.append(line)
                line, used = " " * len(indent), len(indent)
            gap = "" if used == len(indent) else " "
            line, used = line + gap + text, used + len(gap) + plain
        return [*lines, line]

    def text(self, tokens: Sequence[Token]) -> str:
        """The tokens on one line, without colours."""
        words = Words(self._vocab, Style(1 << 30, False, self._style.unicode, self._style.pieces))
        return words.lines(tokens, "")[0]

    def _units(self, tokens: Sequence[Token]) -> list[tuple[str, int]]:
        """Texts that a line's end must not divide, and their widths in columns without colour codes."""
        units: list[tuple[str, int]] = []
        inside = False  # a word; a piece that continues none (its beginning was cut off) keeps its mark
        for token in tokens:
            joins = inside and self._joins(token.original)
            text, plain = self._marked(token, joins)
            if joins:
                before, width = units[-1]
                if before == WORD_START:  # SentencePiece's space on its own, before a word's first piece
                    before, width = "", 0
                units[-1] = (before + text, width + plain)
            else:
                units.append((text, plain))
            inside = token.original not in self._special
        return units

    def _marked(self, token: Token, joins: bool) -> tuple[str, int]:
        word = self.name(token.original)
        if not self._style.pieces and self._vocab is not None and token.original not in self._special:
            if self._wordpiece:
                word = word[2:] if joins else word
            elif word.startswith(WORD_START) and len(word) > 1:
                word = word[1:]
        kind = _SPECIAL if token.original in self._special else ""
        if token.predicted:
            kind = fate(token, self._vocab)
            # A random token keeps its ## or lower bar, so that it is seen for what it is.
            shown = "MASK" if kind == MASKED else self.name(token.shown)
            word = f"[={word}]" if kind == KEPT else f"[{shown}{self._style.arrow}{word}]"
        colour = _COLOURS.get(kind) if self._style.colour else None
        return (f"\033[{colour}m{word}\033[0m" if colour else word), columns(word)

    def _joins(self, token_id: int) -> bool:
        """True if the token continues the word before it."""
        if self._style.pieces or self._vocab is None or token_id >= len(self._vocab):
            return False
        return bool(self._vocab.is_continuation[token_id])


def describe(instance: Instance, words: Words, vocab: Vocabulary | None) -> dict[str, Any]:
    """An instance as JSON has it. Tokens are strings, or ids where there is no vocabulary."""

    def name(token_id: int) -> str | int:
        return token_id if vocab is None else vocab.tokens[token_id]

    tokens = instance.tokens
    return {
        "index": instance.index,
        "length": len(tokens),
        "length_a": len(instance.segment_a),
        "length_b": len(instance.segment_b),
        "next_sentence": "random" if instance.is_random else "follows",
        "text_a": words.text(instance.segment_a),
        "text_b": words.text(instance.segment_b),
        "tokens": [name(token.original) for token in tokens],
        "predictions": [
            {
                "position": place,
                "token": name(token.original),
                "shown": name(token.shown),
                "kind": fate(token, vocab),
            }
            for place, token in enumerate(tokens)
            if token.predicted
        ],
    }


def printable(text: str) -> str:
    """The text with what a terminal could act on, or would not show, written as escapes."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text
    )


def columns(text: str) -> int:
    """Columns of a terminal that the text takes: two for a wide (Chinese, Japanese, Korean) character."""
    if text.isascii():
        return len(text)
    return sum(1 + (unicodedata.east_asian_width(each) in "WF") for each in text)
