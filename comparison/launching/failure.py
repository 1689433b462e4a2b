"""The reason of a failed launch: one line of its processes' output. Standard library only."""

from __future__ import annotations

import re
from typing import NamedTuple

from base.errors import NO_MEMORY
from comparison.launching.launch import Launched

LONGEST = 300  # characters of a quoted line

# horovodrun's "[1]<stderr>:", hosts/launch.py's "[rank 1] ".
_ORIGIN = re.compile(r"^\[(?:(?P<number>\d+)\]<std(?:out|err)>:|(?P<part>rank \d+|server \d+|scheduler)\] )")
_RANK = re.compile(r"rank (\d+): (.*)")
_LAUNCHER = re.compile(r"launch: |(mpi|prte)run (noticed|was unable)|.* exit with status code [1-9]")
_ERROR = re.compile(
    r"\w*(Error|Exception)\b|error:|terminate called|what\(\):|fatal|Killed|Segmentation|Abort", re.I
)
_KILLED = re.compile(r"signal 9\b|SIGKILL|\bKilled\b")
_TRACEBACK = "Traceback (most recent call last):"


class Line(NamedTuple):
    """`origin`: "rank 1", "server 0", ..., "" where it is not known."""

    origin: str
    text: str

    def __str__(self) -> str:
        shown = f"{self.origin}: {self.text}" if self.origin else self.text
        return shown if len(shown) <= LONGEST else shown[: LONGEST - 3] + "..."


def reason_of_exit(ended: Launched, log: str) -> tuple[str, bool]:
    """Reason why a launch did not exit with 0, in one line, and whether memory ran out."""
    line = telling_line(log)
    short = next((each for each in _lines(log) if NO_MEMORY.search(each.text)), None)
    if short is not None:
        return f"out of memory: {short}", True
    if ended.oom_kills and (ended.returncode == 128 + 9 or _KILLED.search(log)):
        return "out of memory: the kernel killed a process for want of it", True
    said = f": {line}" if line else ", and it said nothing"
    return f"exit code {ended.returncode}{said}", False


def telling_line(log: str) -> Line | None:
    """The line that says most about a failure: the first error that a rank reports, what its traceback ends
    with; else the launcher's word; else the last line that looks like an error; else the last line."""
    lines = _lines(log)
    for index, (origin, text) in enumerate(lines):
        if text.startswith("error: "):
            message = text[len("error: ") :]
            named = _RANK.match(message)
            if named:
                origin, message = f"rank {named.group(1)}", named.group(2)
            if message == _TRACEBACK:
                own = [each.text for each in lines[index + 1 :] if each.origin == lines[index].origin]
                message = _end_of_traceback(own)
            return Line(origin, message)
    for pattern in (_LAUNCHER, _ERROR):
        matching = [line for line in lines if pattern.match(line.text)]
        if matching:
            return matching[-1]
    matching = [line for line in lines if _ERROR.search(line.text)]
    return matching[-1] if matching else lines[-1] if lines else None


def _lines(log: str) -> list[Line]:
    lines = []
    for text in log.splitlines():
        match = _ORIGIN.match(text)
        origin = ""
        if match:
            origin = match.group("part") or f"rank {match.group('number')}"
            text = text[match.end() :]
        if text.strip() and not text.startswith("supervised: "):  # of hosts/supervise.py
            lines.append(Line(origin, text.rstrip()))
    return lines


def _end_of_traceback(lines: list[str]) -> str:
    """The exception's own line. MXNet's contain a traceback of C++ calls."""
    for text in lines:
        if not text.startswith(" ") and not text.endswith(_TRACEBACK):
            return text
    return "an exception"
