"""The parent's side of benchmarks: starts workers, has them take steps, and ends them whatever happens."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from types import FrameType, TracebackType
from typing import Any, Mapping, NoReturn, Sequence

from base.processes import kill_group

SET_UP_LIMIT = 300.0  # seconds
STEP_LIMIT = 300.0
END_LIMIT = 20.0
TICKS = os.sysconf("SC_CLK_TCK")


class WorkerError(Exception):
    """A worker ended, failed or did not answer in time; the message has the last lines it wrote."""


class Unsupported(Exception):
    """A worker says that it cannot do this work here."""


def end_at(*numbers: int) -> None:
    """Has these signals end this process by SystemExit, and with it all that its `with` blocks hold."""
    for number in numbers:
        signal.signal(number, _leave)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


class Worker:
    """A process that answers lines (bench/serve.py), in a process group of its own.

    Use it as a context manager: when the block is left it is gone, with all that it has started. A worker
    whose parent is killed reads the end of its input and ends.
    """

    def __init__(self, name: str, command: Sequence[str], cwd: str, environ: Mapping[str, str]):
        self.name = name
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=cwd,
            env=dict(environ),
            start_new_session=True,
        )
        self._unread = b""

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        kill_group(self._process)
        for stream in (self._process.stdin, self._process.stdout, self._log):
            with contextlib.suppress(OSError):  # what was still to be written to a worker that has ended
                stream.close()  # type: ignore[union-attr]

    def wait_until_ready(self, limit: float = SET_UP_LIMIT) -> dict[str, Any]:
        """The facts that the worker states about itself; raises Unsupported or WorkerError."""
        answer = self._read(limit)
        if "unsupported" in answer:
            raise Unsupported(answer["unsupported"])
        facts: dict[str, Any] = answer["ready"]
        return facts

    def step(self, limit: float = STEP_LIMIT, name: str = "") -> dict[str, Any]:
        """One step, of a worker with several that of this name: {"seconds": ..., "loss": ...}."""
        return self._ask(f"step {name}".rstrip(), limit)

    def end(self, limit: float = END_LIMIT) -> dict[str, Any]:
        """Asks for the closing report: {"peak_bytes": ...}."""
        return self._ask("end", limit)

    def cpu_seconds(self) -> float:
        """CPU time of the worker so far; of a worker that has ended, 0."""
        try:
            with open(f"/proc/{self._process.pid}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / TICKS

    def _ask(self, word: str, limit: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(word.encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise self._failure("ended") from None
        return self._read(limit)

    def _read(self, limit: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        descriptor, end = self._process.stdout.fileno(), time.monotonic() + limit
        while b"\n" not in self._unread:
            left = end - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                raise self._failure(f"did not answer within {limit:.0f} s")
            data = os.read(descriptor, 1 << 16)
            if not data:
                raise self._failure("ended")
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _failure(self, what: str) -> WorkerError:
        try:
            code = self._process.wait(1.0) if what == "ended" else None
        except subprocess.TimeoutExpired:
            code = None
        if code is not None and code < 0:
            what += f" by signal {-code}" + (": is the memory exhausted?" if code == -signal.SIGKILL else "")
        elif code is not None:
            what += f" with code {code}"
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - 1500))
        said = self._log.read().decode(errors="replace").strip()
        return WorkerError(f"{self.name} {what}" + (f":\n{said}" if said else ""))
