"""Runs the parts of a plan to their end, and takes all of them down when one fails. Standard library only.

One thread, one loop: it reads what the parts write, and waits for their ends, for signals and for its own
time limits. Events are therefore handled in the order in which they were seen: the first part that fails is
the culprit, and those that fail because of it come later.
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
from typing import Callable, Container, Sequence

from hosts.output import Lines, LogFile, Screen, harmless
from hosts.parts import Access, Part

FORWARDED = {signal.SIGINT: "INT", signal.SIGTERM: "TERM", signal.SIGUSR1: "USR1", signal.SIGHUP: "TERM"}
ORDERS = {name: signal.Signals[f"SIG{name}"] for name in ("INT", "TERM", "USR1")}
# Exit codes of a rank that has obeyed (training/run.py): 130 after SIGINT, else 143.
OBEYED = (128 + signal.SIGINT, 128 + signal.SIGTERM)
KILL_AFTER = 5.0  # seconds from SIGTERM to SIGKILL for the parts of a run that has failed
GIVE_UP_AFTER = 5.0  # seconds from there until supervisors and ssh clients are killed themselves
CONNECTING = 4  # sshd by default refuses some of more than 10 connections that are not yet logged in
DRAIN = 2.0  # seconds that output is still read after the end, where another process keeps the pipe open


class RunningPart:
    """A part that has been started: its process, its output, its end.

    `process` is hosts/supervise.py, or the ssh client that runs it elsewhere.

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

    def send(self, order: str) -> None:
        """Sends a signal's name, or END, to the supervisor."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended
            os.write(self.process.stdin.fileno(), f"{order}\n".encode())

    def kill_supervisor(self) -> None:
        """Kills the process; the kernel then kills a local part, its own supervisor ends a remote one."""
        self.process.kill()

    def has_ended(self) -> bool:
        """Tests whether the process has ended and all that it wrote has been read."""
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
        """Exit code as a shell gives it: 128 + the number of the signal that ended the part.

        Only the supervisor's report makes it 0.
        """
        kind, value = self._report or ("lost", "")
        if kind in ("exit", "signal"):
            return int(value) + (128 if kind == "signal" else 0)
        if kind == "stopped":
            return 128 + signal.SIGSTOP
        code = self.process.returncode
        return 128 - code if code < 0 else code or 1

    @property
    def killed(self) -> bool:
        """Tests whether it was ended by a signal that it had no handler for."""
        return self._report is not None and self._report[0] == "signal"

    def describe(self, here: Container[str]) -> str:
        """Name and end of the part, as a sentence without its full stop.

        The host is named unless it is one of those `here`.
        """
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
        line = harmless(line)
        if self._screens is not None:
            self._screens[which].write(f"[{self.part.name}] ", line)
        if self._logs is not None:
            self._logs[which].write(line)


@dataclass(frozen=True)
class Limits:
    """Time limits in seconds.

    `grace`: for ranks to end after a signal. `servers`: for servers to end after the last rank. `stopped`:
    for a part to stay stopped (state T) until it counts as dead.
    """

    grace: float = 60.0
    servers: float = 30.0
    stopped: float = 60.0


class Run:
    """A run of all parts, to be started once, with `run`."""

    def __init__(
        self,
        parts: Sequence[Part],
        access: Access,
        limits: Limits,
        screens: tuple[Screen, Screen] | None,
        log_dir: Path | None,
        say: Callable[[str], None],
    ):
        """Prepares a run; nothing is started.

        Args:
            screens: for the lines of standard output and of standard error; None: they are not shown.
            log_dir: folder for each part's lines, without prefix.
            say: shows a line of the launcher's own.
        """
        self._access, self._limits, self._screens, self._log_dir = access, limits, screens, log_dir
        self._say = say
        self._token = f"supervise-{secrets.token_hex(8)}"
        self._pending = list(parts)
        self._running: list[RunningPart] = []
        self._selector = selectors.DefaultSelector()
        self._culprit: RunningPart | None = None
        self._stop_signal: signal.Signals | None = None  # the first that the launcher received
        self._interrupts = 0
        self._obeyed = 0  # exit code of the first rank that obeyed it
        # Then perhaps "stopping", "closing" (the ranks have ended), "failed", "killed".
        self._phase = "running"
        self._deadline: float | None = None

    def run(self) -> int:
        """Runs all parts to their end.

        Returns:
            Exit code of the run: the culprit's if a part failed, 143 or 130 if the ranks obeyed a signal,
            else 0.

        Raises:
            OSError: a part cannot be started, or a log file cannot be made.
        """
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
        """Makes a pipe into which a signal that arrives writes its number; returns its two ends."""
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
        """Starts parts, on each host only CONNECTING at a time until they have reported."""
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
            self._judge(one)
        if not self._pending and not self._names("rank") and self._phase in ("running", "stopping"):
            self._enter("closing", self._limits.servers)

    def _judge(self, one: RunningPart) -> None:
        """Draws the consequences of a part's end for the run."""
        if self._phase in ("failed", "killed"):
            if one.stopped is not None and self._culprit is not None and self._culprit.stopped is None:
                self._culprit = one  # it was stopped before the others failed for want of it
            return
        code, order = one.exit_code, None
        if self._stop_signal is not None and one.part.role == "rank":
            order = ORDERS[FORWARDED[self._stop_signal]]
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
        """Ends all parts: their supervisors send SIGTERM, and SIGKILL after KILL_AFTER seconds."""
        self._pending = []
        self._send("END", self._running)
        self._enter("failed", KILL_AFTER + GIVE_UP_AFTER)

    def _signalled(self, number: signal.Signals) -> None:
        if number not in FORWARDED or self._phase == "killed":
            return
        self._interrupts += number == signal.SIGINT
        self._stop_signal = self._stop_signal or number
        if self._interrupts > 1 or (self._phase == "failed" and self._interrupts):
            self._kill_all(f"interrupted; killed {self._names()}")
        elif self._pending:  # there is no training to stop yet
            self._obeyed = 128 + ORDERS[FORWARDED[number]]
            self._end_all()
        elif self._phase == "closing":
            self._end_all()
        elif self._phase in ("running", "stopping"):
            self._send(FORWARDED[number], [one for one in self._running if one.part.role == "rank"])
            if self._phase == "running":
                self._enter("stopping", self._limits.grace)

    def _too_late(self) -> None:
        """Acts on the end of a phase's time limit."""
        if self._phase == "stopping":
            assert self._stop_signal is not None
            seconds = f"{self._limits.grace:g} s after {self._stop_signal.name}"
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
        self._send("KILL", self._running)
        self._enter("killed", GIVE_UP_AFTER)

    def _enter(self, phase: str, seconds: float) -> None:
        self._phase, self._deadline = phase, time.monotonic() + seconds

    def _send(self, order: str, parts: Sequence[RunningPart]) -> None:
        for one in parts:
            one.send(order)

    def _names(self, role: str = "") -> str:
        return ", ".join(one.part.name for one in self._running if one.part.role.startswith(role))

    def _abandon(self) -> None:
        """Kills what is left after an error of the launcher's own."""
        for one in self._running:
            one.send("KILL")
        deadline = time.monotonic() + GIVE_UP_AFTER
        for one in self._running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                one.process.wait(max(0.0, deadline - time.monotonic()))
            one.kill_supervisor()

    def _conclude(self) -> int:
        if self._culprit is not None:
            self._say(f"{self._culprit.describe(self._access.here)}; ended the run")
            return self._culprit.exit_code
        if self._stop_signal is not None:
            code = self._obeyed or (128 + self._stop_signal if self._phase == "killed" else 0)
            name = self._stop_signal.name
            self._say(f"stopped by {name}" if code else f"{name} came after the ranks' last step")
            return code
        return 0
