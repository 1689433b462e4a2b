"""Output of the parts of a run: lines, prefixes, log files. Standard library only."""

from __future__ import annotations

import collections
import os
import queue
import re
import threading
from pathlib import Path
from typing import IO, Callable

LONGEST = 1 << 20  # bytes of a line that has no end; then it is written in pieces
BACKLOG = 16 << 20
_LAST = 500  # characters of a line that is remembered
# All but tabs, line ends and colours; \xc2\x80 to \xc2\x9f are the C1 controls in UTF-8.
_CONTROLS = re.compile(rb"\x1b(?!\[[0-9;]*m)|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]|\xc2[\x80-\x9f]")


class Lines:
    """Cuts a stream of bytes into lines.

    A carriage return ends a line, too, and is kept: each state of a progress bar is a line.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Takes the next bytes and returns the lines that they complete, with their ends."""
        lines = (self._rest + data).splitlines(keepends=True)
        # The last one has no end yet, or one that a newline may follow.
        self._rest = lines.pop() if lines and not lines[-1].endswith(b"\n") else b""
        if len(self._rest) > LONGEST:
            lines.append(self._rest + b"\n")
            self._rest = b""
        return lines

    def put_back(self, begun: bytes) -> None:
        """Takes the beginning of a line that goes on with the next bytes."""
        self._rest = begun + self._rest

    def finish(self) -> list[bytes]:
        """Returns the last line if it has no end, with one added."""
        rest, self._rest = self._rest, b""
        return [rest + b"\n"] if rest else []


def harmless(line: bytes) -> bytes:
    """A line with a question mark for each control character that a terminal would obey.

    A part writes what libraries report, and these report what strangers have sent to their ports.
    """
    return _CONTROLS.sub(b"?", line)


class Screen:
    """Writes whole lines with a prefix to a stream that others may share.

    A thread of its own writes them: a reader that stalls must not keep the launcher from its work. BACKLOG
    bytes wait for the reader, further lines are dropped. `last`: the last two lines with their prefixes.
    `say` shows a message when the stream fails or lines have been dropped; by default `self.say`.
    """

    def __init__(self, stream: IO[bytes], say: Callable[[str], None] | None = None):
        self._stream: IO[bytes] | None = stream
        self._say = say or self.say
        self.last: collections.deque[str] = collections.deque(maxlen=2)
        self._terminal = stream.isatty()
        self._bar = False  # the cursor stands at the beginning of a progress bar
        self._lines: queue.SimpleQueue[tuple[str, bytes] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._backlog = 0  # bytes
        self._dropped = 0  # lines
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def say(self, text: str) -> None:
        """Writes a line of the launcher's own."""
        self._lines.put(("launch: ", f"{text}\n".encode(errors="surrogateescape")))  # bytes of a path

    def write(self, prefix: str, line: bytes) -> None:
        """Writes a line, which has its end. Returns at once."""
        with self._lock:
            if self._backlog > BACKLOG:
                self._dropped += 1
                return
            self._backlog += len(line)
            dropped, self._dropped = self._dropped, 0
        if dropped:
            self._say(f"{dropped} lines are not shown: what they were written to did not take them in time")
        self._lines.put((prefix, line))

    def finish(self, seconds: float) -> None:
        """Waits until all is written, at most so long."""
        self._lines.put(None)
        self._thread.join(seconds)

    def _work(self) -> None:
        for prefix, line in iter(self._lines.get, None):
            self.last.append(f"{prefix}{line.decode('utf-8', 'replace').strip()}")
            self._write(prefix, line)
            if prefix != "launch: ":
                with self._lock:
                    self._backlog -= len(line)

    def _write(self, prefix: str, line: bytes) -> None:
        if self._stream is None:
            return
        text = prefix.encode() + line
        if self._terminal and self._bar:
            text = b"\x1b[K" + text  # the bar is longer than what is written over it
        self._bar = line.endswith(b"\r")
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError as error:  # its reader is gone, or a disk is full: no reason to end a training run
            name, self._stream = getattr(self._stream, "name", "an output stream"), None
            self._say(f"{name}: {error.strerror}; the run goes on and its lines are not shown there any more")


class Output:
    """Destinations of all lines of a run's parts, by the parts' names. `last`: the last one of each on
    standard error, cut to a readable length.

    `screens`: for standard output and standard error; None: they are not shown. `log_dir`: folder for each
    part's lines, without prefix. `say`: shows a line of the launcher's own.
    """

    def __init__(
        self, screens: tuple[Screen, Screen] | None, log_dir: Path | None, say: Callable[[str], None]
    ):
        self._screens, self._log_dir, self.say = screens, log_dir, say
        self._logs: dict[tuple[str, int], int | None] = {}  # descriptors; None: it could not be written
        self.last: dict[str, str] = {}

    def open(self, name: str) -> None:
        """Opens a part's log files, if there are to be any. Raises OSError when they cannot be made."""
        for which in (0, 1) if self._log_dir is not None else ():
            if (name, which) not in self._logs:
                path = self._log(name, which)
                path.parent.mkdir(parents=True, exist_ok=True)
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                self._logs[name, which] = os.open(path, flags, 0o666)

    def write(self, name: str, which: int, line: bytes) -> None:
        """Takes a line, which has its end, of standard output (`which` 0) or standard error (1)."""
        if which == 1:
            text = line.decode("utf-8", "replace").strip()
            if text:
                self.last[name] = text[:_LAST]
        if self._screens is not None:
            self._screens[which].write(f"[{name}] ", line)
        self.open(name)
        log = self._logs.get((name, which))
        if log is None:
            return
        try:
            while line:
                line = line[os.write(log, line) :]
        except OSError as error:
            self.say(f"{self._log(name, which)}: {error.strerror}; the run goes on without this file")
            os.close(log)
            self._logs[name, which] = None

    def _log(self, name: str, which: int) -> Path:
        assert self._log_dir is not None
        return self._log_dir / name.replace(" ", ".") / ("stdout", "stderr")[which]

    def close(self) -> None:
        """Closes the log files."""
        for log in self._logs.values():
            if log is not None:
                os.close(log)
        self._logs.clear()
