"""Masks: which tokens are to be predicted, and what stands in their place, as a pure function of a key.

The rules are those of the BERT paper (Devlin et al., arXiv:1810.04805, section A.1), with whole-word masking
as Google's create_pretraining_data.py does it.
"""

from __future__ import annotations

import numpy as np

from data.options import MaskingConfig
from data.pretraining.randomness import draw
from data.tokenizing.vocab import Vocabulary

_CORRUPTION_PLACE = 1 << 32  # the places in a sample's stream past those that choose positions
_LOW_16_CLEARED = np.uint64(0x7FFFFFFFFFFF0000)
_LOW_16 = np.uint64(0xFFFF)
_NEVER = np.uint64(1 << 63)


def mask(
    input_ids: np.ndarray,
    valid_lengths: np.ndarray,
    keys: np.ndarray,
    vocab: Vocabulary,
    masking: MaskingConfig,
    columns: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Choose tokens to predict and corrupt them: 80% become [MASK], 10% stay, 10% become any token.

    `input_ids` int32 (B, L); `valid_lengths` int32 (B,); `keys` uint64 (B,), one random key a sequence (see
    data.pretraining.randomness). [CLS], [SEP] and [PAD] are never chosen. A sequence of n tokens has
    min(columns, max(1, round(n * masked_lm_prob))) predictions, if it has that many
    candidates; whole words that do not fit are passed over, so that there can be fewer. A word never reaches
    across [SEP]. P is `columns`.
    Returns new arrays: corrupted ids int32 (B, L), positions int32 (B, P) in rising order, original ids int32
    (B, P), and weights float32 (B, P): 1 for predictions, then 0 for padding, whose position and id are 0.
    """
    rows, length = input_ids.shape
    candidates = np.arange(length, dtype=np.int32) < valid_lengths[:, None]
    for special in (vocab.cls_id, vocab.sep_id, vocab.pad_id):
        candidates &= input_ids != special
    wanted = np.maximum(1, np.rint(valid_lengths * float(masking.masked_lm_prob))).astype(np.int64)
    wanted = np.minimum(np.minimum(wanted, columns), candidates.sum(axis=1))
    if masking.whole_word_mask:
        chosen = _choose_words(input_ids, candidates, wanted, keys, vocab)
    else:
        chosen = _choose_tokens(candidates, wanted, keys)
    counts = chosen.sum(axis=1)
    row, position = np.nonzero(chosen)
    column = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)

    positions = np.zeros((rows, columns), dtype=np.int32)
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


def _random_places(candidates: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Random words uint64 (B, L) whose low 16 bits are the place: sorted, they are the candidates in random
    order, and then, with the highest bit set, the others."""
    place = np.arange(candidates.shape[1], dtype=np.uint64)
    words = draw(keys[:, None], place[None, :])
    words &= _LOW_16_CLEARED
    words |= place
    words[~candidates] |= _NEVER
    return words


def _choose_tokens(candidates: np.ndarray, wanted: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Bool (B, L): in each row `wanted` of the candidates, every subset equally likely."""
    rows, length = candidates.shape
    words = _random_places(candidates, keys)
    most = int(wanted.max(initial=0))
    if most < length:
        words.partition(most, axis=1)
    smallest = np.sort(words[:, :most], axis=1)
    take = np.arange(most) < wanted[:, None]
    chosen = np.zeros(candidates.shape, dtype=bool)
    row = np.repeat(np.arange(rows), wanted)
    chosen[row, (smallest[take] & _LOW_16).astype(np.int64)] = True
    return chosen


def _choose_words(
    input_ids: np.ndarray, candidates: np.ndarray, wanted: np.ndarray, keys: np.ndarray, vocab: Vocabulary
) -> np.ndarray:
    """Bool (B, L): in each row whole words in random order, each taken if it fits in what `wanted` leaves."""
    rows, length = candidates.shape
    starts = candidates.copy()
    # Candidates between two word starts are adjacent except across [SEP], where a new word starts.
    starts[:, 1:] &= ~(vocab.is_continuation[input_ids[:, 1:]] & candidates[:, :-1])
    # Words are numbered through all rows; a token before the first has number -1, which
    # leads to the spare place at the end.
    number = np.cumsum(starts.ravel()) - 1
    sizes = np.bincount(number[candidates.ravel()], minlength=int(starts.sum()) + 1)
    taken = np.zeros(len(sizes), dtype=bool)

    words = _random_places(starts, keys)
    most = min(length, int(wanted.max(initial=0)) + 16)
    if most < length:
        words.partition(most, axis=1)
    first = np.sort(words[:, :most], axis=1)
    left = _take_words(first, number.reshape(rows, length), sizes, wanted, taken)
    # Rarely, where many words were passed over, the others get their turn.
    unfinished = np.flatnonzero((left > 0) & (starts.sum(axis=1) > most))
    if len(unfinished):
        rest = np.sort(words[unfinished, most:], axis=1)
        _take_words(rest, number.reshape(rows, length)[unfinished], sizes, left[unfinished], taken)
    return candidates & taken[number].reshape(rows, length)


def _take_words(
    order: np.ndarray, number: np.ndarray, sizes: np.ndarray, wanted: np.ndarray, taken: np.ndarray
) -> np.ndarray:
    """Go through each row's words in `order`, note in `taken` those that fit, and return what is left."""
    place = (order & _LOW_16).astype(np.int64)
    word = np.take_along_axis(number, place, axis=1)
    size = np.where(order < _NEVER, sizes[word], np.iinfo(np.int64).max >> 16)  # others never fit
    # All words before the first that does not fit are taken at once; from there on it goes one by one.
    fits = np.cumsum(size, axis=1) <= wanted[:, None]
    left = wanted - np.where(fits, size, 0).sum(axis=1)
    for column in range(int(fits.sum(axis=1).min(initial=fits.shape[1])), fits.shape[1]):
        fit = (size[:, column] <= left) & ~fits[:, column]
        left = left - np.where(fit, size[:, column], 0)
        fits[:, column] |= fit
        if not left.any():
            break
    taken[word[fits]] = True
    return left
