"""Peak memory of the processes of a launch, by role. Linux only (/proc). Standard library only."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Iterator

MARKER = "COMPARISON_LAUNCH"  # in the environment of every process of a launch
WORKER, SERVER, SCHEDULER = "worker", "server", "scheduler"
ROLES = (WORKER, SERVER, SCHEDULER)
INTERVAL = (
    0.2  # seconds; a peak is the kernel's own, so that only the last moments of a process can be missed
)


class PeakMemory:
    """Watches the processes of a launch in a thread while the block runs.

    Args:
        marker: the value of MARKER in their environment.
        script: what the workers run; see `role_of`.
    """

    def __init__(self, marker: str, script: str | Path | None):
        self._marker, self._script = marker, None if script is None else str(script)
        self._peaks: dict[str, int] = {}
        self._strangers: set[int] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peak memory", daemon=True)

    @property
    def peak_bytes(self) -> dict[str, int]:
        """Role -> greatest resident memory of one of its processes up to now."""
        return dict(self._peaks)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(INTERVAL):
            self.sample()

    def sample(self) -> None:
        """Looks at all processes once. Those that do not belong here are not looked at again."""
        living = set(_processes())
        self._strangers &= living
        for pid in living - self._strangers:
            variables = _read(pid, "environ")
            if variables is None:
                continue
            if f"{MARKER}={self._marker}" not in variables:
                self._strangers.add(pid)
                continue
            role = role_of(_read(pid, "cmdline") or [], variables, self._script)
            if role is not None:
                self._peaks[role] = max(self._peaks.get(role, 0), peak_of(pid))


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
    """The living processes of a launch, without zombies."""
    wanted = f"{MARKER}={marker}"
    return [pid for pid in _processes() if wanted in (_read(pid, "environ") or ()) and not _is_dead(pid)]


def peak_of(pid: int) -> int:
    """The greatest resident memory of a process in bytes (VmHWM); 0 when it has ended."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def _processes() -> Iterator[int]:
    own = os.getpid()
    return (int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != own)


def _read(pid: int, name: str) -> list[str] | None:
    """The words of a file whose words end with a zero byte; None for a process that is gone or another
    user's."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read().decode("utf-8", "replace").split("\0")
    except OSError:
        return None


def _is_dead(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except (OSError, IndexError):
        return True
