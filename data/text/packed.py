"""Text that gzip, bzip2, xz or zstd has packed, recognised by its content and unpacked as it is read."""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import zlib
from contextlib import contextmanager
from typing import IO, Any, Callable, Iterator

from base.errors import InputError

_FORMATS = {  # none of these beginnings is one of UTF-8 text
    "gzip": rb"\x1f\x8b",
    "bzip2": rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)",
    "xz": rb"\xfd7zXZ\0",
    "zstd": rb"\x28\xb5\x2f\xfd",
}
_MOST_MAGIC = 10  # bytes


def packing(handle: IO[bytes]) -> str:
    """The program that has packed the file, which is open at its beginning and stays there; "" for none."""
    start = handle.read(_MOST_MAGIC)
    handle.seek(0)
    return next((name for name, magic in _FORMATS.items() if re.match(magic, start)), "")


@contextmanager
def unpacked(handle: IO[bytes], path: str) -> Iterator[IO[bytes]]:
    """The bytes of a file that is open at its beginning, unpacked where it is packed; to go back or forward
    in these takes time.

    Raises InputError for packed bytes that are damaged, or cut off, when reading comes there.
    """
    program = packing(handle)
    if not program:
        yield handle
        return
    opens, damages = _reader(program, path)
    try:
        with opens(handle) as text:
            yield text
    except damages as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of the disk
        raise InputError(
            f"{path} is packed by {program}, and damaged or cut off ({error}); copy or download it anew"
        ) from error


def _reader(program: str, path: str) -> tuple[Callable[[Any], Any], tuple[type[Exception], ...]]:
    """The class that reads what a program has packed, and what it raises for damage."""
    if program == "gzip":
        return lambda handle: gzip.GzipFile(fileobj=handle), (EOFError, OSError, zlib.error)
    if program == "bzip2":
        return bz2.BZ2File, (EOFError, OSError)
    if program == "xz":
        return lzma.LZMAFile, (EOFError, lzma.LZMAError)
    try:
        try:
            from compression import zstd  # Python 3.14
        except ImportError:
            from backports import zstd
    except ImportError as error:
        raise InputError(
            f"{path} is packed by zstd, which this Python does not read: pip install backports.zstd, or "
            "unpack it with unzstd"
        ) from error
    return zstd.ZstdFile, (EOFError, zstd.ZstdError)
