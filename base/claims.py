"""Locks on folders (or on anything that a file stands for) that work between hosts: one process has the lock,
and the others can name it.

The owner writes a file with its host, process and start time, keeps an exclusive kernel lock on it, and
touches it every few seconds. The lock is free again when the owner has ended, however that happened:

    same host       the kernel releases it at once, also where the process was killed or ran in a container
    another host,   the kernel lock may not be visible, and clocks may differ: whoever wants the lock watches
    or no locks     the file, and it is free when it was not touched for PATIENCE seconds, or for LONG_AGO by
                    the file system's own clock

An owner that was stopped for so long, and continues, sees within a BEAT that its file is another's.
Linux only.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import platform
import threading
import time
from dataclasses import asdict, dataclass, fields
from typing import Any, Callable

from base.locks import locked
from base.machine import running_kernel

BEAT = 5.0  # seconds between two touches
PATIENCE = 60.0  # seconds without one, as another host sees it
LONG_AGO = 600.0  # the same where two hosts' clocks may differ
_MOST_BYTES = 4096
_LONGEST_NAME = 100


@dataclass(frozen=True)
class Holder:
    """The process that has a claim.

    boot: identifier of the system's start; since: the beginning of the claim, for people.
    """

    host: str
    process: int
    since: str
    boot: str

    @staticmethod
    def myself() -> Holder:
        """This process."""
        now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        return Holder(platform.node(), os.getpid(), now, running_kernel())

    @property
    def sentence(self) -> str:
        """Its names, for people."""
        return f"process {self.process} on {self.host} since {self.since}"


class HeldError(Exception):
    """Another process has the claim; the message names it."""


class Claim:
    """A claim that this process wants, and then has.

    Args:
        path: of the file, in a folder that exists.
        lost: called, from another thread, when another process has taken the claim over; with its names.
        beat, patience: as BEAT and PATIENCE.
    """

    def __init__(
        self, path: str, lost: Callable[[str], None], beat: float = BEAT, patience: float = PATIENCE
    ) -> None:
        self._path, self._lost, self._beat, self._patience = path, lost, beat, patience
        self._seen: tuple[Any, ...] | None = None
        self._watched_since = 0.0
        self._descriptor: int | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.watched: str | None = None  # the holder of whom it is not known whether it lives

    def attempt(self) -> bool:
        """Takes the claim, if it is free. False where that is not known yet: to be called again, every second
        or so, PATIENCE seconds long at most.

        Raises:
            HeldError: it is not free. OSError: its file cannot be written.
        """
        with locked(f"{self._path}.taking", self._is_being_taken):
            free = self._is_free()
            if free:
                self._take()
        return free

    def release(self) -> None:
        """Gives the claim back. Without effect where this process does not have it."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._descriptor is None:
            return
        if self._is_mine():
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        os.close(self._descriptor)
        self._descriptor = None

    def _is_being_taken(self) -> None:
        raise HeldError("another process that is just about to take it")

    def _is_free(self) -> bool:
        try:
            descriptor = _open(self._path)
        except FileNotFoundError:
            return True
        try:
            facts, content = os.fstat(descriptor), os.read(descriptor, _MOST_BYTES)
            is_locked = _is_locked(descriptor)
        finally:
            os.close(descriptor)
        holder = _parsed(content)
        self.watched = holder.sentence if holder else "a process that has not left its name"
        if holder is not None and holder.boot == running_kernel() and is_locked is not None:
            if is_locked:
                raise HeldError(self.watched)
            return True
        seen = (facts.st_ino, facts.st_mtime_ns, content)
        if self._seen is None:
            self._seen, self._watched_since = seen, time.monotonic()
        if seen != self._seen:
            raise HeldError(self.watched)
        if time.monotonic() - self._watched_since >= self._patience:
            return True
        taking = f"{self._path}.taking"
        os.utime(taking)  # to the file system's own time
        return os.stat(taking).st_mtime - facts.st_mtime > LONG_AGO

    def _take(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self._path, flags, 0o644)
        try:
            with contextlib.suppress(OSError):  # a file system without locks: the beat remains
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(descriptor, json.dumps(asdict(Holder.myself())).encode() + b"\n")
            os.fsync(descriptor)
        except BaseException:
            os.unlink(self._path)
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        self._thread = threading.Thread(target=self._keep_touching, name="claim", daemon=True)
        self._thread.start()

    def _keep_touching(self) -> None:
        assert self._descriptor is not None
        while not self._ended.wait(self._beat):
            if not self._is_mine():
                holder = None
                with contextlib.suppress(OSError), open(self._path, "rb") as file:
                    holder = _parsed(file.read(_MOST_BYTES))
                self._lost(holder.sentence if holder else "another process")
                return
            with contextlib.suppress(OSError):
                os.utime(self._descriptor)

    def _is_mine(self) -> bool:
        """Whether no other process's file has taken the place of this one's."""
        assert self._descriptor is not None
        try:
            return os.path.samestat(os.lstat(self._path), os.fstat(self._descriptor))
        except OSError:  # removed by hand, or the disk does not answer: nobody else has it
            return True


def _open(path: str) -> int:
    """Opens the file of a claim, for writing if that is allowed: locks over networks need it."""
    flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # neither a link nor a pipe leads astray
    try:
        return os.open(path, os.O_RDWR | flags)
    except PermissionError:
        return os.open(path, os.O_RDONLY | flags)


def _is_locked(descriptor: int) -> bool | None:
    """Whether another process has the lock, as far as this host knows; None without locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return True if error.errno in (errno.EAGAIN, errno.EACCES) else None
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False


def _parsed(content: bytes) -> Holder | None:
    """The holder that a file names; None for anything else."""
    try:
        found = json.loads(content)
        values = {each.name: found[each.name] for each in fields(Holder)}
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    process = values.pop("process")
    if type(process) is not int or not 0 < process < 1 << 31:
        return None
    for name in values.values():
        if not isinstance(name, str) or len(name) > _LONGEST_NAME or not name.isprintable():
            return None
    return Holder(process=process, **values)
