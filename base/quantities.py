"""Quantities as people read them: digits, shares, durations."""

from __future__ import annotations


def digits(value: float, significant: int = 3) -> str:
    """A number with so many significant digits, without an exponent, thousands separated."""
    if value == 0:
        return "0"
    exponent = int(f"{value:.{significant - 1}e}".split("e")[1])  # after rounding
    return f"{value:,.{max(0, significant - 1 - exponent)}f}"


def duration(seconds: float) -> str:
    """The two greatest units: `2 days 5 h`, `3 h 12 min`, `4 min 10 s`; years from two on."""
    years = seconds / (365.25 * 86400)
    if years >= 2:
        return f"{digits(years, 2)} years"
    whole = round(seconds)
    if whole >= 10 * 86400:
        return f"{digits(whole / 86400)} days"
    for name, unit, smaller, rest in (
        ("days", 86400, "h", 3600),
        ("h", 3600, "min", 60),
        ("min", 60, "s", 1),
    ):
        if whole >= unit:
            count, left = divmod(round(whole / rest), unit // rest)
            plural = "day" if name == "days" and count == 1 else name
            return f"{count} {plural} {left} {smaller}" if left else f"{count} {plural}"
    return f"{seconds:.2g} s"


def percent(part: float) -> str:
    return f"{100 * part:.1f}%" if part < 0.0995 else f"{100 * part:.0f}%"
