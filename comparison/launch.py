"""One launch of a program with all its processes, from its start until nothing of it is left: its memory, and
the reason of its failure. Linux only (/proc). Standard library only.

The program runs under hosts/supervise.py: it ends everything that the program has started, daemons included,
also when this process is killed. Every process carries a marker in its environment, by which its memory is
read, and by which processes that remain are identified.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Mapping, NamedTuple, Sequence

from base.errors import NO_MEMORY
from base.machine import Others
from base.memory import peak_of
from base.processes import running

SUPERVISE = Path(__file__).resolve().parents[1] / "hosts" / "supervise.py"
GRACE = 5.0  # seconds from SIGTERM to SIGKILL
TIMED_OUT = 124  # as coreutils' timeout gives it


@dataclass(frozen=True)
class Launched:
    """End of a launch.

    Attributes:
        returncode: the program's; 128 + a signal's number if that ended it, 124 at the time limit.
        seconds: from its start to the end of its last process.
        begun: Unix time of the start, in seconds.
        peak_bytes: greatest resident memory of one process by role, those of `role_of` in
            `comparison.launch`.
        oom_kills: processes that the kernel has killed for want of memory meanwhile, on the whole machine.
        cpu_s: CPU time of its processes on this host, and of this one meanwhile.
        others: share of this machine's CPU time that all other processes took meanwhile.
    """

    returncode: int
    seconds: float
    timed_out: bool
    peak_bytes: Mapping[str, int]
    begun: float = 0.0
    oom_kills: int = 0
    cpu_s: float = 0.0
    others: float = 0.0


def launch(
    argv: Sequence[str],
    environ: Mapping[str, str],
    log: Path,
    limit_s: float,
    script: str | Path | None = None,
) -> Launched:
    """Runs a program to its end.

    Args:
        argv: the program's words, a launcher's usually.
        environ: all its variables.
        log: gets what all processes write.
        limit_s: seconds after which everything is ended.
        script: the ranks' script: Python processes that run it are workers in `peak_bytes`.

    Raises:
        KeyboardInterrupt, or whatever a signal handler of the caller raises: after everything has been ended.
        OSError: `log` cannot be written.
    """
    marker = uuid.uuid4().hex
    # Its few lines in the log begin with this.
    words = [sys.executable, "-I", "-S", str(SUPERVISE), "--token", "supervised:", "--grace", str(GRACE)]
    killed_before, others = oom_kills(), Others()
    begun, start = time.time(), time.monotonic()
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [*words, "--", *argv],
            env={**environ, MARKER: marker},
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a Ctrl-C at the terminal is for this process, which ends the launch
        )
    peaks: dict[str, int] = {}
    timed_out, stop = False, threading.Event()
    memory = threading.Thread(target=watch, args=(marker, script, peaks, stop), daemon=True)
    try:
        memory.start()
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        timed_out = True
    finally:
        stop.set()
        _end(process, marker)
    memory.join()
    return Launched(
        returncode=TIMED_OUT if timed_out else process.returncode,
        seconds=time.monotonic() - start,
        timed_out=timed_out,
        peak_bytes=peaks,
        begun=begun,
        oom_kills=oom_kills() - killed_before,
        cpu_s=round(others.own_seconds(), 3),
        others=round(others.shares()["others"], 4),
    )


def oom_kills() -> int:
    """Processes that the kernel has killed for want of memory since it started; 0 where it does not say."""
    with contextlib.suppress(OSError):
        counts = dict(line.split() for line in Path("/proc/vmstat").read_text("ascii").splitlines())
        return int(counts.get("oom_kill", 0))
    return 0


def _end(process: subprocess.Popen[bytes], marker: str) -> None:
    """Nothing is left running; a second Ctrl-C makes it quick."""
    assert process.stdin is not None
    try:
        process.stdin.close()  # for the supervisor: SIGTERM, and SIGKILL after the grace
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE + 10.0)
    finally:
        deadline = time.monotonic() + 10.0
        while (left := marked(marker)) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        process.wait()


MARKER = "COMPARISON_LAUNCH"  # in the environment of every process of a launch
WORKER, SERVER, SCHEDULER = "worker", "server", "scheduler"
# Seconds; a peak is the kernel's own, so that only the last moments of a process can be missed.
INTERVAL = 0.2


def watch(marker: str, script: str | Path | None, peaks: dict[str, int], stop: threading.Event) -> None:
    """Keeps in `peaks`, until `stop`, the greatest resident memory of one process of each role of a launch.

    Args:
        marker: the value of MARKER in their environment.
        script: what the workers run; see `role_of`.
    """
    strangers: set[int] = set()  # processes that do not belong here are not looked at again
    while not stop.wait(INTERVAL):
        living = {int(name) for name in os.listdir("/proc") if name.isdigit()}
        strangers &= living
        for pid in living - strangers:
            variables = _read(pid, "environ")
            if variables is None:
                continue
            if f"{MARKER}={marker}" not in variables:
                strangers.add(pid)
                continue
            role = role_of(_read(pid, "cmdline") or [], variables, None if script is None else str(script))
            if role is not None:
                peaks[role] = max(peaks.get(role, 0), peak_of(pid))


def role_of(words: list[str], variables: list[str], script: str | None) -> str | None:
    """Role of a process in a launch; None: it only starts or watches others.

    Args:
        words: of its command line.
        variables: its environment, NAME=VALUE.
        script: a Python process that runs this file is a worker; None: there are none.
    """
    if not words or not os.path.basename(words[0]).startswith("python"):
        return None
    if script is not None and words[1:2] == [script]:
        return WORKER
    if any(word.endswith("supervise.py") for word in words):  # it has its part's environment
        return None
    for role in (SERVER, SCHEDULER):
        if f"DMLC_ROLE={role}" in variables:
            return role
    return None


def marked(marker: str) -> list[int]:
    """The living processes of a launch."""
    return [each.pid for each in running() if each.variables.get(MARKER) == marker]


def _read(pid: int, name: str) -> list[str] | None:
    """The words of a file whose words end with a zero byte; None for a process that is gone or another
    user's."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read().decode("utf-8", "replace").split("\0")
    except OSError:
        return None


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
                # The exception's own line. MXNet's contain a traceback of C++ calls.
                own = [each.text for each in lines[index + 1 :] if each.origin == lines[index].origin]
                ends = (each for each in own if not each.startswith(" ") and not each.endswith(_TRACEBACK))
                message = next(ends, "an exception")
            return Line(origin, message)
    for found in (_LAUNCHER.match, _ERROR.match, _ERROR.search):
        matching = [line for line in lines if found(line.text)]
        if matching:
            return matching[-1]
    return lines[-1] if lines else None


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
