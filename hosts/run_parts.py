"""Runs the parts of a plan to their end, and takes all of them down when one fails. Standard library only.

One thread, one loop: it reads what the parts write, and waits for their ends, for signals and for its own
time limits. The order of events is therefore the order in which they were seen, and the first part that fails
is the culprit; those that fail because of it come later.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import signal
import subprocess
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Sequence

from hosts.output import LogFile, Screen
from hosts.part_command import Access
from hosts.parts import Part
from hosts.running_part import RunningPart

FORWARDED = {signal.SIGINT: "INT", signal.SIGTERM: "TERM", signal.SIGUSR1: "USR1", signal.SIGHUP: "TERM"}
ORDERS = {name: signal.Signals[f"SIG{name}"] for name in ("INT", "TERM", "USR1")}
# What a rank exits with after it has obeyed (training/run.py): 130 after SIGINT, else 143.
OBEYED = (128 + signal.SIGINT, 128 + signal.SIGTERM)
KILL_AFTER = 5.0  # seconds from SIGTERM to SIGKILL for the parts of a run that has failed
GIVE_UP_AFTER = 5.0  # seconds from there until supervisors and ssh clients are killed themselves
CONNECTING = 4  # sshd by default refuses some of more than 10 connections that are not yet logged in


@dataclass(frozen=True)
class Limits:
    """Seconds: for ranks to stop after a signal, for servers to end after the last rank, for a part to stay
    stopped (state T)."""

    grace: float = 60.0
    servers: float = 30.0
    stopped: float = 60.0


class Run:
    """Start with `run`, once."""

    def __init__(
        self,
        parts: Sequence[Part],
        access: Access,
        limits: Limits,
        screens: tuple[Screen, Screen] | None,
        log_dir: Path | None,
        say: Callable[[str], None],
    ):
        """`screens`: where the lines of standard output and error are shown, None for nowhere. `log_dir`:
        where each part's lines go without prefix. `say`: shows a line of the launcher's own."""
        self._access, self._limits, self._screens, self._log_dir = access, limits, screens, log_dir
        self._say = say
        self._token = f"supervise-{secrets.token_hex(8)}"
        self._pending = list(parts)
        self._running: list[RunningPart] = []
        self._ended: list[RunningPart] = []
        self._selector = selectors.DefaultSelector()
        self._culprit: RunningPart | None = None
        self._asked: signal.Signals | None = None  # the signal that asked the ranks to stop
        self._interrupts = 0
        self._obeyed = 0  # exit code of the first rank that obeyed it
        # Then perhaps "stopping", "closing" (the ranks have ended), "failed", "killed".
        self._phase = "running"
        self._deadline: float | None = None

    def run(self) -> int:
        """Returns the exit code of the run: the culprit's if a part failed, 143 or 130 if the ranks obeyed a
        signal, else 0. Raises OSError when a part cannot be started or a log file cannot be made."""
        wakeup, writer = self._listen()
        try:
            while self._pending or self._running:
                self._start_some()
                timeout = 1.0 if self._deadline is None else max(0.0, self._deadline - time.monotonic())
                for key, _ in self._selector.select(min(1.0, timeout)):
                    if key.fileobj == wakeup:
                        for number in os.read(wakeup, 512):
                            self._signalled(signal.Signals(number))
                    else:
                        key.data()
                self._collect_ended()
                if self._deadline is not None and time.monotonic() >= self._deadline:
                    self._too_late()
        finally:
            self._abandon()
            signal.set_wakeup_fd(-1)
            self._selector.close()
            os.close(wakeup)
            os.close(writer)
        return self._conclude()

    def _listen(self) -> tuple[int, int]:
        """Ends of a pipe: a signal that arrives writes its number into it."""
        reader, writer = os.pipe()
        for end in (reader, writer):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(writer)
        for number in (signal.SIGCHLD, *FORWARDED):
            if signal.getsignal(number) != signal.SIG_IGN or number != signal.SIGHUP:  # nohup ignores SIGHUP
                signal.signal(number, lambda *_: None)
        self._selector.register(reader, selectors.EVENT_READ)
        return reader, writer

    def _start_some(self) -> None:
        """Start parts, of each host only so many at a time: until they have reported."""
        connecting = Counter(one.part.host for one in self._running if not one.connected)
        waiting = []
        for part in self._pending:
            if part.host not in self._access.here and connecting[part.host] >= CONNECTING:
                waiting.append(part)
                continue
            connecting[part.host] += 1
            self._start(part)
        self._pending = waiting

    def _start(self, part: Part) -> None:
        options = ["--token", self._token, "--grace", str(KILL_AFTER)]
        options += ["--stopped_timeout", str(self._limits.stopped)]
        argv, environment = self._access.start(part, options)
        logs = None
        if self._log_dir is not None:
            directory = self._log_dir / part.directory
            logs = (LogFile(directory / "stdout", self._say), LogFile(directory / "stderr", self._say))
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # a Ctrl-C at the terminal is for the launcher, which passes it on
        )
        self._running.append(RunningPart(part, process, self._selector, self._token, self._screens, logs))

    def _collect_ended(self) -> None:
        for one in [one for one in self._running if one.has_ended()]:
            self._running.remove(one)
            self._ended.append(one)
            self._judge(one)
        if not self._pending and not self._names("rank") and self._phase in ("running", "stopping"):
            self._enter("closing", self._limits.servers)

    def _judge(self, one: RunningPart) -> None:
        """What the end of a part means for the run."""
        if self._phase in ("failed", "killed"):
            if one.stopped is not None and self._culprit is not None and self._culprit.stopped is None:
                self._culprit = one  # it was stopped before the others failed for want of it
            return
        code, order = one.exit_code, None
        if self._asked is not None and one.part.role == "rank":
            order = ORDERS[FORWARDED[self._asked]]
        if order is not None and code in OBEYED and not one.killed:
            self._obeyed = self._obeyed or code
        elif order is not None and one.killed and code == 128 + order:
            # It was not listening yet. The others may wait for it for ever.
            self._obeyed = self._obeyed or code
            self._end_all()
        elif code != 0:
            self._culprit = one
            self._end_all()

    def _end_all(self) -> None:
        """SIGTERM for all, SIGKILL after KILL_AFTER seconds: the supervisors see to it."""
        self._pending = []
        self._tell("END", self._running)
        self._enter("failed", KILL_AFTER + GIVE_UP_AFTER)

    def _signalled(self, number: signal.Signals) -> None:
        if number not in FORWARDED or self._phase == "killed":
            return
        self._interrupts += number == signal.SIGINT
        self._asked = self._asked or number
        if self._interrupts > 1 or (self._phase == "failed" and self._interrupts):
            self._kill_all(f"interrupted; killed {self._names()}")
        elif self._pending:  # there is no training to stop yet
            self._obeyed = 128 + ORDERS[FORWARDED[number]]
            self._end_all()
        elif self._phase == "closing":
            self._end_all()
        elif self._phase in ("running", "stopping"):
            self._tell(FORWARDED[number], [one for one in self._running if one.part.role == "rank"])
            if self._phase == "running":
                self._enter("stopping", self._limits.grace)

    def _too_late(self) -> None:
        """The time limit of a phase has passed."""
        if self._phase == "stopping":
            assert self._asked is not None
            seconds = f"{self._limits.grace:g} s after {self._asked.name}"
            self._kill_all(f"{self._names('rank')} had not ended {seconds}; killed")
        elif self._phase == "closing":
            self._say(f"{self._names()} had not ended {self._limits.servers:g} s after the last rank; ended")
            self._end_all()
        elif self._phase == "failed":
            self._kill_all(f"{self._names()} could not be ended; killed")
        else:  # a supervisor that does not answer, a connection that hangs
            for one in self._running:
                one.kill_supervisor()
            self._deadline = time.monotonic() + 1.0

    def _kill_all(self, why: str) -> None:
        self._say(why)
        self._pending = []
        self._tell("KILL", self._running)
        self._enter("killed", GIVE_UP_AFTER)

    def _enter(self, phase: str, seconds: float) -> None:
        self._phase, self._deadline = phase, time.monotonic() + seconds

    def _tell(self, order: str, whom: Sequence[RunningPart]) -> None:
        for one in whom:
            one.tell(order)

    def _names(self, role: str = "") -> str:
        return ", ".join(one.part.name for one in self._running if one.part.role.startswith(role))

    def _abandon(self) -> None:
        """After an error of the launcher's own: nothing may be left behind."""
        for one in self._running:
            one.tell("KILL")
        deadline = time.monotonic() + GIVE_UP_AFTER
        for one in self._running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                one.process.wait(max(0.0, deadline - time.monotonic()))
            one.kill_supervisor()

    def _conclude(self) -> int:
        if self._culprit is not None:
            self._say(f"{self._culprit.describe(self._access.here)}; ended the run")
            return self._culprit.exit_code
        if self._asked is not None:
            code = self._obeyed or (128 + self._asked if self._phase == "killed" else 0)
            name = self._asked.name
            self._say(f"stopped by {name}" if code else f"{name} came after the ranks' last step")
            return code
        return 0
