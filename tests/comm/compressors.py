"""BytePS's compressors in NumPy, and how its workers and its server apply them one after the other.

Written from their definitions, in float64 where BytePS's own precision does not decide the result.
"""

from __future__ import annotations

import numpy as np

PIECE = 524288  # elements
_MASK = 2**64 - 1


def pieces(flat):
    return [flat[start : start + PIECE] for start in range(0, flat.size, PIECE)]


def onebit(x):
    """The signs, times the mean absolute value."""
    scale = np.float32(np.abs(x.astype(np.float64)).mean())
    return np.where(x < 0, -scale, scale).astype(np.float32)


def topk(x, share):
    """The k values of greatest magnitude, 0 elsewhere."""
    chosen = np.argsort(-np.abs(x), kind="stable")[: count(x, share)]
    result = np.zeros_like(x)
    result[chosen] = x[chosen]
    return result


def count(x, share):
    """Number of values of a `share`: BytePS rounds the piece up to 128 bytes, and computes in float32."""
    aligned = -(-x.nbytes // 128) * 128
    return max(1, int(np.float32(share) * np.float32(aligned) / np.float32(4)))


class XorShift:
    """xorshift128+ with both halves of its state set to the seed."""

    def __init__(self, seed):
        self._a = self._b = seed

    def next(self):
        t, s = self._a, self._b
        self._a = s
        t ^= t << 23 & _MASK
        t ^= t >> 17
        t ^= s ^ (s >> 26)
        self._b = t
        return (t + s) & _MASK


class RandomK:
    """One piece's random selections, in the order in which they are made."""

    def __init__(self, share, seed):
        self._share, self._generator = share, XorShift(seed)

    def __call__(self, size):
        k = count(np.empty(size, np.float32), self._share)
        return np.unique([self._generator.next() % size for _ in range(k)])


def two_passes(gradients, compress):
    """The mean that arrives when every worker compresses its gradient and the server compresses their sum."""
    results = []
    for parts in zip(*(pieces(gradient) for gradient in gradients)):
        total = compress(parts[0])
        for part in parts[1:]:
            total = total + compress(part)
        results.append(compress(total) / np.float32(len(parts)))
    return np.concatenate(results)
