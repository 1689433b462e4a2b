"""Random numbers and orders as pure functions of (seed, epoch, purpose, item, place).

A generator object per sample would cost more than making the sample, so the numbers come from a counter-based
generator over whole arrays: SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number
Generators", OOPSLA 2014), a Weyl sequence from a 64-bit key through a mixing function. Which samples share a
batch, a thread or a process has no say.
"""

from __future__ import annotations

import numpy as np

_GOLDEN = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1
_ROUNDS = 6  # of the permutation's network


def epoch_key(seed: int, epoch: int, purpose: int = 0) -> int:
    """A 64-bit key for an epoch; `purpose` (a small whole number) tells independent uses apart."""
    key = _mix_word(_mix_word(seed + _GOLDEN) ^ _mix_word(epoch + 2 * _GOLDEN))
    return _mix_word(key ^ _mix_word(purpose * _GOLDEN)) if purpose else key


def sample_keys(seed: int, epoch: int, indices: np.ndarray) -> np.ndarray:
    """Keys, uint64 of the shape of `indices`, of the items `indices` (whole numbers) in an epoch."""
    key = np.array([epoch_key(seed, epoch)], dtype=np.uint64)
    return draw(key, indices.astype(np.uint64))


def draw(keys: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Uniform 64-bit words: element `places` of the sequence of `keys`, both uint64, broadcast together."""
    words = places * np.uint64(_GOLDEN)
    words = words + keys + np.uint64(_GOLDEN)
    shifted = words >> np.uint64(30)
    words ^= shifted
    words *= np.uint64(0xBF58476D1CE4E5B9)
    np.right_shift(words, np.uint64(27), out=shifted)
    words ^= shifted
    words *= np.uint64(0x94D049BB133111EB)
    np.right_shift(words, np.uint64(31), out=shifted)
    words ^= shifted
    return words


def fractions(words: np.ndarray) -> np.ndarray:
    """Uniform numbers in [0, 1), float64, from 64-bit words.

    Times a whole number n below 2**53 and cut, each is a uniform choice from 0 to n - 1 (n itself cannot
    come out: the largest fraction is 1 - 2**-53, and its product with n rounds to a number below n).
    """
    return (words >> np.uint64(11)) * 2.0**-53


def ones_among(keys: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Set bits among the first counts[i] of the sequence of keys[i]: Binomial(counts[i], 1/2).

    `keys` uint64 and `counts` int64, both (N,); returns int64 (N,). Bit j is bit j % 64 of word j // 64.
    """
    words_each = (counts + 63) >> 6
    if words_each.max(initial=0) <= 1:
        return _set_bits(_low_bits(draw(keys, np.zeros(1, dtype=np.uint64)), counts))
    row = np.repeat(np.arange(len(keys)), words_each)
    place = np.arange(len(row)) - np.repeat(np.cumsum(words_each) - words_each, words_each)
    words = _low_bits(draw(keys[row], place.astype(np.uint64)), np.minimum(counts[row] - 64 * place, 64))
    return np.bincount(row, weights=_set_bits(words), minlength=len(keys)).astype(np.int64)


def permuted(places: np.ndarray, count: int, key: int) -> np.ndarray:
    """The things at `places` (integers from 0 to count - 1) in the random order of `key`, int64.

    Any part of the order can be computed alone, without a list of the rest.
    Over all places each of 0 to count - 1 comes once. A Feistel network over the next even number of bits,
    with SplitMix64 as its round function, applied again to what falls outside ("cycle walking": Black and
    Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002; four steps on average at most).
    """
    half = np.uint64(max(1, (max(count - 1, 1).bit_length() + 1) // 2))
    low_bits = (np.uint64(1) << half) - np.uint64(1)
    values = np.array(places, dtype=np.uint64)
    outside = np.arange(len(values))
    keys = draw(np.array([key], dtype=np.uint64), np.arange(_ROUNDS, dtype=np.uint64))
    while len(outside):
        left, right = values[outside] >> half, values[outside] & low_bits
        for number in range(_ROUNDS):
            word = draw(keys[number : number + 1], right)
            left, right = right, left ^ (word & low_bits)
        values[outside] = (left << half) | right
        outside = outside[values[outside] >= np.uint64(count)]
    return values.astype(np.int64)


def _low_bits(words: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The words with all but their low `counts` (0 to 64) bits cleared."""
    # A shift by 64 is undefined, two shifts by up to 32 are not.
    spare = (64 - counts).astype(np.uint64)
    half = spare >> np.uint64(1)
    return ((words << half) << (spare - half)) >> half >> (spare - half)


def _set_bits(words: np.ndarray) -> np.ndarray:
    """Number of set bits in each uint64 (Warren, "Hacker's Delight", section 5-1), int64."""
    words = words - ((words >> np.uint64(1)) & np.uint64(0x5555555555555555))
    words = (words & np.uint64(0x3333333333333333)) + (
        (words >> np.uint64(2)) & np.uint64(0x3333333333333333)
    )
    words = (words + (words >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return ((words * np.uint64(0x0101010101010101)) >> np.uint64(56)).astype(np.int64)


def _mix_word(word: int) -> int:
    """SplitMix64's mixing function for one Python integer."""
    before = np.array([(word - _GOLDEN) & _WORD], dtype=np.uint64)  # which `draw` adds again
    return int(draw(before, np.zeros(1, dtype=np.uint64))[0])
