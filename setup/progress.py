"""Numbered stages, a sign of life during long commands, and log files for all their output, of which a
failure shows the first error, not the last lines."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, Mapping, Sequence

from base.processes import end_group
from setup.errors import SetupError

TTY_INTERVAL = 1.0  # seconds between signs of life on a terminal, rewritten in place
PLAIN_INTERVAL = 15.0  # and otherwise, a line each
STOP_GRACE = 5.0  # seconds from SIGTERM to SIGKILL for a command that is stopped


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


class Stopped(Exception):
    """A command that was stopped because of a failure elsewhere."""


class Progress:
    """Prints ``[3/7] title`` per stage and runs commands with their output in ``log``.

    Attributes:
        stopping: set when work side by side is to end early; commands under way are then stopped.
    """

    def __init__(self, stages: int, log: Path, out: IO[str]) -> None:
        self.stages = stages
        self.log = log
        self.out = out
        self.stage_number = 0
        self.stopping = threading.Event()
        self._in_place = out.isatty()
        self._fresh_log = True

    def beside(self, name: str) -> Progress:
        """The progress of work that goes on beside other work, with the log ``setup-NAME.log``."""
        other = Progress(
            self.stages, self.log.with_name(f"{self.log.stem}-{name}{self.log.suffix}"), self.out
        )
        other.stopping = self.stopping
        other._in_place = False
        return other

    def stage(self, title: str) -> None:
        """Begins the next stage."""
        self.stage_number += 1
        self._print(f"[{self.stage_number}/{self.stages}] {title}")

    def note(self, text: str) -> None:
        """One more line about the present stage."""
        self._print(f"      {text}")

    def run(
        self,
        command: Sequence[str],
        what: str,
        env: Mapping[str, str] | None = None,
        limit: float | None = None,
    ) -> None:
        """Runs ``command`` to its end, in a process group of its own so that nothing of it outlives us.

        Args:
            what: what is being done, in a few words, for the progress line and the failure.
            env: the command's whole environment; that of this process when left out.
            limit: seconds after which the command is stopped and counts as failed; none when left out.

        Raises:
            SetupError: it failed; shows its first error and names the log file.
            Stopped: ``stopping`` was set meanwhile.
        """
        mode, self._fresh_log = "wb" if self._fresh_log else "ab", False
        with open(self.log, mode) as log:
            log.write(f"\n$ {' '.join(command)}\n".encode())
            log.flush()
            start = log.tell()
            try:
                child = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=None if env is None else dict(env),
                    start_new_session=True,
                )
            except OSError as error:
                raise SetupError(f"{what} failed: {command[0]}: {error.strerror}") from error
            try:
                code = self._wait(child, what, limit)
            finally:
                if child.poll() is None:
                    end_group(child, STOP_GRACE)
        if code is None:
            raise SetupError(f"{what} did not end within {limit:.0f} seconds.{self._excerpt(start)}")
        if code != 0:
            raise SetupError(f"{what} failed (exit code {code}).{self._excerpt(start)}")

    def _wait(self, child: subprocess.Popen[bytes], what: str, limit: float | None) -> int | None:
        """Exit code, or None when the limit passed first."""
        terminal = self._in_place
        interval = TTY_INTERVAL if terminal else PLAIN_INTERVAL
        began = time.monotonic()
        shown = began
        while True:
            try:
                code = child.wait(timeout=0.2)
                break
            except subprocess.TimeoutExpired:
                now = time.monotonic()
                if self.stopping.is_set():
                    raise Stopped(what) from None
                if limit is not None and now - began > limit:
                    code = None
                    break
                if now - shown >= interval:
                    shown = now
                    line = f"      {what} ... {now - began:.0f} s"
                    self._print(f"\r{line}" if terminal else line, end="" if terminal else "\n")
        if terminal and shown != began:
            self._print("\r\033[K", end="")
        return code

    def _excerpt(self, start: int) -> str:
        with open(self.log, "rb") as log:
            log.seek(start)
            lines = log.read().decode(errors="replace").splitlines()
        shown = [f"    {line}" for line in excerpt(lines)]
        return "\n".join([*([""] if shown else []), *shown, f"The whole log is in {self.log}."])

    def _print(self, text: str, end: str = "\n") -> None:
        self.out.write(text + end)  # at once: print() writes twice, and threads would come between
        self.out.flush()


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


def stop_on_signals() -> None:
    """Makes SIGTERM and SIGHUP end this program the orderly way, its commands included, as Ctrl-C does."""

    def end(number: int, frame: object) -> None:
        print("\nsetup: stopped by a signal; the next make goes on from here.", file=sys.stderr)
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGHUP, end)
