"""Values of messages whose mean over the ranks is known, and the search for elements that differ from it.
NumPy only.

Every rank can work out what every other rank sends in every round, so no rank needs the library under test to
learn what must arrive. The values change from round to round: a sum that is left from the round before, a
rank's own value, a missing or doubled rank, a piece in the wrong place all differ from the mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Values repeat after so many elements. It is prime: pieces of a message, whose lengths are powers of two,
# would otherwise hold the same values, and might change places unnoticed.
PERIOD = 4093
DTYPES = ("float32", "float16")
_BITS = {"float32": 24, "float16": 11}  # of the significand: whole numbers up to 2**bits are exact


class KnownValues:
    """Values that `ranks` ranks send in a message.

    Every value is `ranks` times a whole number, drawn from (seed, rank, round). So that neither the sum nor
    the mean is rounded, |sum| stays within 2**24 in float32; in float16, which is divided before it is summed
    (comm.base), the mean stays within 2**11.

    Attributes:
        tolerance: the largest difference from the mean that is rounding. 0 where the number of ranks is a
            power of two; otherwise libraries multiply by a rounded 1/ranks, and the bound is that of
            ranks + 2 roundings of the largest value.
    """

    def __init__(self, dtype: str, ranks: int, seed: int):
        self._dtype = np.dtype(dtype)
        self._ranks, self._seed = ranks, seed
        exact = 2 ** _BITS[dtype]
        self._largest = exact // (ranks * ranks if dtype == "float32" else ranks)
        if not self._largest:
            raise ValueError(f"{ranks} ranks: more than values of {dtype} can tell apart")
        eps = float(np.finfo(self._dtype).eps)
        power_of_two = ranks & (ranks - 1) == 0
        self.tolerance = 0.0 if power_of_two else (ranks + 2) * eps * ranks * self._largest

    def sent(self, rank: int, turn: int) -> NDArray[Any]:
        """One period of what `rank` sends in round `turn`."""
        return (self._ranks * self._drawn(rank, turn)).astype(self._dtype)

    def mean(self, turn: int) -> NDArray[Any]:
        """One period of what every rank must then hold."""
        total = sum(self._drawn(rank, turn) for rank in range(self._ranks))
        return np.asarray(total).astype(self._dtype)

    def differing(self, received: NDArray[Any], expected: NDArray[Any]) -> NDArray[Any]:
        """Positions where `received` is not `expected`; NaN differs from everything."""
        if self.tolerance == 0:
            return np.flatnonzero(received != expected)
        difference = np.abs(received.astype(np.float64) - expected)
        return np.flatnonzero(~(difference <= self.tolerance))

    def _drawn(self, rank: int, turn: int) -> NDArray[Any]:
        generator = np.random.default_rng((self._seed, rank, turn))
        return generator.integers(-self._largest, self._largest, PERIOD, endpoint=True)


def stretch(period: NDArray[Any], length: int) -> NDArray[Any]:
    """The period repeated so that any `length` consecutive elements of a message can be cut from it, wherever
    in the period they begin."""
    return np.resize(period, length + PERIOD)
