"""Examples as token ids, and their batches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, Sequence

import numpy as np

from base.errors import InputError
from base.workers import in_order
from data.classification.examples import Examples
from data.pretraining.pairs import joined, truncated_pairs
from data.tokenizing.tokenizer import Tokenizer, TokenizerSettings
from data.tokenizing.vocab import Vocabulary

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
        ids: int32, tokens of all texts one after the other.
        starts, kept: int64 (1, N), or (2, N) for pairs; text k of example i has the kept[k, i] tokens from
            starts[k, i] on.
        labels: int32 or float32 (N,); None for a file without labels.
        vocabulary: of the special tokens.
        truncated: examples that lost tokens.
    """

    ids: np.ndarray
    starts: np.ndarray
    kept: np.ndarray
    labels: np.ndarray | None
    vocabulary: Vocabulary
    truncated: int

    def __len__(self) -> int:
        return self.kept.shape[1]

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each example, int32 (N,)."""
        return (self.kept.sum(axis=0) + len(self.kept) + 1).astype(np.int32)

    def collate(self, examples: np.ndarray, padded_length: int) -> Batch:
        """The examples with these numbers, int64 (B,), padded to a length no less than any of theirs."""
        starts, own = self.starts[:, examples], replace(self, kept=self.kept[:, examples])
        lengths = own.lengths
        a = starts[0], own.kept[0]
        input_ids, segments = joined(self.ids, a, starts[-1], lengths, padded_length, self.vocabulary)
        labels = np.zeros(len(examples), np.int32) if self.labels is None else self.labels[examples]
        return Batch(input_ids, segments, lengths, labels, np.asarray(examples, dtype=np.int64))


def featurize(
    examples: Examples,
    settings: TokenizerSettings,
    max_length: int,
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
    jobs = [
        _Job(f"texts from number {start} on", start // _PART, texts[start : start + _PART])
        for start in range(0, len(texts), _PART)
    ]
    encode, alone = _Encoder(settings), num_workers < 2 or len(texts) <= _FEW
    parts = list(map(encode, jobs) if alone else in_order(encode, jobs, num_workers))
    ids = np.concatenate([ids for ids, _ in parts])
    before = np.cumsum([0, *(len(ids) for ids, _ in parts)])  # ids, of each part
    ends = np.concatenate([ends + size for (_, ends), size in zip(parts, before)])
    starts = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
    lengths = ends - starts
    count = len(examples)
    if examples.second is None:
        kept = np.minimum(lengths, max_length - 2)[None]
    else:
        kept = np.stack(truncated_pairs(lengths[:count], lengths[count:], max_length - 3))
    losers = int((kept.sum(axis=0) < lengths.reshape(len(kept), count).sum(axis=0)).sum())
    starts = starts.reshape(len(kept), count)
    return Features(ids, starts, kept, examples.labels, settings.vocabulary, losers)


class _Job(NamedTuple):
    name: str
    stream: int
    texts: Sequence[str]


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
