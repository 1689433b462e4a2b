"""Exclusive locks between processes; a lock ends with the process that holds it.

The package filelock (3.16) would wait without end on a file system without locks,
whose errors it takes for another holder's, and leaves the lock's file behind.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from contextlib import contextmanager, suppress
from typing import Callable, Iterator

SECONDS_BEFORE_NOTE = 10.0
_POLL_SECONDS = 0.1
_NO_LOCKS_HERE = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


@contextmanager
def locked(path: str, waiting: Callable[[], None]) -> Iterator[bool]:
    """Holds an exclusive lock named by the file `path`, waiting for it without limit.

    `waiting` is called once after ten seconds of it. The file is removed at the end. Yields False, and holds
    nothing, where the file system has no locks (some network file systems).
    """
    descriptor = _acquire(path, waiting)
    if descriptor is None:
        yield False
        return
    try:
        yield True
    finally:
        try:
            with suppress(FileNotFoundError):
                os.unlink(path)  # while it is held: who waits sees that the name has gone, and starts again
        finally:
            os.close(descriptor)


def _acquire(path: str, waiting: Callable[[], None]) -> int | None:
    started = time.monotonic()
    noted = False
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno in _NO_LOCKS_HERE:
                return None
            if error.errno not in (errno.EAGAIN, errno.EACCES, errno.EINTR):
                raise
        else:
            # Whoever held it before may have removed the file.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.stat(path), os.fstat(descriptor)):
                    return descriptor
            os.close(descriptor)
            continue
        if not noted and time.monotonic() - started > SECONDS_BEFORE_NOTE:
            noted = True
            waiting()
        time.sleep(_POLL_SECONDS)
