"""Exceptions to one line and an exit code. Light imports: most errors come before mxnet does."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
import traceback
from typing import Callable, NoReturn

from base import failures, notify
from base.command_line import code_of
from base.errors import RUN_AGAIN, InputError, TrainingError, lack_of_memory, missing
from base.launchers import launched_rank
from base.memory import address_limit
from comm.base import CommunicationError, abort
from training.stopping import Stopped, leave_at_signals

# Ends of a disk's that are no defect of a program's.
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ESTALE)
DRIVER = "libcuda.so.1"  # NVIDIA's, which MXNet for GPUs cannot be loaded without
_ENDS = {0: "complete", RUN_AGAIN: "to be run again", 130: "stopped by Ctrl-C", 143: "stopped by a signal"}
PATIENCE = 2.0  # seconds that other ranks leave to rank 0 to say the same thing first


def exit_code(main: Callable[[], int], leaves: bool = False) -> int:
    """Runs a script: 2 for bad input, 1 for a failure (a full disk, too), else what `main` returns.

    A rank that fails leaves at once: the others may be waiting for it in a collective, and the launcher ends
    them. `leaves`: for a program that trains, signals are obeyed from the beginning on
    (`training.stopping.leave_at_signals`).
    """
    if leaves:
        leave_at_signals()
    try:
        code = main() if leaves else code_of(main)
        if leaves:  # Python's own end restores the default action, which would kill the process: 138
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        notify.tell(notify.END, _ENDS.get(code, f"ended with code {code}"), code)
        return code
    except Stopped as stopped:
        notify.tell(notify.END, f"stopped by {stopped}: nothing to save", stopped.code)
        if launched_rank(os.environ) == 0:
            print(f"stopped by {stopped}: nothing to save", file=sys.stderr, flush=True)
        abort(stopped.code)
    except InputError as error:
        kind = failures.kind_of(error)  # DISK: no room for run.lock, say, which another start may find
        _fail(str(error), *((1, kind) if kind == failures.DISK else (2, failures.BAD_OPTION)))
    except ModuleNotFoundError as error:  # that is imported late, where it is needed
        _fail(missing(error), 2, failures.BAD_OPTION)
    except CommunicationError as error:
        _fail(str(error), 1, failures.PASSING)
    except TrainingError as error:
        _fail(str(error), 1, failures.kind_of(error))
    except KeyboardInterrupt:
        abort(130)
    except OSError as error:
        if error.errno is None and str(error).startswith(DRIVER):  # the loader's, which has no number
            _fail(
                f"{DRIVER}, NVIDIA's driver, is not on this machine, and this MXNet is built for GPUs: "
                "install the driver, or run make setup CUDA=cpu to train on the CPU",
                2,
                failures.BAD_OPTION,
            )
        _fail_for_memory(error)
        said = f"{error.filename or 'a file that is being written'}: {error.strerror}"
        said = said if error.errno in DISK else traceback.format_exc().rstrip()
        _fail(said, 1, failures.kind_of(error))
    except Exception as error:  # a defect of ours or of the libraries: all there is to know about it
        _fail_for_memory(error)
        if type(error).__name__ == "MXNetError":
            # So a lost rank shows where an average is read; the watchdog knows which, and speaks first.
            _wait(1)
        _fail(traceback.format_exc().rstrip(), 1, failures.kind_of(error))


def _wait(code: int) -> None:
    """Leaves time to rank 0 and the watchdog. With a signal, as mpirun sends one when rank 0 has left, the
    process ends: all has been said."""
    try:
        time.sleep(PATIENCE)
    except KeyboardInterrupt:
        abort(code)


def _fail_for_memory(error: BaseException) -> None:
    """Ends with a line where an error of whatever library is for want of memory."""
    lacks = lack_of_memory(error)
    if lacks:
        limit = address_limit()
        allowed = "" if limit is None else f", or raise ulimit -v, which allows {limit >> 20:,} MiB"
        _fail(
            f"memory does not suffice: {lacks}; take smaller batches, shorter sequences or a smaller "
            f"model{allowed}",
            1,
            failures.FAILED,
        )


def _fail(message: str, code: int, kind: str) -> NoReturn:
    rank = launched_rank(os.environ)
    if rank:
        # Most failures are everyone's, and mpirun ends the others when rank 0 leaves.
        _wait(code)
        message = f"rank {rank}: {message}"
    print(f"error: {message}", file=sys.stderr, flush=True)
    failures.leave(code, kind, f"error: {message.splitlines()[-1]}" if message else "error")
    abort(code)
