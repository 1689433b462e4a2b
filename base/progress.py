"""How far a long preparation is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from typing import IO, TYPE_CHECKING, Mapping, Protocol

if TYPE_CHECKING:
    from tqdm import tqdm

SECONDS_PER_LINE = 10.0


class Progress(Protocol):
    """What is told of a preparation. All calls come from one thread."""

    def begin(self, what: str, total: int) -> None:
        """`what` (such as "tokenizing") starts; `total` bytes are to be read."""
        ...

    def update(self, done: int, counts: Mapping[str, int]) -> None:
        """`done` bytes have been read; `counts` (such as tokens) is what came of them."""
        ...

    def note(self, line: str) -> None:
        """Something worth a line of its own."""
        ...

    def end(self) -> None:
        """It is over, successfully or not."""
        ...


class Silent:
    """Tells nothing."""

    def begin(self, what: str, total: int) -> None:
        """Nothing."""

    def update(self, done: int, counts: Mapping[str, int]) -> None:
        """Nothing."""

    def note(self, line: str) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""


class Printed:
    """A tqdm bar if `stream` (default: standard error) is a terminal, else a line every 10 seconds."""

    def __init__(self, stream: IO[str] | None = None, seconds_per_line: float = SECONDS_PER_LINE) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._seconds = seconds_per_line
        self._bar: tqdm | None = None
        self._what, self._total, self._first = "", 0, 0
        self._started = self._told = 0.0
        self._first_tokens: int | None = None

    def begin(self, what: str, total: int) -> None:
        """Start the bar, or the clock of the lines."""
        self._what, self._total = what, total
        self._started = self._told = time.monotonic()
        self._first_tokens = None
        if self._stream.isatty():
            from tqdm import tqdm  # workers, which import this module too, start faster without it

            self._bar = tqdm(total=total, desc=what, unit="B", unit_scale=True, file=self._stream)

    def update(self, done: int, counts: Mapping[str, int]) -> None:
        """Move the bar; print a line if the last one is long ago."""
        tokens = counts.get("tokens", 0)
        if self._first_tokens is None:  # a resumed build: what was there before is no speed of this run
            self._first_tokens, self._first = tokens, done
        now = time.monotonic()
        rate = (tokens - self._first_tokens) / max(now - self._started, 1e-9)
        if self._bar is not None:
            self._bar.set_postfix_str(f"{rate / 1e6:.2f} M tokens/s" if tokens else "", refresh=False)
            self._bar.update(done - self._bar.n)
        elif now - self._told >= self._seconds:
            self._told = now
            speed = f", {rate / 1e6:.2f} M tokens/s" if tokens else ""
            self.note(f"{self._what}: {_amount(done, self._total)}{speed}")

    def note(self, line: str) -> None:
        """Print the line, above the bar if there is one."""
        if self._bar is not None:
            self._bar.write(line, file=self._stream)
        else:
            print(line, file=self._stream, flush=True)

    def end(self) -> None:
        """Close the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _amount(done: int, total: int) -> str:
    """The bytes done and in all, in the largest unit of which the total has one, to two digits at least."""
    for unit, size in (("MB", 1e6), ("KB", 1e3)):
        if total >= size:
            digits = 1 if total < 10 * size else 0
            return f"{done / size:.{digits}f} of {total / size:.{digits}f} {unit}"
    return f"{done} of {total} bytes"
