"""Whether BytePS's scheduler is still there. Ranks need it when they join and when they close; in between
they would not miss it, and would work for days towards an end that cannot come. Standard library only."""

from __future__ import annotations

import time
from typing import Callable, Mapping

from comm.watch.heartbeat_wire import StoppableThread, readable
from comm.watch.run_processes import scheduler_address, scheduler_state


class SchedulerWatch:
    """A thread that connects to the scheduler every `interval` seconds. When nobody has answered for
    `timeout` seconds it calls `on_loss(text)`, once, and ends."""

    def __init__(
        self, environ: Mapping[str, str], timeout: float, interval: float, on_loss: Callable[[str], None]
    ):
        self._environ, self._timeout, self._interval, self._on_loss = environ, timeout, interval, on_loss
        self._thread = StoppableThread(self._run)
        self._thread.start()

    def close(self) -> None:
        """End the thread; takes at most as long as one attempt to connect."""
        self._thread.stop()

    def _run(self) -> None:
        answered = turn = time.monotonic()
        while not self._thread.stopping:
            state = scheduler_state(self._environ, min(2.0, self._timeout / 4))
            now = time.monotonic()
            if state == "answers" or now - turn > self._timeout / 2:  # or this process was stopped or starved
                answered = now
            elif now - answered > self._timeout:
                where = scheduler_address(self._environ)
                self._on_loss(f"the BytePS scheduler at {where} {state}, for {self._timeout:g} s now")
                return
            turn = now
            readable([self._thread.wakeup], self._interval)
