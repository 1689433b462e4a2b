"""Runs the parts of a plan to their end, and takes all of them down when one fails. Standard library only.

One thread, one loop: it reads what the parts write, and waits for their ends, for signals and for its own
time limits. Events are therefore handled in the order in which they were seen: the first part that fails is
the culprit, and those that fail because of it come later.
"""

from __future__ import annotations

import contextlib
import math
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

from base.failures import FAILED
from base.options import in_seconds
from base.processes import signal_name
from hosts.launching.mpirun_output import End, MpirunOutput
from hosts.launching.output import Lines, Output, harmless
from hosts.launching.parts import MPIRUN, RANK, Access, Part
from hosts.launching.signals import FORWARDED, STOPPED, Signals, code_of
from hosts.reach import explained

REPEAT = 3.0  # seconds between the signals to mpirun: one that comes before it has ranks gets lost
GIVE_UP_AFTER = 5.0  # seconds from there until supervisors and ssh clients are killed themselves
CONNECTING = 4  # sshd by default refuses some of more than 10 connections that are not yet logged in
DRAIN = 2.0  # seconds that output is still read after the end, where another process keeps the pipe open


@dataclass(frozen=True)
class Failure:
    """A part that failed first. `host`: where it ran, as in the host file, or the host that it speaks
    against; None where that is not known. `how`: name and end as a sentence. `words`: its last line on
    standard error. `own_end`: it ended itself, with an exit code. `kind`: as in base/failures.py."""

    part: str
    host: str | None
    code: int
    how: str
    words: str
    own_end: bool
    kind: str = FAILED


@dataclass(frozen=True)
class Outcome:
    """End of a run. `code`: its exit code. `failure`: of the part that failed first, if one did.
    `stopped_by`: the first signal that the launcher received. `recalled`: the ranks were stopped by the
    launcher's own wish."""

    code: int
    failure: Failure | None = None
    stopped_by: signal.Signals | None = None
    recalled: bool = False


class RunningPart:
    """A part that has been started: its process, its output, its end.

    `process` is hosts/supervise.py, or the ssh client that runs it elsewhere.

    Attributes:
        connected: the supervisor has reported.
        report: its last report, kind and value ("exit", "0"); "lost" without one.
    """

    def __init__(
        self,
        part: Part,
        process: subprocess.Popen[bytes],
        selector: selectors.BaseSelector,
        token: str,
        output: Output,
    ):
        assert process.stdout is not None and process.stderr is not None
        self.part, self.process = part, process
        self.connected = False
        self.report = ("lost", "")
        self._selector, self._token, self._output = selector, token.encode() + b" ", output
        self._mpirun = MpirunOutput(part.ranks) if part.role == MPIRUN else None
        self._drain_until: float | None = None
        self._pipes = {process.stdout.fileno(): (0, Lines()), process.stderr.fileno(): (1, Lines())}
        for pipe in self._pipes:
            os.set_blocking(pipe, False)
            selector.register(pipe, selectors.EVENT_READ, lambda pipe=pipe: self._read(pipe))

    def send(self, order: str) -> None:
        """Sends a signal's name, or END, to the supervisor."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # it has ended
            os.write(self.process.stdin.fileno(), f"{order}\n".encode())

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
        for which, name, line in self._mpirun.finish() if self._mpirun else ():
            self._output.write(name, which, line)
        return True

    @property
    def exit_code(self) -> int:
        """Exit code as a shell gives it: 128 + the number of the signal that ended the part.

        Only the supervisor's report makes it 0.
        """
        kind, value = self.report
        if self._mpirun and self._mpirun.end.is_of_host and self.report == ("exit", "0"):
            return 1  # Open MPI 5's own code
        if kind in ("exit", "signal"):
            return int(value) + (128 if kind == "signal" else 0)
        if kind == "stopped":
            return 128 + signal.SIGSTOP
        if kind == "silent":
            return 1
        code = self.process.returncode
        return 128 - code if code < 0 else code or 1

    def failure(self, here: Container[str]) -> Failure:
        """Facts about its end, for an end that was a failure. `how` names the host unless it is `here`."""
        kind, value = self.report
        name, host = self.part.name, None if self._mpirun else self.part.host
        end = self._mpirun.end if self._mpirun else End()
        if end.rank is not None and kind != "silent":  # mpirun itself has waited for a host
            name, host = f"rank {end.rank}", end.host
        words, own_end = self._output.last.get(name, ""), kind == "exit" and self.exit_code <= 128
        shown_host = host or self.part.host
        where = "" if shown_host in here else f" on {shown_host}"
        how = end.how if kind == "exit" else ""
        how = how or self._how(shown_host if where else "", words)
        if end.is_of_host:
            # Its last words are a list of what may be the cause, and another start may find the host again.
            host, words, own_end = end.host, "", False
        elif self._mpirun and kind == "silent" and value in self.part.ranks:
            host = value
        return Failure(name, host, self.exit_code, f"{name}{where} {how}", words, own_end)

    def _how(self, remote: str, words: str) -> str:
        """The end of a process as a clause. `remote`: its host, empty where that is this machine. `words`:
        its last line on standard error."""
        kind, value = self.report
        if kind == "exit":
            return f"exited with {value}"
        if kind == "signal":
            return f"was killed by {signal_name(int(value))}"
        if kind == "stopped":
            return f"had been stopped for {float(value):.0f} s by a signal and was killed"
        if kind == "silent":
            return f"waited for {value}, which does not answer any more, and was killed"
        if kind == "failed":
            return f"could not be started: {value}"
        code = self.process.returncode
        end = f"ended by {signal_name(-code)}" if code < 0 else f"exited with {code}"
        if not remote:
            return f"was lost: its supervisor {end}"
        fault = explained(remote, words)
        why = f"it {fault.why}" if fault else f"the remote shell {end}"
        return f"{'was lost' if self.connected else 'could not be reached'}: {why}"

    def _read(self, pipe: int) -> None:
        try:
            data = os.read(pipe, 1 << 16)
        except BlockingIOError:
            return
        if not data:
            self._close(pipe)
            return
        which, lines = self._pipes[pipe]
        begun = b""
        for line in lines.feed(data):
            begun = self._line(which, begun + line)
        lines.put_back(begun)

    def _close(self, pipe: int) -> None:
        self._selector.unregister(pipe)
        which, lines = self._pipes.pop(pipe)
        for line in lines.finish():
            begun = self._line(which, line)
            if begun:
                self._line(which, begun + b"\n")

    def _line(self, which: int, line: bytes) -> bytes:
        """Takes a line; returns what is the beginning of the next one, where a sign of life has cut it."""
        if which == 1 and self._token in line:
            line, _, report = line.partition(self._token)
            kind, _, value = report.decode("utf-8", "replace").strip().partition(" ")
            if kind == "alive":
                return line
            if kind == "connected":
                self.connected = True
            else:
                self.report = (kind, value)
            if not line:
                return b""
            line += b"\n"  # the part had left this line without an end
        line = harmless(line)
        for name, text in self._mpirun.split(which, line) if self._mpirun else [(self.part.name, line)]:
            self._output.write(name, which, text)
        return b""


@dataclass(frozen=True)
class Limits:
    """Time limits of a run."""

    grace: float = in_seconds(
        "how long ranks may take to stop after a signal before they are killed: a step and a checkpoint", 60.0
    )
    servers: float = in_seconds(
        "how long servers may take to end after the last rank", 30.0, name="server_timeout"
    )
    stopped: float = in_seconds(
        "a part stopped by SIGSTOP for so long counts as dead", 60.0, name="stopped_timeout"
    )


class Run:
    """A run of all parts, to be started once, with `run`. `wish` is called at least once a second; when it
    returns True, the ranks are stopped as by SIGUSR1."""

    def __init__(
        self,
        parts: Sequence[Part],
        access: Access,
        limits: Limits,
        output: Output,
        signals: Signals,
        wish: Callable[[], bool] = lambda: False,
    ):
        self._access, self._limits, self._signals, self._wish = access, limits, signals, wish
        self._say, self._output = output.say, output
        self._token = f"supervise-{secrets.token_hex(8)}"
        self._pending = list(parts)
        self._running: list[RunningPart] = []
        self._selector = selectors.DefaultSelector()
        self._culprit: RunningPart | None = None
        self._ended_at = math.inf
        self._stop_signal: signal.Signals | None = None  # the first that the launcher received
        self._recalled = False  # it was the launcher's own wish
        self._repeat_at = math.inf
        self._interrupts = 0
        self._obeyed = False  # a rank has stopped because of it
        # Then perhaps "stopping", "closing" (the ranks have ended), "failed", "killed".
        self._phase = "running"
        self._deadline: float | None = None

    def run(self) -> Outcome:
        """Runs all parts to their end.

        Returns:
            The outcome; its code is the culprit's if a part failed, 143 or 130 if the ranks obeyed a signal,
            else 0.

        Raises:
            OSError: a part cannot be started, or a log file cannot be made.
        """
        self._selector.register(self._signals, selectors.EVENT_READ, self._take_signals)
        try:
            while self._pending or self._running:
                self._start_some()
                timeout = 1.0 if self._deadline is None else max(0.0, self._deadline - time.monotonic())
                for key, _ in self._selector.select(min(1.0, timeout)):
                    key.data()
                for one in [one for one in self._running if one.has_ended()]:
                    self._running.remove(one)
                    self._judge(one)
                training = any(one.part.trains for one in self._running)
                if not self._pending and not training and self._phase in ("running", "stopping"):
                    self._enter("closing", self._closing_limit)
                if self._phase == "running" and not self._pending and self._wish():
                    self._recalled = True
                    self._stop(signal.SIGUSR1)
                if self._phase == "stopping" and time.monotonic() >= self._repeat_at:
                    self._repeat_at = time.monotonic() + REPEAT
                    self._send("USR1", [one for one in self._running if one.part.role == MPIRUN])
                if self._deadline is not None and time.monotonic() >= self._deadline:
                    self._too_late()
        finally:
            self._send("KILL", self._running)  # what is left after an error of the launcher's own
            deadline = time.monotonic() + GIVE_UP_AFTER
            for one in self._running:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    one.process.wait(max(0.0, deadline - time.monotonic()))
                one.process.kill()  # the kernel then kills a local part, its own supervisor ends a remote one
            self._selector.close()
            self._output.close()
        return self._conclude()

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
        options = ["--token", self._token, "--stopped_timeout", str(self._limits.stopped)]
        argv, environment = self._access.start(part, options)
        self._output.open(part.name)
        for path, text in part.files.items():
            os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)  # its supervisor removes it
            Path(path).write_text(text, "utf-8")
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # a Ctrl-C at the terminal is for the launcher, which passes it on
        )
        self._running.append(RunningPart(part, process, self._selector, self._token, self._output))

    def _judge(self, one: RunningPart) -> None:
        """Draws the consequences of a part's end for the run."""
        if self._phase in ("failed", "killed"):
            if self._culprit and self._lacked(one, self._culprit):
                self._culprit = one
            return
        code, order = one.exit_code, None
        if self._stop_signal is not None and one.part.trains:
            order = signal.Signals[f"SIG{one.part.order(FORWARDED[self._stop_signal])}"]
        killed = one.report[0] == "signal"  # that it had no handler for
        if order is not None and code in STOPPED and not killed:
            self._obeyed = True
        elif order is not None and code == 128 + order and (killed or one.part.role == MPIRUN):
            # It was not listening yet. The others may wait for it for ever.
            self._obeyed = True
            self._end_all()
        elif code != 0:
            self._culprit = one
            # Ranks may save: they wait in a step that will not end (training/stopping.py).
            self._send("USR2", [each for each in self._running if each.part.role == RANK])
            self._end_all()

    def _lacked(self, one: RunningPart, culprit: RunningPart) -> bool:
        """Whether the part that was seen to fail first failed for want of `one`."""
        if one.report[0] == "stopped":
            return culprit.report[0] != "stopped"
        # ps-lite's servers abort when they cannot answer a worker. Its supervisor kills it only later.
        aborted = not culprit.part.trains and culprit.report == ("signal", str(int(signal.SIGABRT)))
        killed = one.part.trains and one.report == ("signal", str(int(signal.SIGKILL)))
        return aborted and killed and time.monotonic() - self._ended_at < one.part.kill_after

    def _end_all(self) -> None:
        """Ends all parts: their supervisors send SIGTERM, and SIGKILL some seconds later."""
        self._pending, self._ended_at = [], time.monotonic()
        self._send("END", self._running)
        longest = max((one.part.kill_after for one in self._running), default=0.0)
        self._enter("failed", longest + GIVE_UP_AFTER)

    def _take_signals(self) -> None:
        for number in self._signals.read():
            if number not in FORWARDED or self._phase == "killed":
                continue
            self._interrupts += number == signal.SIGINT
            if self._stop_signal is None or self._recalled:
                self._stop_signal, self._recalled = number, False
            if self._interrupts > 1 or (self._phase == "failed" and self._interrupts):
                self._kill_all(f"interrupted; killed {self._names()}")
            elif self._pending:  # there is no training to stop yet
                self._obeyed = True
                self._end_all()
            elif self._phase == "closing":
                self._end_all()
            elif self._phase in ("running", "stopping"):
                self._stop(number)

    def _stop(self, number: signal.Signals) -> None:
        """Lets the ranks save a checkpoint and end."""
        self._stop_signal = self._stop_signal or number
        for one in self._running:
            if one.part.trains:
                one.send(one.part.order(FORWARDED[number]))
        self._repeat_at = time.monotonic() + REPEAT
        if self._phase == "running":
            self._enter("stopping", self._limits.grace)

    def _too_late(self) -> None:
        """Acts on the end of a phase's time limit."""
        if self._phase == "stopping":
            assert self._stop_signal is not None
            seconds = f"{self._limits.grace:g} s after {self._stop_signal.name}"
            self._kill_all(f"{self._names(training=True)} had not ended {seconds}; killed")
        elif self._phase == "closing":
            self._say(f"{self._names()} had not ended {self._closing_limit:g} s after the last rank; ended")
            self._end_all()
        elif self._phase == "failed":
            self._kill_all(f"{self._names()} could not be ended; killed")
        else:  # a supervisor that does not answer, a connection that hangs
            for one in self._running:
                one.process.kill()
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

    @property
    def _closing_limit(self) -> float:
        """Seconds for servers to end. Ranks that a signal stops before they join do not release them."""
        seconds = self._limits.servers
        return seconds if self._stop_signal is None else min(seconds, GIVE_UP_AFTER)

    def _names(self, training: bool = False) -> str:
        return ", ".join(one.part.name for one in self._running if one.part.trains or not training)

    def _conclude(self) -> Outcome:
        if self._culprit is not None:
            failure = self._culprit.failure(self._access.here)
            self._say(f"{failure.how}; ended the run")
            stopped_by = None if self._recalled else self._stop_signal
            return Outcome(failure.code, failure, stopped_by)
        if self._stop_signal is None:
            return Outcome(0)
        number = self._stop_signal
        code = code_of(number) if self._obeyed else 128 + number if self._phase == "killed" else 0
        if self._recalled:
            return Outcome(code, recalled=True)
        self._say(f"stopped by {number.name}" if code else f"{number.name} came after the ranks' last step")
        return Outcome(code, stopped_by=number)
