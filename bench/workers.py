"""The parent's side of benchmarks: starts workers, has them take steps, and ends them whatever happens."""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from types import FrameType, TracebackType
from typing import Any, Callable, Iterable, Mapping, NoReturn, Sequence

from base.processes import kill_group
from bench.launches import ROOT

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


class Contestants:
    """Workers of a measurement, by key. One that fails is left out from then on, and named; so is one whose
    loss is not finite, since its seconds say nothing.

    Use it as a context manager, as a worker.

    Attributes:
        facts: what each worker states about itself.
        left_out: why a worker is left out.
        failed: whether one began and did not come through.
    """

    def __init__(self, titles: Mapping[str, str]):
        self.facts: dict[str, dict[str, Any]] = {}
        self.left_out: dict[str, str] = {}
        self.failed = False
        self._titles = titles
        self._workers: dict[str, Worker] = {}

    def __enter__(self) -> Contestants:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers.values():
            worker.__exit__(kind, error, trace)

    @property
    def keys(self) -> list[str]:
        """Those that take part."""
        return list(self._workers)

    def start(self, key: str, name: str, command: Sequence[str], environ: Mapping[str, str]) -> None:
        """Starts a worker in this project's folder; returns when it is ready or left out."""
        self._workers[key] = worker = Worker(name, command, str(ROOT), environ)
        facts = self._guarded(key, worker.wait_until_ready)
        if facts is not None:
            self.facts[key] = facts

    def step(self, key: str, limit: float = STEP_LIMIT, name: str = "") -> dict[str, Any] | None:
        """A worker's answer to one request; None where it is left out."""
        if key not in self._workers:
            return None
        worker = self._workers[key]

        def step() -> dict[str, Any]:
            answer = worker.step(limit, name)
            if answer["loss"] is not None and not math.isfinite(answer["loss"]):
                raise WorkerError(f"{worker.name}: the loss is {answer['loss']}")
            return answer

        return self._guarded(key, step)

    def end(self) -> None:
        """Asks every worker for its closing report, which joins its facts."""
        for key in self.keys:
            report = self._guarded(key, self._workers[key].end)
            self.facts[key].update(report or {})

    def in_turns(self, number: int) -> list[str]:
        """The keys in the order of a round: nobody is always the next after the same one."""
        keys = self.keys
        first = number % max(1, len(keys))
        return keys[first:] + keys[:first]

    def cpu_seconds(self, keys: Iterable[str]) -> float:
        """CPU time of these workers so far."""
        return sum(self._workers[key].cpu_seconds() for key in keys)

    def _guarded(self, key: str, action: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
        try:
            return action()
        except (Unsupported, WorkerError) as error:
            self.failed |= isinstance(error, WorkerError)
            self.left_out[key] = str(error)
            note(f"  {self._titles[key]}: {error}")
            self._workers.pop(key).__exit__(None, None, None)
            return None


def note(text: str) -> None:
    """Shows progress on standard error."""
    print(text, file=sys.stderr, flush=True)
