"""Examples as token ids, and their batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Sequence

import numpy as np

from base.errors import InputError
from base.workers import in_order
from data.classification.examples import Examples
from data.tokenizing.tokenizer import Tokenizer, TokenizerSettings
from data.tokenizing.vocab import Vocabulary


class Ragged(NamedTuple):
    """Rows of whole numbers: row i is values[ends[i - 1] : ends[i]], the first one values[: ends[0]]."""

    values: np.ndarray  # integers (T,)
    ends: np.ndarray  # int64 (N,), rising

    @property
    def starts(self) -> np.ndarray:
        """Beginning of each row in `values`, int64 (N,)."""
        return np.concatenate((np.zeros(1, np.int64), self.ends[:-1])) if len(self.ends) else self.ends

    def lengths(self) -> np.ndarray:
        """Length of each row, int32 (N,)."""
        return (self.ends - self.starts).astype(np.int32)

    def row(self, number: int) -> np.ndarray:
        """Row `number`, from 0 on: a view."""
        start = int(self.ends[number - 1]) if number else 0
        return self.values[start : int(self.ends[number])]

    def lengths_of(self, rows: np.ndarray) -> np.ndarray:
        """Length of each of the rows numbered `rows`, integers (B,): int64 (B,)."""
        return self._places(np.asarray(rows, dtype=np.int64))[1]

    def padded(self, rows: np.ndarray, width: int, fill: int = 0) -> np.ndarray:
        """The rows numbered `rows`, integers (B,), filled up to `width`: a new int32 array (B, width).

        Raises ValueError if one of them is longer than `width`.
        """
        rows = np.asarray(rows, dtype=np.int64)
        start, lengths = self._places(rows)
        if len(rows) and lengths.max() > width:
            raise ValueError(f"a row of {lengths.max()} does not fit into {width}")
        out = np.full((len(rows), width), fill, dtype=np.int32)
        place = np.arange(width)
        inside = place < lengths[:, None]
        out[inside] = self.values[(start[:, None] + place)[inside]]
        return out

    def _places(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Beginnings of the rows, and their lengths; int64 both."""
        start = np.where(rows > 0, self.ends[rows - 1], 0)
        return start, self.ends[rows] - start


def ragged(rows: Sequence[Sequence[int]]) -> Ragged:
    """The rows, one after the other, as int32 values."""
    ends = np.cumsum(np.fromiter((len(row) for row in rows), dtype=np.int64, count=len(rows)))
    total = int(ends[-1]) if len(rows) else 0
    values = np.fromiter((value for row in rows for value in row), dtype=np.int32, count=total)
    return Ragged(values, ends)


DEFAULT_LENGTH = 128
LEAST_LENGTH = 8
_PART = 1 << 14  # texts of a job
_FEW = 1 << 18  # texts that are tokenized sooner than processes are started (a core does 150,000 a second)


class Batch(NamedTuple):
    """One rank's micro-batch: B examples padded to L tokens."""

    input_ids: np.ndarray  # int32 (B, L), padded with [PAD]
    segment_ids: np.ndarray  # int32 (B, L), 0 for [CLS] A [SEP] and padding, 1 for B [SEP]
    valid_lengths: np.ndarray  # int32 (B,), tokens that are not padding
    labels: np.ndarray  # int32 (B,) numbers of classes, or float32 (B,); zeros for a file without labels
    examples: np.ndarray  # int64 (B,), the examples' numbers


@dataclass(frozen=True, eq=False)
class Features:
    """The tokens of N examples, [CLS] A [SEP] or [CLS] A [SEP] B [SEP].

    Attributes:
        tokens: with the special tokens, N rows.
        first: int32 (N,), tokens of segment 0: [CLS] A [SEP].
        labels: int32 or float32 (N,); None for a file without labels.
        pad_id: of the token that fills short rows.
        truncated: examples that lost tokens.
    """

    tokens: Ragged
    first: np.ndarray
    labels: np.ndarray | None
    pad_id: int
    truncated: int

    def __len__(self) -> int:
        return len(self.first)

    def lengths(self) -> np.ndarray:
        """Tokens of each example, int32 (N,)."""
        return self.tokens.lengths()

    def collate(self, examples: np.ndarray, padded_length: int) -> Batch:
        """The examples with these numbers, int64 (B,), padded to a length no less than any of theirs."""
        valid = self.tokens.lengths_of(examples)
        place = np.arange(padded_length)
        segments = (place >= self.first[examples][:, None]) & (place < valid[:, None])
        labels = np.zeros(len(examples), np.int32) if self.labels is None else self.labels[examples]
        return Batch(
            self.tokens.padded(examples, padded_length, self.pad_id),
            segments.astype(np.int32),
            valid.astype(np.int32),
            labels,
            np.asarray(examples, dtype=np.int64),
        )


def featurize(
    examples: Examples,
    settings: TokenizerSettings,
    max_length: int = DEFAULT_LENGTH,
    num_workers: int = 1,
    flag: str = "--max_len",
) -> Features:
    """Tokenizes all examples, with up to `num_workers` processes where there are many.

    Too long ones lose tokens from their ends as in Google's run_classifier.py: pairs one token at a time from
    the longer text, from the second where both are equally long. Raises InputError for a `max_length` (named
    by `flag`) that leaves no room for texts.
    """
    if max_length < LEAST_LENGTH:
        raise InputError(f"{flag} {max_length}: must be at least {LEAST_LENGTH}")
    texts = examples.first if examples.second is None else examples.first + examples.second
    ids, ends = _encode_all(texts, settings, num_workers)
    starts = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
    lengths = ends - starts
    count = len(examples)
    if examples.second is None:
        kept = np.minimum(lengths, max_length - 2)[None]
    else:
        kept = np.stack(truncated_pairs(lengths[:count], lengths[count:], max_length - 3))
    losers = int((kept.sum(axis=0) < lengths.reshape(len(kept), count).sum(axis=0)).sum())
    tokens, first = _assemble(ids, starts.reshape(len(kept), count), kept, settings.vocabulary)
    return Features(tokens, first, examples.labels, settings.vocabulary.pad_id, losers)


def truncated_pairs(first: np.ndarray, second: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Lengths, int64 (N,) both, of pairs cut to at most `most` tokens together: one token at a time from the
    longer one, from the second where both are equal (`_truncate_seq_pair` of Google's run_classifier.py)."""
    excess = np.maximum(first + second - most, 0)
    from_longer = np.minimum(np.abs(first - second), excess)  # until both are equal
    rest = excess - from_longer
    first_is_longer = first > second
    first_loss = np.where(first_is_longer, from_longer, 0) + rest // 2
    second_loss = np.where(first_is_longer, 0, from_longer) + (rest + 1) // 2
    return first - first_loss, second - second_loss


def _assemble(
    ids: np.ndarray, starts: np.ndarray, kept: np.ndarray, vocab: Vocabulary
) -> tuple[Ragged, np.ndarray]:
    """Rows with special tokens, and the tokens of their first segments, int32 (N,).

    `starts` in `ids` and `kept` lengths of the texts: int64 (1, N), or (2, N) for pairs.
    """
    lengths = kept.sum(axis=0) + len(kept) + 1
    ends = np.cumsum(lengths)
    row_starts = ends - lengths
    values = np.empty(int(ends[-1]), dtype=np.int32)
    values[row_starts] = vocab.cls_id
    place = row_starts + 1
    for text_starts, text_lengths in zip(starts, kept):
        within = np.arange(int(text_lengths.sum())) - np.repeat(
            np.cumsum(text_lengths) - text_lengths, text_lengths
        )
        values[np.repeat(place, text_lengths) + within] = ids[np.repeat(text_starts, text_lengths) + within]
        place = place + text_lengths
        values[place] = vocab.sep_id
        place = place + 1
    return Ragged(values, ends), (kept[0] + 2).astype(np.int32)


def _encode_all(
    texts: Sequence[str], settings: TokenizerSettings, num_workers: int
) -> tuple[np.ndarray, np.ndarray]:
    """All ids, int32, and where each text ends in them, int64; the same for any number of workers."""
    jobs = [_Job(start // _PART, texts[start : start + _PART]) for start in range(0, len(texts), _PART)]
    if num_workers < 2 or len(texts) <= _FEW:
        parts = list(map(_Encoder(settings), jobs))
    else:
        parts = list(in_order(_Encoder(settings), jobs, num_workers))
    sizes = np.cumsum([0, *(len(ids) for ids, _ in parts)])
    ids = np.concatenate([ids for ids, _ in parts])
    return ids, np.concatenate([ends + size for (_, ends), size in zip(parts, sizes)])


class _Job(NamedTuple):
    stream: int
    texts: Sequence[str]

    @property
    def name(self) -> str:
        return f"texts from number {self.stream * _PART} on"


class _Encoder:
    """Encodes jobs with one tokenizer, made in the process that does: it becomes faster by the words that it
    has met."""

    def __init__(self, settings: TokenizerSettings) -> None:
        self._settings = settings
        self._tokenizer: Tokenizer | None = None

    def __call__(self, job: _Job) -> tuple[np.ndarray, np.ndarray]:
        if self._tokenizer is None:
            self._tokenizer = self._settings.build()
        return self._tokenizer.encode(job.texts, job.stream)
