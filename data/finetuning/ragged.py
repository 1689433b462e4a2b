"""Rows of different lengths in one flat array, as tokenizers' encode_flat gives them."""

from __future__ import annotations

from typing import NamedTuple, Sequence

import numpy as np


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
