"""Signals that the launcher receives, as events among others. Standard library only."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from typing import TypeVar

FORWARDED = {signal.SIGINT: "INT", signal.SIGTERM: "TERM", signal.SIGUSR1: "USR1", signal.SIGHUP: "TERM"}
STOPPED = (128 + signal.SIGINT, 128 + signal.SIGTERM)  # exit codes: saved, because somebody wanted the end
S = TypeVar("S", bound="Signals")


def code_of(number: signal.Signals) -> int:
    """Exit code of ranks that one of FORWARDED has stopped (training/train.py), and of their launcher."""
    return 128 + (signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)


class Signals:
    """A file descriptor that becomes readable when a signal arrives. Use it as a context manager, once in a
    process: from then on none of FORWARDED ends the process by itself."""

    def __enter__(self: S) -> S:
        self._reader, self._writer = os.pipe()
        for end in (self._reader, self._writer):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._writer)
        for number in (signal.SIGCHLD, *FORWARDED):
            if signal.getsignal(number) != signal.SIG_IGN or number != signal.SIGHUP:  # nohup ignores SIGHUP
                signal.signal(number, lambda *_: None)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(-1)
        os.close(self._reader)
        os.close(self._writer)

    def fileno(self) -> int:
        """The descriptor, for a selector."""
        return self._reader

    def read(self) -> list[signal.Signals]:
        """Signals that have arrived since the last call; returns at once."""
        with contextlib.suppress(BlockingIOError):
            return [signal.Signals(number) for number in os.read(self._reader, 512)]
        return []

    def wait(self, seconds: float) -> signal.Signals | None:
        """The first of FORWARDED that arrives within so many seconds, or None."""
        deadline = time.monotonic() + seconds
        while True:
            for number in self.read():
                if number in FORWARDED:
                    return number
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            select.select([self._reader], [], [], left)
