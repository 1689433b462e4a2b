"""What a worker does with a part of a text: sentences to ids, into the columns of a token store."""

from __future__ import annotations

from typing import Any

import numpy as np

from base.errors import InputError
from data.store.build import Column, Part
from data.store.journal import MESSAGES_KEPT
from data.text.corpus import UNKNOWN, TextSettings, TextUnit, read_unit
from data.tokenizing.tokenizer import Tokenizer, TokenizerSettings

LINES_PER_BATCH = 4096
CHARACTERS_PER_BATCH = 1 << 20
_MAX_UINT16_VOCABULARY = 1 << 16


def token_columns(vocab_size: int) -> list[Column]:
    """The columns of a token store; ids are 16 bits wide if the vocabulary fits, else 32."""
    return [
        Column("ids", "<u2" if vocab_size <= _MAX_UINT16_VOCABULARY else "<u4"),
        Column("sentences", "<i8", ends_of="ids"),
        Column("documents", "<i8", ends_of="sentences", drop_repeated=True),
    ]


class TokenizeUnit:
    """Tokenizes one unit of text at a time. Picklable; the tokenizer is made in the process that works."""

    def __init__(self, settings: TokenizerSettings, text: TextSettings) -> None:
        self._settings, self._text = settings, text
        self._tokenizer: Tokenizer | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_settings": self._settings, "_text": self._text, "_tokenizer": None}

    def __call__(self, unit: TextUnit, part: Part) -> dict[str, Any]:
        if self._tokenizer is None:
            self._tokenizer = self._settings.build()
        writer = _SentenceWriter(self._tokenizer, len(self._settings.vocabulary), part)
        messages: list[str] = []
        skipped = 0

        def on_bad(message: str) -> None:
            nonlocal skipped
            skipped += 1
            if len(messages) < MESSAGES_KEPT:
                messages.append(message)

        for sentence in read_unit(unit, self._text, on_bad):
            writer.write(sentence)
        writer.flush()
        counts = {
            "lines": writer.lines,
            "sentences": writer.sentences,
            "tokens": writer.tokens,
            "skipped": skipped,
            "unknown_marks": writer.unknown_marks,
        }
        return {"counts": counts, "messages": messages}


class _SentenceWriter:
    """Collects sentences into batches for the tokenizer and appends what it gives."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, part: Part) -> None:
        self._tokenizer, self._vocab_size, self._part = tokenizer, vocab_size, part
        self.lines = self.sentences = self.tokens = 0
        self.unknown_marks = 0  # words that the text's makers took out: <unk> in WikiText
        self._batch: list[str] = []
        self._document_ends: list[int] = []  # lines of the batch before each
        self._characters = 0
        self._batches = 0

    def write(self, sentence: str | None) -> None:
        """A sentence, or None for a document's end."""
        if sentence is None:
            self._document_ends.append(len(self._batch))
            return
        self._batch.append(sentence)
        self.unknown_marks += sentence.count(UNKNOWN)
        self._characters += len(sentence)
        if len(self._batch) >= LINES_PER_BATCH or self._characters >= CHARACTERS_PER_BATCH:
            self.flush()

    def flush(self) -> None:
        """Tokenize and append what was collected. Sentences without tokens are left out."""
        # A tokenizer that samples draws from this stream: it depends on the place in the text alone.
        stream = (self._part.number << 32) + self._batches
        ids, ends = self._tokenizer.encode_flat(self._batch, stream)
        if len(ids) and not 0 <= ids.min() <= ids.max() < self._vocab_size:
            raise InputError(
                f"the tokenizer gives ids up to {ids.max()}, outside the vocabulary of {self._vocab_size}"
            )
        kept = np.diff(ends, prepend=0) > 0
        before = np.concatenate([[0], np.cumsum(kept)])  # sentences kept before each line
        self._part.append("ids", ids.astype(np.uint32))
        self._part.append("sentences", self.tokens + ends[kept])
        self._part.append("documents", self.sentences + before[self._document_ends])
        self.lines += len(self._batch)
        self.tokens += len(ids)
        self.sentences += int(before[-1])
        self._batches += 1
        self._batch, self._document_ends, self._characters = [], [], 0
