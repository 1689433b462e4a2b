"""JSON from files that somebody else may have written: regular files of a bounded size, numbers and nesting
that Python can hold. Standard library only."""

from __future__ import annotations

import errno
import json
import os
import stat
from typing import IO, Any

from base.errors import InputError

MOST_BYTES = 64 << 20  # a token store's manifest holds its whole vocabulary: a few MB
_MOST_LINE = 1 << 20  # bytes
_MOST_DIGITS = 4000  # of a whole number; converting takes the square of their number


def open_regular(path: str, source: str | None = None) -> IO[bytes]:
    """A regular file opened for reading; nothing else is, so that nothing waits: for a pipe's writer, a
    terminal, a device.

    Args:
        source: what messages call the file; its path without.

    Raises:
        InputError: it cannot be opened, or is no regular file.
    """
    source = source or path
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        reason = "it is a socket" if error.errno == errno.ENXIO else error.strerror
        raise InputError(f"{source}: cannot be read: {reason}") from error
    except ValueError as error:  # a NUL in the name
        raise InputError(f"{source}: cannot be read: {error}") from error
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        reason = os.strerror(errno.EISDIR) if stat.S_ISDIR(mode) else "it is no regular file"
        raise InputError(f"{source}: cannot be read: {reason}")
    return open(descriptor, "rb")


def read_regular(path: str, most_bytes: int, source: str) -> bytes:
    """The content of a regular file, which messages call `source`. Raises InputError as `open_regular`, and
    where it has more than `most_bytes`."""
    with open_regular(path, source) as file:
        try:
            there = os.fstat(file.fileno()).st_size
            content = file.read(min(there, most_bytes) + 1)  # as much memory is taken, whatever is there
        except OSError as error:
            raise InputError(f"{source}: cannot be read: {error.strerror}") from error
    if len(content) > most_bytes:
        size = f"{most_bytes >> 20} MiB" if most_bytes >= 1 << 20 else f"{most_bytes:,} bytes"
        raise InputError(f"{source}: more than {size}, which no file of its kind has")
    return content


def read_json_file(path: str, most_bytes: int = MOST_BYTES, source: str | None = None) -> Any:
    """The value in a JSON file in UTF-8; messages call it `source`. Raises InputError as `read_regular` and
    `parse_json`."""
    source = source or path
    return parse_json(read_regular(path, most_bytes, source), source)


def read_json_object(path: str, most_bytes: int = MOST_BYTES, source: str | None = None) -> dict[str, Any]:
    """As `read_json_file`, of a file that holds an object; InputError for another value, too."""
    content = read_json_file(path, most_bytes, source)
    if not isinstance(content, dict):
        raise InputError(f"{source or path}: not a JSON object of names and values")
    return content


def parse_json(content: bytes | str, source: str) -> Any:
    """The value that JSON text stands for.

    Raises:
        InputError: no JSON, no UTF-8, nested too deeply, or a whole number of thousands of digits.
    """
    try:
        text = content if isinstance(content, str) else content.decode("utf-8-sig")
        return json.loads(text, parse_int=_whole)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise InputError(f"{source}: not JSON: {error.msg} at {place}; is it whole?") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{source}: not JSON: byte {error.start} is not UTF-8") from error
    except RecursionError as error:
        raise InputError(f"{source}: not JSON that can be read: it is nested too deeply") from error
    except ValueError as error:
        raise InputError(f"{source}: not JSON that can be read: {error}") from error


def _whole(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a whole number has {len(digits):,} digits")
    return int(digits)


def read_json_lines(path: str) -> list[dict[str, Any]]:
    """The objects of a file with one on each line, in its order. Lines that are no JSON objects are left out:
    a last one that a crash has cut off, above all.

    Raises:
        FileNotFoundError: there is no such file.
        InputError: as `open_regular`.
    """
    found = []
    try:
        opened = open_regular(path)
    except InputError as error:
        # Only opening tells: after a look a run that begins anew may remove the file.
        if isinstance(error.__cause__, FileNotFoundError) and not os.path.islink(path):
            raise error.__cause__ from None
        raise
    with opened as file:
        for line in iter(lambda: file.readline(_MOST_LINE), b""):
            try:
                value = parse_json(line, path)
            except InputError:
                continue
            if isinstance(value, dict):
                found.append(value)
    return found
