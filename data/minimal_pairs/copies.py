"""Sentences to masked copies, whose predictions add up to pseudo-log-likelihoods.

The pseudo-log-likelihood of a sentence is the sum over its tokens of log p(token | the sentence with that
token masked) (Salazar et al., arXiv:1911.00106, equation 1). [CLS] and [SEP] are no tokens of it. A word of
several pieces is thereby overrated: a piece is easily guessed from the next ones. In the variant of Kauf and
Ivanova (arXiv:2305.10588, section 3: PLL-word-l2r) the later pieces of the same word are masked, too.
"""

from __future__ import annotations

from typing import Iterator, NamedTuple, Sequence

import numpy as np

from data.tokenizing.vocab import Vocabulary

METRICS = WORD_L2R, ORIGINAL = "word_l2r", "original"


class Sentence(NamedTuple):
    """Token ids (L,) int32 with [CLS] and [SEP], and for each place in [1, L - 1) the end, exclusive, of what
    is masked to predict it, (L - 2,) int32."""

    ids: np.ndarray
    ends: np.ndarray


class Batch(NamedTuple):
    """Copies computed together, (B, L) int32 ids, [PAD] behind shorter ones. Of each: its length (B,), the
    place predicted and the token that stood there (B, 1), all int32, and the number of its sentence."""

    ids: np.ndarray
    lengths: np.ndarray
    places: np.ndarray
    labels: np.ndarray
    sentences: np.ndarray


def to_score(tokens: Sequence[int], vocabulary: Vocabulary, metric: str) -> Sentence:
    """The sentence of these token ids, one at least. `metric`: of METRICS."""
    ids = np.array([vocabulary.cls_id, *tokens, vocabulary.sep_id], np.int32)
    ends = np.arange(2, len(ids), dtype=np.int32)
    if metric == WORD_L2R:
        continues = vocabulary.is_continuation[ids]
        for place in range(len(ids) - 3, 0, -1):
            if continues[place + 1]:
                ends[place - 1] = ends[place]
    return Sentence(ids, ends)


def batches(sentences: Sequence[Sentence], vocabulary: Vocabulary, batch_tokens: int) -> Iterator[Batch]:
    """All copies of all sentences, the longest first, so that hardly any padding is needed; in each batch as
    many as have at most `batch_tokens` tokens, padding included, but one at least."""
    order = sorted(range(len(sentences)), key=lambda number: -len(sentences[number].ids))
    copies = [(number, place) for number in order for place in range(len(sentences[number].ends))]
    start = 0
    while start < len(copies):
        length = len(sentences[copies[start][0]].ids)
        chosen = copies[start : start + max(1, batch_tokens // length)]
        start += len(chosen)
        ids = np.full((len(chosen), length), vocabulary.pad_id, np.int32)
        lengths, places, labels = (np.empty(len(chosen), np.int32) for _ in range(3))
        for row, (number, index) in enumerate(chosen):
            own, ends = sentences[number]
            ids[row, : len(own)] = own
            ids[row, 1 + index : ends[index]] = vocabulary.mask_id
            lengths[row], places[row], labels[row] = len(own), 1 + index, own[1 + index]
        numbers = np.array([number for number, _ in chosen])
        yield Batch(ids, lengths, places[:, None], labels[:, None], numbers)


def tokens_in(sentences: Sequence[Sentence]) -> int:
    """The tokens of all copies, as many as the network computes."""
    return sum(len(each.ids) * len(each.ends) for each in sentences)
