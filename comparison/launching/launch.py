"""One launch of a program with all its processes, from its start until nothing of it is left. Linux only.

The program runs under hosts/supervise.py: it ends everything that the program has started, daemons included,
also when this process is killed. Every process carries a marker in its environment, by which its memory is
read, and by which processes that remain are identified.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Mapping, Sequence

from base.machine import Others
from comparison.launching.memory import MARKER, PeakMemory, marked

SUPERVISE = Path(__file__).resolve().parents[2] / "hosts" / "supervise.py"
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
            `comparison.launching.memory`.
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
    cwd: str | Path | None = None,
) -> Launched:
    """Runs a program to its end.

    Args:
        argv: the program's words, a launcher's usually.
        environ: all its variables.
        log: gets what all processes write.
        limit_s: seconds after which everything is ended.
        script: the ranks' script: Python processes that run it are workers in `peak_bytes`.
        cwd: working directory; None: this process's.

    Raises:
        KeyboardInterrupt, or whatever a signal handler of the caller raises: after everything has been ended.
        OSError: `log` cannot be written.
    """
    marker = uuid.uuid4().hex
    # Its few lines in the log begin with this.
    words = [sys.executable, "-I", "-S", str(SUPERVISE), "--token", "supervised:", "--grace", str(GRACE)]
    killed_before, cpu_before, others = oom_kills(), _cpu_seconds(), Others()
    begun, start = time.time(), time.monotonic()
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [*words, "--", *argv],
            env={**environ, MARKER: marker},
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=None if cwd is None else str(cwd),
            start_new_session=True,  # a Ctrl-C at the terminal is for this process, which ends the launch
        )
    timed_out = False
    try:
        with PeakMemory(marker, script) as memory:
            try:
                process.wait(limit_s)
            except subprocess.TimeoutExpired:
                timed_out = True
    finally:
        _end(process, marker)
    cpu_s = _cpu_seconds() - cpu_before
    return Launched(
        returncode=TIMED_OUT if timed_out else process.returncode,
        seconds=time.monotonic() - start,
        timed_out=timed_out,
        peak_bytes=memory.peak_bytes,
        begun=begun,
        oom_kills=oom_kills() - killed_before,
        cpu_s=round(cpu_s, 3),
        others=round(others.shares(cpu_s)["others"], 4),
    )


def oom_kills() -> int:
    """Processes that the kernel has killed for want of memory since it started; 0 where it does not say."""
    with contextlib.suppress(OSError), open("/proc/vmstat", encoding="ascii") as file:
        for line in file:
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    return 0


def _cpu_seconds() -> float:
    """CPU time of this process, and of all that have ended and were waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _end(process: subprocess.Popen[bytes], marker: str) -> None:
    """Nothing is left running; a second Ctrl-C makes it quick."""
    assert process.stdin is not None
    try:
        process.stdin.close()  # for the supervisor: SIGTERM, and SIGKILL after the grace
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE + 10.0)
    finally:
        deadline = time.monotonic() + 10.0
        while True:
            process.poll()
            left = marked(marker)
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            if not left or time.monotonic() > deadline:
                break
            time.sleep(0.02)
        process.wait()
