"""Random numbers as pure functions of (seed, epoch, sample, place).

A generator object per sample would cost more than making the sample, so the numbers come from a counter-based
generator over whole arrays: SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number
Generators", OOPSLA 2014), a Weyl sequence from a 64-bit key through a mixing function. Which samples share a
batch has no say.
"""

from __future__ import annotations

import numpy as np

_GOLDEN = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1


def epoch_generator(seed: int, epoch: int, purpose: int) -> np.random.Generator:
    """A NumPy generator for what concerns a whole epoch; `purpose` tells independent uses apart."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed & _WORD, epoch, purpose])))


def sample_keys(seed: int, epoch: int, indices: np.ndarray) -> np.ndarray:
    """Keys, uint64 of the shape of `indices`, of the samples `indices` (whole numbers) in an epoch."""
    epoch_key = _mix_word(_mix_word(seed + _GOLDEN) ^ _mix_word(epoch + 2 * _GOLDEN))
    return draw(np.array([epoch_key], dtype=np.uint64), indices.astype(np.uint64))


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


def _mix_word(word: int) -> int:
    """SplitMix64's mixing function for one Python integer."""
    word &= _WORD
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
    return word ^ (word >> 31)
