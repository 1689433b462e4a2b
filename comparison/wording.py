"""Numbers and names as people read them, the same in tables, sentences and plots."""

from __future__ import annotations

from typing import Any, Mapping

from base.quantities import digits, percent
from base.tables import EMPTY
from comparison.backends import BACKENDS
from comparison.verdicts import DIFFERENT, Pair, Spread


def title_of(backend: str, facts: Mapping[str, Any]) -> str:
    """`facts["titles"]`, where given, has the names of backends that are not ours."""
    given = facts.get("titles") or {}
    return str(given.get(backend) or (BACKENDS[backend].title if backend in BACKENDS else backend))


def with_range(middle: float, low: float, high: float, significant: int = 3) -> str:
    """`0.0712 (0.0701 to 0.0735)`, all three with the places of the first."""
    text = digits(middle, significant)
    places = len(text.partition(".")[2])
    return f"{text} ({low:,.{places}f} to {high:,.{places}f})"


def with_quartiles(values: Spread) -> str:
    return with_range(values.median, values.low, values.high)


def with_extremes(values: Spread) -> str:
    """`3.1 (2.9 to 3.6)`."""
    return with_range(values.median, values.least, values.most, 2)


def share_with_extremes(shares: Spread) -> str:
    """`12% (9.4% to 31%)`."""
    return f"{percent(shares.median)} ({percent(shares.least)} to {percent(shares.most)})"


def milliseconds(seconds: float) -> str:
    return "0" if seconds < 1e-9 else digits(seconds * 1e3)  # less is rounding


def size(count: float | None) -> str:
    """Bytes."""
    if count is None:
        return EMPTY
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{digits(count / factor)} {unit}"
    return f"{count:.0f} B"


def memory(count: float | None) -> str:
    """Bytes of memory, in binary units."""
    if count is None:
        return EMPTY
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def verdict(pair: Pair, facts: Mapping[str, Any]) -> str:
    if pair.verdict != DIFFERENT or pair.faster is None:
        return pair.verdict
    return f"{title_of(pair.faster, facts)} is faster"
