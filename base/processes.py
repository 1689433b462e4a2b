"""Processes of this machine; child processes that end as a whole: by a signal, at a time limit, or with the
process that started them.

Linux only. Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from pathlib import Path
from typing import Any, Iterator, Mapping, NamedTuple, Sequence

GRACE = 10.0  # seconds from SIGTERM to SIGKILL
_PR_SET_PDEATHSIG = 1


class Running(NamedTuple):
    """A process. `state`: its letter, T where a signal has stopped it. `words` and `variables`: as it was
    started; empty where they are another user's."""

    pid: int
    parent: int
    state: str
    words: list[str]
    variables: dict[str, str]


def running(proc: Path = Path("/proc")) -> Iterator[Running]:
    """All living processes that this one sees, by process id."""
    for pid in sorted(int(entry.name) for entry in proc.iterdir() if entry.name.isdigit()):
        entry = proc / str(pid)
        with contextlib.suppress(OSError, ValueError):  # it has ended
            # The command's name is in parentheses and may contain anything.
            state, parent = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
            if state not in "ZX":
                variables = (word.partition("=")[::2] for word in _words(entry / "environ"))
                yield Running(pid, int(parent), state, _words(entry / "cmdline"), dict(variables))


def _words(path: Path) -> list[str]:
    try:
        return os.fsdecode(path.read_bytes()).split("\0")
    except OSError:
        return []


def signal_name(number: int) -> str:
    """A signal's name; its number where Python has none, as for most real-time signals."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def run_in_session(command: Sequence[str], environ: Mapping[str, str], limit: float) -> tuple[int, str]:
    """Runs a program in a session of its own, so that signals of the terminal do not reach it.

    Returns:
        Its exit code, and its standard output and error together.

    Raises:
        subprocess.TimeoutExpired: it ran for `limit` seconds. After this and any other exception, such as
            KeyboardInterrupt, its process group has been ended.
    """
    with subprocess.Popen(
        command,
        env=dict(environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as child:
        try:
            text, _ = child.communicate(timeout=limit)
        except BaseException:
            end_group(child)
            raise
    return child.returncode, text


def end_group(child: subprocess.Popen[Any], grace: float = GRACE) -> None:
    """Ends the process group that `child` leads: SIGTERM, on which launchers such as mpirun end their ranks,
    and SIGKILL after `grace` seconds for what is left of it. Returns when the child has ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(grace)
    kill_group(child)


def kill_group(child: subprocess.Popen[Any]) -> None:
    """Kills the process group that `child` leads, also one that has outlived it. Returns when the child has
    ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def end_with_parent(parent: int) -> None:
    """Lets the kernel kill this process when its parent, the process `parent`, ends. Exits at once if that
    has happened before."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
