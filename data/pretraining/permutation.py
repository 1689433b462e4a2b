"""A random order of n things without a list of them: any part of it can be computed alone."""

from __future__ import annotations

import numpy as np

from data.pretraining.streams import draw

_ROUNDS = 6


def permuted(places: np.ndarray, count: int, key: int) -> np.ndarray:
    """What stands at `places` (integers from 0 to count - 1) in the order that `key` stands for, int64.

    Over all places each of 0 to count - 1 comes once. A Feistel network over the next even number of bits,
    with SplitMix64 as its round function, applied again to what falls outside ("cycle walking": Black and
    Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002; four steps on average at most).
    """
    half = np.uint64(max(1, (max(count - 1, 1).bit_length() + 1) // 2))
    values = np.array(places, dtype=np.uint64)
    outside = np.arange(len(values))
    keys = draw(np.array([key], dtype=np.uint64), np.arange(_ROUNDS, dtype=np.uint64))
    while len(outside):
        values[outside] = _feistel(values[outside], half, keys)
        outside = outside[values[outside] >= np.uint64(count)]
    return values.astype(np.int64)


def _feistel(values: np.ndarray, half: np.uint64, keys: np.ndarray) -> np.ndarray:
    """A permutation of the numbers of 2 * `half` bits."""
    low_bits = (np.uint64(1) << half) - np.uint64(1)
    left, right = values >> half, values & low_bits
    for number in range(len(keys)):
        word = draw(keys[number : number + 1], right)
        left, right = right, left ^ (word & low_bits)
    return (left << half) | right
