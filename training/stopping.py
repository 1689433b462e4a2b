"""Signals that end a run: at once while there is nothing to save, after the present step where there is.

    importing modules       end_at_signals      the process ends
    start-up, evaluation    leave_at_signals    Stopped is raised, so that files are closed and removed
    steps                   StopRequest         noted; the loop saves after the step

SIGUSR2 says that the run has failed elsewhere, so that the present step will never end: hosts/launch.py sends
it when a server has ended, for example, and the kernel when mpirun has. In steps what was given to `listen`
is done about it, before that the process ends.

SIGUSR1 means what SIGTERM means: mpirun passes it on to the ranks immediately, while a SIGTERM to mpirun
leaves them little time. Python runs a handler only between two of its own instructions, and a library can
wait for minutes, for another rank that tokenizes, say. So a thread ends the process where the main thread has
not done so GRACE seconds after the signal. Light imports: it is called before anything else.

In steps that thread ends the process at a second SIGTERM, whatever it is doing, for who wants no checkpoint
any more; within SAME seconds of the first it is another copy of that: `timeout` sends two, and a batch system
may send one to the ranks beside the launcher's. A second SIGUSR1 is never more than a first.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any, Callable

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
GRACE = 3.0  # seconds
AGAIN = 0.5  # seconds
PR_SET_PDEATHSIG = 1
OPEN_MPI = "OMPI_COMM_WORLD_RANK"
SAME = 2.0  # seconds


class Stopped(KeyboardInterrupt):
    """A signal came while there was nothing to save. `code`: the exit code that it asks for."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.code = code_of(number)


def code_of(number: int) -> int:
    """The exit code after a signal: 130 after Ctrl-C, else 143."""
    return 130 if number == signal.SIGINT else 143


def end_at_signals() -> None:
    """Lets signals end the process: there is nothing to be closed yet."""
    for number in SIGNALS:
        signal.signal(number, lambda number, frame: os._exit(code_of(number)))


def leave_at_signals() -> None:
    """Lets the first signal raise Stopped in the main thread, and further ones do nothing; GRACE seconds
    after it the process ends, whatever it is doing, unless it takes steps by then. From now on a second
    SIGTERM ends it at once."""
    handler = _Leaving()
    for number in SIGNALS:
        signal.signal(number, handler)
    sys.unraisablehook = _unraisable
    reader, writer = os.pipe()
    for end in (reader, writer):
        os.set_blocking(end, end == reader)
    earlier = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    if earlier == -1:
        threading.Thread(target=_watch, args=(reader,), name="signals", daemon=True).start()
        return
    signal.set_wakeup_fd(earlier, warn_on_full_buffer=False)  # the thread is there already
    os.close(reader)
    os.close(writer)


def asked() -> int | None:
    """Returns the exit code for a signal that has already come, None without one. From any thread: the main
    thread may still be waiting in a library for a rank that has ended at the same signal."""
    handler = signal.getsignal(signal.SIGTERM)
    return handler.asked if isinstance(handler, (StopRequest, _Leaving)) else None


class StopRequest:
    """Turns signals into a wish that the loop reads between two steps; a second Ctrl-C interrupts at once,
    a second SIGTERM ends the process (`leave_at_signals`).

    `exit_code`: what the wish asks for; None without one. `asked`: the same, from the moment of the signal.
    """

    def __init__(self) -> None:
        self.exit_code: int | None = None
        self.asked: int | None = None

    def listen(self, failed: Callable[[], None] = lambda: None) -> None:
        """Notes signals from now on; `failed` is called at SIGUSR2, in another thread."""
        for number in SIGNALS:
            signal.signal(number, self)
        signal.signal(signal.SIGUSR2, _Failing(failed))
        if OPEN_MPI in os.environ:  # the parent is mpirun, or its daemon
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGUSR2), 0, 0, 0)

    def leave(self) -> None:
        """Lets signals end the process again: what has been trained is saved. Raises Stopped for one that was
        noted before."""
        signal.signal(signal.SIGUSR2, signal.SIG_DFL)
        if self.exit_code is not None:
            raise Stopped(signal.SIGINT if self.exit_code == 130 else signal.SIGTERM)
        leave_at_signals()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.exit_code is not None:
            raise KeyboardInterrupt
        self.exit_code = code_of(number)


class _Leaving:
    """Handler of signals that raises Stopped, once. `asked`: as a StopRequest's."""

    def __init__(self) -> None:
        self.raised = False
        self.asked: int | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if not self.raised:
            self.raised = True
            raise Stopped(number)


def _unraisable(unraisable: Any) -> None:
    """Takes back what Python ignores, and would print: the exception of a signal that came in a destructor,
    as while garbage is collected between stages. The thread that watches sends the signal again."""
    handler = signal.getsignal(signal.SIGTERM)
    if isinstance(unraisable.exc_value, Stopped) and isinstance(handler, _Leaving):
        handler.raised = False
    else:
        sys.__unraisablehook__(unraisable)


class _Failing:
    """Handler of SIGUSR2, which acts in the thread that watches: the main thread may wait for ever."""

    def __init__(self, act: Callable[[], None]):
        self.act = act

    def __call__(self, number: int, frame: FrameType | None) -> None:
        pass


def _watch(reader: int) -> None:
    """Ends the process where a handler that should have does not come to it, and at a second SIGTERM."""
    asked, since = None, 0.0  # whom the first SIGTERM was for, and when it came: a run of many may be over
    while True:
        for number in os.read(reader, 64):
            handler = signal.getsignal(number)
            if isinstance(handler, (StopRequest, _Leaving)):
                handler.asked = code_of(number)
            if number == signal.SIGTERM:
                now = time.monotonic()
                if handler is asked and now > since + SAME:
                    os._exit(code_of(number))
                if handler is not asked:
                    asked, since = handler, now
            if isinstance(handler, _Failing):
                handler.act()
            if isinstance(handler, _Leaving):
                time.sleep(AGAIN)
                # A system call that began just after the signal goes on as if there had been none.
                if not handler.raised and signal.getsignal(number) is handler:
                    signal.pthread_kill(threading.main_thread().ident or 0, number)
                time.sleep(GRACE - AGAIN)
                if signal.getsignal(number) is handler:
                    os._exit(code_of(number))
