"""A part that has been started: its process, what it writes, how it has ended. Standard library only."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from typing import Container

from hosts.output import Lines, LogFile, Screen
from hosts.parts import Part

DRAIN = 2.0  # seconds that output is still read after the end, where somebody else keeps the pipe open


class RunningPart:
    """`process` is hosts/supervise.py or the ssh client that runs it elsewhere.

    Attributes:
        connected: the supervisor has reported.
        stopped: seconds that the part had been stopped (state T) when it was killed for it, or None.
    """

    def __init__(
        self,
        part: Part,
        process: subprocess.Popen[bytes],
        selector: selectors.BaseSelector,
        token: str,
        screens: tuple[Screen, Screen] | None,
        logs: tuple[LogFile, LogFile] | None,
    ):
        assert process.stdout is not None and process.stderr is not None
        self.part, self.process = part, process
        self.connected = False
        self.stopped: float | None = None
        self._selector, self._token = selector, token.encode() + b" "
        self._screens, self._logs = screens, logs
        self._report: tuple[str, str] | None = None
        self._drain_until: float | None = None
        self._pipes = {process.stdout.fileno(): (0, Lines()), process.stderr.fileno(): (1, Lines())}
        for pipe in self._pipes:
            os.set_blocking(pipe, False)
            selector.register(pipe, selectors.EVENT_READ, lambda pipe=pipe: self._read(pipe))

    def tell(self, order: str) -> None:
        """Send a signal's name, or END, to the supervisor."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended
            os.write(self.process.stdin.fileno(), f"{order}\n".encode())

    def kill_supervisor(self) -> None:
        """The kernel then kills a local part; a remote one is ended by its own supervisor."""
        self.process.kill()

    def has_ended(self) -> bool:
        """Whether the process has ended and all that it wrote has been read."""
        if self.process.poll() is None:
            return False
        now = time.monotonic()
        self._drain_until = self._drain_until or now + DRAIN
        if self._pipes and now < self._drain_until:
            return False
        for pipe in list(self._pipes):
            self._close(pipe)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()
        for log in self._logs or ():
            log.close()
        return True

    @property
    def exit_code(self) -> int:
        """As a shell gives it: 128 + the number of the signal that ended the part. Never 0 without the
        supervisor's word for it."""
        kind, value = self._report or ("lost", "")
        if kind in ("exit", "signal"):
            return int(value) + (128 if kind == "signal" else 0)
        if kind == "stopped":
            return 128 + signal.SIGSTOP
        code = self.process.returncode
        return 128 - code if code < 0 else code or 1

    @property
    def killed(self) -> bool:
        """Whether a signal ended it that it had no handler for."""
        return self._report is not None and self._report[0] == "signal"

    def describe(self, here: Container[str]) -> str:
        """Who it is and how it ended, as one sentence without its full stop. The host is named unless it is
        one of those `here`."""
        kind, value = self._report or ("lost", "")
        where = "" if self.part.host in here else f" on {self.part.host}"
        who = f"{self.part.name}{where}"
        if kind == "exit":
            return f"{who} exited with {value}"
        if kind == "signal":
            return f"{who} was killed by {signal.Signals(int(value)).name}"
        if kind == "stopped":
            return f"{who} had been stopped for {float(value):.0f} s by a signal and was killed"
        if kind == "failed":
            return f"{who} could not be started: {value}"
        code = self.process.returncode
        how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        if where and not self.connected:
            return f"{who} could not be reached: the remote shell {how}"
        return f"{who} was lost: its {'remote shell' if where else 'supervisor'} {how}"

    def _read(self, pipe: int) -> None:
        try:
            data = os.read(pipe, 1 << 16)
        except BlockingIOError:
            return
        if not data:
            self._close(pipe)
            return
        for line in self._pipes[pipe][1].feed(data):
            self._line(self._pipes[pipe][0], line)

    def _close(self, pipe: int) -> None:
        self._selector.unregister(pipe)
        which, lines = self._pipes.pop(pipe)
        for line in lines.finish():
            self._line(which, line)

    def _line(self, which: int, line: bytes) -> None:
        if which == 1 and self._token in line:
            line, _, report = line.partition(self._token)
            kind, _, value = report.decode("utf-8", "replace").strip().partition(" ")
            if kind == "connected":
                self.connected = True
            else:
                self._report = (kind, value)
                self.stopped = float(value) if kind == "stopped" else None
            if not line:
                return
            line += b"\n"  # the part had left this line without an end
        if self._screens is not None:
            self._screens[which].write(f"[{self.part.name}] ", line)
        if self._logs is not None:
            self._logs[which].write(line)
