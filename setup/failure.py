"""Excerpt of a failed command's output: its first error, not its last lines."""

from __future__ import annotations

import re
from typing import Sequence

LONGEST = 160  # characters of a line that are shown
CONTEXT = 6  # lines from the error on
LAST = 12  # lines, where no error is recognized

# In the order of what explains most: a compiler's error comes before make's, make's before pip's.
ERRORS = [
    re.compile(pattern)
    for pattern in (
        r"^\S+:\d+(?::\d+)?: (?:fatal )?error: ",
        r": undefined reference to |ld: cannot find |^/\S*ld: .*error",
        r"^CMake Error|error: command .* failed",
        r"^(?:g\+\+|gcc|cc1plus|collect2|c\+\+): (?:fatal )?error",
        r"^(?:\w+\.)*\w*(?:Error|Exception): ",
        r"^ERROR: |^E: ",
        r"\b[Ee]rror\b",
    )
]


def excerpt(lines: Sequence[str]) -> list[str]:
    """The first error in a command's output with the lines that belong to it, or the output's end.

    Lines are unindented (pip indents what a build prints) and shortened to ``LONGEST`` characters.
    """
    plain = [line.strip() for line in lines]
    for error in ERRORS:
        first = next((place for place, line in enumerate(plain) if error.search(line)), None)
        if first is not None:
            return [_short(line) for line in plain[first : first + CONTEXT]]
    return [_short(line) for line in plain if line][-LAST:]


def _short(line: str) -> str:
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 4]} ..."
