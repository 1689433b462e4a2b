"""Which parts of much data are looked at."""

from __future__ import annotations

import numpy as np


def evenly(total: int, limit: int) -> np.ndarray:
    """The numbers below `total`, or `limit` of them in equal steps, int64."""
    if total <= limit:
        return np.arange(total)
    return np.arange(limit, dtype=np.int64) * total // limit
