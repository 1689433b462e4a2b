"""Files that appear whole or not at all, and their checksums."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
from contextlib import contextmanager
from typing import IO, Iterator, Sequence

_BLOCK = 1 << 20
_TEMPORARY = ".tmp-"
_HASH_THREADS = 8


@contextmanager
def replacing(path: str) -> Iterator[IO[bytes]]:
    """A binary file to write; `path` gets its content only if the block ends without an exception.

    The content goes to a temporary name in the same directory, is synced, and is then renamed over `path`.
    """
    temporary = f"{path}{_TEMPORARY}{os.getpid()}-{os.urandom(4).hex()}"
    try:
        # A name of its own, and no link of somebody else's; the mode is what the user's umask leaves of it.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(temporary, "wb", opener=lambda name, _: os.open(name, flags, 0o666)) as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise
    sync_directory(os.path.dirname(path) or ".")


@contextmanager
def replacing_folder(path: str) -> Iterator[str]:
    """A new folder to fill; it becomes `path`, in place of what is there, if the block raises nothing.

    It has a temporary name in the same directory. Where the system cannot exchange two names at once, a kill
    at the wrong moment leaves the old folder under a temporary name.
    """
    path = path.rstrip(os.sep) or path
    temporary = f"{path}{_TEMPORARY}{os.getpid()}-{os.urandom(4).hex()}"
    os.mkdir(temporary)
    try:
        yield temporary
        sync_directory(temporary)
        if os.path.lexists(path):
            _exchange(temporary, path)
        else:
            os.rename(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    sync_directory(os.path.dirname(path) or ".")


def _exchange(one: str, other: str) -> None:
    """Gives each of two paths the other's name."""
    library = ctypes.CDLL(None, use_errno=True)
    if hasattr(library, "renameat2"):
        here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
        if library.renameat2(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0:
            return
    aside = f"{one}-old"
    os.rename(other, aside)
    try:
        os.rename(one, other)
    except BaseException:
        os.rename(aside, other)
        raise
    os.rename(aside, one)


def is_temporary(name: str) -> bool:
    """Returns whether a file of this name is what `replacing` leaves behind when its process is killed."""
    return _TEMPORARY in os.path.basename(name)


def leads_out(path: str) -> bool:
    """Whether a path is a symbolic link to what lies outside of the folder that the link is in."""
    if not os.path.islink(path):
        return False
    folder, target = os.path.realpath(os.path.dirname(path) or "."), os.path.realpath(path)
    return os.path.commonpath([folder, target]) != folder


def sync_directory(path: str) -> None:
    """Makes the renames inside directory `path` durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of(path: str) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as handle:
            for block in iter(lambda: handle.read(_BLOCK), b""):
                digest.update(block)
    except OSError as error:
        error.filename = path  # the error of a read names no file
        raise
    return digest.hexdigest()


def sha256_of_all(paths: Sequence[str]) -> Iterator[str]:
    """SHA-256 of each file, in order, several at a time in threads."""
    if len(paths) < 2:
        yield from map(sha256_of, paths)
        return
    from concurrent.futures import ThreadPoolExecutor  # with logging: hparams.py imports this module too

    with ThreadPoolExecutor(min(_HASH_THREADS, os.cpu_count() or 1, len(paths))) as pool:
        try:
            yield from pool.map(sha256_of, paths)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
