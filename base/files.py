"""Files that appear whole or not at all, and their checksums."""

from __future__ import annotations

import hashlib
import os
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
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
    temporary = f"{path}{_TEMPORARY}{os.getpid()}-{uuid.uuid4().hex[:8]}"
    try:
        with open(temporary, "wb") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise
    sync_directory(os.path.dirname(path) or ".")


def is_temporary(name: str) -> bool:
    """Returns whether a file of this name is what `replacing` leaves behind when its process is killed."""
    return _TEMPORARY in os.path.basename(name)


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
    with open(path, "rb") as handle:
        for block in iter(lambda: handle.read(_BLOCK), b""):
            digest.update(block)
    return digest.hexdigest()


def sha256_of_all(paths: Sequence[str]) -> Iterator[str]:
    """SHA-256 of each file, in order, several at a time in threads."""
    if len(paths) < 2:
        yield from map(sha256_of, paths)
        return
    with ThreadPoolExecutor(min(_HASH_THREADS, os.cpu_count() or 1, len(paths))) as pool:
        try:
            yield from pool.map(sha256_of, paths)
        except BaseException:
            if sys.version_info >= (3, 9):
                pool.shutdown(wait=False, cancel_futures=True)
            raise
