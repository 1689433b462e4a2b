"""A user's command that hears what becomes of a run, for mails and messages. Standard library only.

It can neither hold a run up nor fail it: nobody waits for it, its output goes nowhere, it has none of the
run's files and sockets, and it is killed after LIMIT seconds.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys

from base.errors import one_line
from base.launchers import launched_rank

COMMAND = "RUN_NOTIFY"  # the command, in the environment of the process that tells it
EVENT, MESSAGE, CODE = "RUN_EVENT", "RUN_MESSAGE", "RUN_CODE"  # what the command finds in its own
FAILURE, RESTART, END = "failure", "restart", "end"
LIMIT = 60  # seconds


def appoint(command: str | None) -> None:
    """Sets the command that `tell` starts, if this process is rank 0 of a run."""
    if command and launched_rank(os.environ) == 0:
        os.environ[COMMAND] = command


def tell(event: str, message: str, code: int | None = None, command: str | None = None) -> None:
    """Starts a command in a shell, by default the one that was appointed, if there is one, and returns.
    `event`: FAILURE, RESTART or END; `code`: exit code of the run, None where it goes on."""
    command = command or os.environ.get(COMMAND)
    if not command:
        return
    told = {EVENT: event, MESSAGE: one_line(message), CODE: "" if code is None else str(code)}
    words = ["timeout", "-k", "5", str(LIMIT), "/bin/sh", "-c", command]
    standard = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)]
    environ = {**os.environ, **told}
    try:
        inherited = [int(name) for name in os.listdir("/proc/self/fd") if int(name) > 2]
        closed = [(os.POSIX_SPAWN_CLOSE, number) for number in inherited]
        # Not subprocess: before a fork MXNet waits for all that its engine has to do. A command inherits what
        # is ignored: SIGPIPE by Python, SIGUSR1 by a run at its end.
        acts, default = [*standard, *closed], [signal.SIGPIPE, signal.SIGUSR1]
        os.posix_spawnp(words[0], words, environ, file_actions=acts, setsid=True, setsigdef=default)
    except OSError as error:
        with contextlib.suppress(OSError, ValueError):  # nobody reads it
            print(f"warning: --notify: {error.filename}: {error.strerror}", file=sys.stderr, flush=True)
