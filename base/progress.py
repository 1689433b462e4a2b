"""Progress of long work: a bar on a terminal, lines with the time left elsewhere."""

from __future__ import annotations

import sys
import time
from typing import IO, TYPE_CHECKING, Mapping

if TYPE_CHECKING:
    from tqdm import tqdm

SECONDS_PER_LINE = 10.0
_SCALED = {  # units of steady work, and their multiples
    "B": (("MB", 1e6), ("KB", 1e3)),
    "tokens": (("million tokens", 1e6), ("thousand tokens", 1e3)),
}
# Of work that is counted in units of very different lengths: the caller knows better how long it will take.
_BAR_OF_UNITS = "{desc} |{bar}| {n_fmt}/{total_fmt}{postfix}"


class Progress:
    """Listener to the preparation of data; this one shows nothing. All calls come from one thread."""

    def begin(self, what: str, total: int) -> None:
        """`what` (such as "tokenizing") starts; `total` bytes are to be read."""

    def update(self, done: int, counts: Mapping[str, int]) -> None:
        """`done` bytes have been read; `counts` (such as tokens) is what came of them."""

    def note(self, line: str) -> None:
        """Something worth a line of its own."""

    def end(self) -> None:
        """It is over, successfully or not."""


SILENT = Progress()


class Printed(Progress):
    """A tqdm bar if `stream` (default: standard error) is a terminal, else lines.

    There are two kinds of work. Bytes, or with that unit tokens: `update` says how many are done, and a line
    appears every SECONDS_PER_LINE. Units that end one by one with a result, such as launches: `begin` gets
    their name, `start` and `finish` are called for each, and each has a line.

    Lines go to `lines`, by default to `stream`.
    """

    def __init__(self, stream: IO[str] | None = None, lines: IO[str] | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._lines = lines if lines is not None else self._stream
        self._bar: tqdm | None = None
        self._what, self._unit = "", "B"
        self._total = self._done = self._first = 0
        self._started = self._last_line = self._first_update = 0.0
        self._first_tokens: int | None = None

    def begin(self, what: str, total: int, unit: str = "B", done: int = 0) -> None:
        """Starts the bar, or the clock of the lines. `done`: units that were done before."""
        self._what, self._total, self._unit, self._done = what, total, unit, done
        self._started = self._last_line = time.monotonic()
        self._first_tokens = None
        if self._stream.isatty():
            from tqdm import tqdm  # workers, which import this module too, start faster without it

            if unit in _SCALED:
                self._bar = tqdm(total=total, desc=what, unit=unit, unit_scale=True, file=self._stream)
            else:
                self._bar = tqdm(
                    total=total, initial=done, desc=what, unit=unit, dynamic_ncols=True,
                    bar_format=_BAR_OF_UNITS, file=self._stream,
                )  # fmt: skip

    def update(self, done: int, counts: Mapping[str, int]) -> None:
        """Moves the bar; prints a line if the last one is long ago."""
        tokens, now = counts.get("tokens", 0), time.monotonic()
        if self._first_tokens is None:  # a resumed build: what was there before is no speed of this run
            self._first_tokens, self._first, self._first_update = tokens, done, now
        rate = (tokens - self._first_tokens) / max(now - self._started, 1e-9)
        if self._bar is not None:
            self._bar.set_postfix_str(f"{rate / 1e6:.2f} M tokens/s" if tokens else "", refresh=False)
            self._bar.update(done - self._bar.n)
        elif now - self._last_line >= SECONDS_PER_LINE:
            from tqdm import tqdm

            self._last_line = now
            speed = f", {rate / 1e6:.2f} M tokens/s" if tokens else ""
            left = ""
            if done > self._first:
                seconds = (now - self._first_update) * (self._total - done) / (done - self._first)
                left = f", {tqdm.format_interval(round(seconds))} left"
            self.note(f"{self._what}: {_amount(done, self._total, self._unit)}{speed}{left}")

    def start(self, name: str) -> None:
        """The unit `name` begins."""
        if self._bar is not None:
            self._bar.set_description_str(name)

    def finish(self, name: str, result: str, left: str, failed: bool = False) -> None:
        """The unit `name` has ended. left: the time that the others will take, in words. On a terminal only a
        failure has a line of its own."""
        self._done += 1
        if self._bar is not None:
            self._bar.update()
            self._bar.set_postfix_str(left)
        if self._bar is None or failed:
            self.note(f"{self._unit} {self._done}/{self._total} {name}: {result}, {left}")

    def skip(self, number: int) -> None:
        """Counts units that will not be done."""
        self._done += number
        if self._bar is not None:
            self._bar.update(number)

    def note(self, line: str) -> None:
        """Prints the line, above the bar if there is one."""
        if self._bar is not None:
            self._bar.write(line, file=self._lines)
            self._lines.flush()
        else:
            print(line, file=self._lines, flush=True)

    def end(self) -> None:
        """Closes the bar."""
        if self._bar is not None:
            # tqdm would leave it over a bar of a run, whose line may be longer: its end would stay there.
            self._bar.leave, last = False, str(self._bar)
            self._bar.close()
            self._bar.write(last, file=self._stream)
            self._bar = None


def _amount(done: int, total: int, unit: str) -> str:
    """The bytes or tokens done and in all, in the largest unit of which the total has one, to two digits at
    least."""
    for name, size in _SCALED[unit]:
        if total >= size:
            digits = 1 if total < 10 * size else 0
            return f"{done / size:.{digits}f} of {total / size:.{digits}f} {name}"
    return f"{done} of {total} {'bytes' if unit == 'B' else unit}"
