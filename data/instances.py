"""Sentence pairs and masks: BERT's pretraining instances as pure functions.

The algorithm is that of Google's create_pretraining_data.py (Devlin et al., arXiv:1810.04805, section A.1 and
A.2).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import Iterator, NamedTuple

import numpy as np

from data.errors import InputError
from data.streams import draw
from data.tokens import TokenStore
from data.vocab import Vocabulary

MIN_SEQ_LENGTH = 5  # [CLS] a [SEP] b [SEP]
_RANDOM_BLOCK = 1 << 16
_CORRUPTION_PLACE = 1 << 32  # the places in a sample's stream past those that choose positions


class Pairs(NamedTuple):
    """Sentence pairs as ranges of token positions in a store, one row an instance.

    Arrays of shape (N,), int64 but `is_random`, which is bool: True where B comes from another document.
    """

    a_start: np.ndarray
    a_end: np.ndarray
    b_start: np.ndarray
    b_end: np.ndarray
    is_random: np.ndarray

    def lengths(self) -> np.ndarray:
        """Sequence lengths with [CLS] and both [SEP], int32 of shape (N,)."""
        return ((self.a_end - self.a_start) + (self.b_end - self.b_start) + 3).astype(np.int32)


def pair_plan(
    store: TokenStore, max_seq_length: int, short_seq_prob: float, rng: np.random.Generator
) -> Pairs:
    """Pair up all sentences of the store, document by document.

    A document draws a target length: max_seq_length - 3, or with probability `short_seq_prob` uniform from 2
    to that. Sentences are collected until they reach it and split at a random sentence into A and B. With
    probability one half, or when there is a single sentence, B is replaced by sentences from a random place
    in another document and the unused ones are returned. A pair that is too long loses tokens from the front
    or back, at random, of its longer half.
    Raises InputError when the store has a single document, which leaves no other to take a random B from.
    """
    if store.num_documents < 2:
        raise InputError(
            "the text has a single document, but next-sentence prediction needs two or more: "
            "separate documents by blank lines"
        )
    ranges = _sentence_ranges(store, max_seq_length - 3, short_seq_prob, rng)
    a_first, a_last, b_first, b_last, is_random = ranges
    a_start, a_end = store.sentences[a_first], store.sentences[a_last]
    b_start, b_end = store.sentences[b_first], store.sentences[b_last]
    a_start, a_end, b_start, b_end = _truncate(a_start, a_end, b_start, b_end, max_seq_length - 3, rng)
    return Pairs(a_start, a_end, b_start, b_end, is_random)


def mask(
    input_ids: np.ndarray,
    valid_lengths: np.ndarray,
    keys: np.ndarray,
    vocab: Vocabulary,
    masked_lm_prob: float,
    max_predictions_per_seq: int,
    whole_word_mask: bool = False,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Choose tokens to predict and corrupt them: 80% become [MASK], 10% stay, 10% become any token.

    `input_ids` int32 (B, L); `valid_lengths` int32 (B,); `keys` uint64 (B,), one random key a sequence (see
    data.streams). [CLS], [SEP] and [PAD] are never chosen. A sequence of n tokens has
    min(max_predictions_per_seq, max(1, round(n * masked_lm_prob))) predictions, if it has that many
    candidates; whole words that do not fit are passed over, so that there can be fewer. A word never reaches
    across [SEP].
    Returns new arrays: corrupted ids int32 (B, L), positions int32 (B, P) in rising order, original ids int32
    (B, P), and weights float32 (B, P): 1 for predictions, then 0 for padding, whose position and id are 0.
    """
    rows, length = input_ids.shape
    place = np.arange(length, dtype=np.uint64)
    candidates = place < valid_lengths.astype(np.uint64)[:, None]
    for special in (vocab.cls_id, vocab.sep_id, vocab.pad_id):
        candidates &= input_ids != special
    wanted = np.maximum(1, np.rint(valid_lengths * float(masked_lm_prob))).astype(np.int64)
    wanted = np.minimum(np.minimum(wanted, max_predictions_per_seq), candidates.sum(axis=1))
    if whole_word_mask:
        chosen = _choose_words(input_ids, candidates, wanted, keys, vocab)
    else:
        chosen = _choose_tokens(candidates, wanted, keys)
    counts = chosen.sum(axis=1)
    row, position = np.nonzero(chosen)
    column = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)

    positions = np.zeros((rows, max_predictions_per_seq), dtype=np.int32)
    masked_ids = np.zeros_like(positions)
    weights = np.zeros(positions.shape, dtype=np.float32)
    original = input_ids[row, position]
    positions[row, column] = position
    masked_ids[row, column] = original
    weights[row, column] = 1.0

    words = draw(keys[row], position.astype(np.uint64) + np.uint64(_CORRUPTION_PLACE))
    fate = (words >> np.uint64(32)).astype(np.float64) * 2.0**-32
    any_token = ((words & np.uint64(0xFFFFFFFF)) * np.uint64(len(vocab))) >> np.uint64(32)
    replacement = np.where(
        fate < 0.8, vocab.mask_id, np.where(fate < 0.9, original, any_token.astype(np.int64))
    )
    corrupted = input_ids.copy()
    corrupted[row, position] = replacement
    return corrupted, positions, masked_ids, weights


def _choose_tokens(candidates: np.ndarray, wanted: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Bool (B, L): in each row `wanted` of the candidates, every subset equally likely."""
    rows, length = candidates.shape
    place = np.arange(length, dtype=np.uint64)
    # The smallest of random words whose low 16 bits are the place: the sorted words themselves say what was
    # chosen.
    words = draw(keys[:, None], place[None, :])
    words &= np.uint64(_LOW_16_CLEARED)
    words |= place
    words[~candidates] |= np.uint64(_NEVER)
    most = int(wanted.max(initial=0))
    if most < length:
        words.partition(most, axis=1)
    smallest = np.sort(words[:, :most], axis=1)
    take = np.arange(most) < wanted[:, None]
    chosen = np.zeros(candidates.shape, dtype=bool)
    row = np.repeat(np.arange(rows), wanted)
    chosen[row, (smallest[take] & np.uint64(0xFFFF)).astype(np.int64)] = True
    return chosen


def _choose_words(
    input_ids: np.ndarray, candidates: np.ndarray, wanted: np.ndarray, keys: np.ndarray, vocab: Vocabulary
) -> np.ndarray:
    """Bool (B, L): in each row whole words in random order, as long as they fit in `wanted` tokens."""
    rows, length = candidates.shape
    order_words = draw(keys[:, None], np.arange(length, dtype=np.uint64)[None, :])
    starts = candidates.copy()
    starts[:, 1:] &= ~(vocab.is_continuation[input_ids[:, 1:]] & candidates[:, :-1])
    chosen = np.zeros(candidates.shape, dtype=bool)
    for row in range(rows):
        first = np.flatnonzero(starts[row])
        # Candidates between two word starts are adjacent except across [SEP], where a new word starts.
        size = np.diff(np.append(np.cumsum(candidates[row])[first] - 1, candidates[row].sum()))
        left = int(wanted[row])
        order = np.argsort(order_words[row, first], kind="stable")
        for begin, count in zip(first[order].tolist(), size[order].tolist()):
            if not left:
                break
            if count <= left:
                chosen[row, begin : begin + count] = True
                left -= count
    return chosen


_LOW_16_CLEARED = 0x7FFFFFFFFFFF0000
_NEVER = 1 << 63


def _sentence_ranges(
    store: TokenStore, max_tokens: int, short_seq_prob: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """First and last+1 sentence of each A and B, before truncation, and whether B is random."""
    # memoryview elements are Python integers without the cost of NumPy scalars, and bisect takes them as they
    # are.
    offsets = memoryview(np.ascontiguousarray(store.sentences))  # type: ignore[arg-type]
    bounds = memoryview(np.ascontiguousarray(store.documents))  # type: ignore[arg-type]
    num_documents = store.num_documents
    uniform = _uniforms(rng).__next__
    a_first, a_last, b_first, b_last = array("q"), array("q"), array("q"), array("q")
    is_random = bytearray()
    for document in range(num_documents):
        sentence, end = bounds[document], bounds[document + 1]
        target = max_tokens
        if uniform() < short_seq_prob:
            target = 2 + int(uniform() * (max_tokens - 1))
        while sentence < end:
            start_token = offsets[sentence]
            stop = min(bisect_left(offsets, start_token + target, sentence + 1, end + 1), end)
            count = stop - sentence
            split = sentence + (1 + int(uniform() * (count - 1)) if count > 1 else 1)
            a_first.append(sentence)
            a_last.append(split)
            if count == 1 or uniform() < 0.5:
                other = int(uniform() * (num_documents - 1))
                other += other >= document
                low, high = bounds[other], bounds[other + 1]
                first = low + int(uniform() * (high - low))
                needed = offsets[first] + target - (offsets[split] - start_token)
                b_first.append(first)
                b_last.append(min(bisect_left(offsets, needed, first + 1, high + 1), high))
                is_random.append(1)
                sentence = split
            else:
                b_first.append(split)
                b_last.append(stop)
                is_random.append(0)
                sentence = stop
    columns = [np.frombuffer(column, dtype=np.int64) for column in (a_first, a_last, b_first, b_last)]
    return columns[0], columns[1], columns[2], columns[3], np.frombuffer(bytes(is_random), dtype=bool)


def _uniforms(rng: np.random.Generator) -> Iterator[float]:
    """Uniform numbers in [0, 1) without end, drawn in blocks: one by one they would dominate the loop."""
    while True:
        yield from rng.random(_RANDOM_BLOCK).tolist()


def _truncate(
    a_start: np.ndarray,
    a_end: np.ndarray,
    b_start: np.ndarray,
    b_end: np.ndarray,
    max_tokens: int,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Remove tokens one by one from the longer half (from B if equal), each from its front or back at random.

    How many each half loses is arithmetic; how many of those from the front is binomial.
    """
    a_length, b_length = a_end - a_start, b_end - b_start
    excess = np.maximum(a_length + b_length - max_tokens, 0)
    longer_first = np.minimum(np.abs(a_length - b_length), excess)  # until both halves are equal
    rest = excess - longer_first
    a_is_longer = a_length > b_length
    a_loss = np.where(a_is_longer, longer_first, 0) + rest // 2
    b_loss = np.where(a_is_longer, 0, longer_first) + (rest + 1) // 2
    a_front, b_front = rng.binomial(a_loss, 0.5), rng.binomial(b_loss, 0.5)
    return a_start + a_front, a_end - (a_loss - a_front), b_start + b_front, b_end - (b_loss - b_front)
