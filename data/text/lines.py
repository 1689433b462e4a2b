"""Checked lines of a byte range of a text file, packed or not: UTF-8, no NULs, no line too long to hold.

Whole blocks are decoded and split at once, which is many times faster than line by line; only a block with
something wrong in it is looked at line by line.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import os
import re
import stat
import sys
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


def _reader(program: str, path: str) -> tuple[Callable[[Any], Any], type[Exception]]:
    """The function that opens what a program has packed, and what it raises for damage beside EOFError and
    OSError."""
    if program != "zstd":
        known: dict[str, tuple[Callable[[Any], Any], type[Exception]]]
        known = {"gzip": (gzip.open, zlib.error), "bzip2": (bz2.open, EOFError)}
        return known.get(program, (lzma.open, lzma.LZMAError))
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
    return zstd.open, zstd.ZstdError


BLOCK_BYTES = 1 << 20
# Finding a line's number means reading the file up to it. When records are skipped by the thousand in parts
# far into a huge file, or in a packed one, messages give the byte of the text instead.
COUNTED_BYTES = 1 << 28


class Problems:
    """Problems of a file: raised as InputError or, where bad records are skipped, passed to `on_bad` as
    messages. `start`: where reading begins; -1 in a packed file."""

    def __init__(self, path: str, start: int = 0, on_bad: Callable[[str], None] | None = None) -> None:
        self.path = path
        self._on_bad = on_bad
        self._near_start = 0 <= start <= COUNTED_BYTES
        self._counted = (0, 0)  # a byte offset, and the newlines before it

    def report(self, offset: int, index: int, what: str, advice: str) -> None:
        """Something is wrong in the line that is `index` lines after the one that begins at byte `offset`.

        Raises InputError unless records are skipped.
        """
        if self._on_bad is None:
            raise InputError(f"{self._place(offset, index)}: {what}; {advice}, or give --skip_bad_records")
        self._on_bad(f"{self._place(offset, index)}: {what}")

    def _place(self, offset: int, index: int) -> str:
        if self._on_bad is not None and not self._near_start:
            return f"{self.path}, near byte {offset}"
        # Counted from the place of the last report, so that the reports of a part read it once or twice.
        position, count = self._counted
        if offset < position:  # the beginning of a document that turned out to be wrong
            count -= self._newlines_between(offset, position)
        else:
            count += self._newlines_between(position, offset)
            self._counted = (offset, count)
        return f"{self.path}, line {count + index + 1}"

    def _newlines_between(self, start: int, end: int) -> int:
        count = 0
        with open_text(self.path) as handle:
            handle.seek(start)
            while start < end:
                block = handle.read(min(BLOCK_BYTES, end - start))
                if not block:
                    break
                start += len(block)
                count += block.count(b"\n")
        return count


@contextmanager
def open_text(path: str) -> Iterator[IO[bytes]]:
    """The file, open for reading bytes; a packed one gives its text, in which to go back or forward takes
    time.

    Raises InputError when it is no regular file, and for what goes wrong while it is open, such as packed
    bytes that are damaged or cut off, when reading comes there.
    """
    program, damages = "", (OSError,)  # type: str, tuple[type[Exception], ...]
    try:
        # Without O_NONBLOCK, opening a named pipe nobody writes to would wait for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as handle:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise InputError(
                    f"{path} is not a regular file: text is read in parts, so write it to a file first"
                )
            start = handle.read(_MOST_MAGIC)
            handle.seek(0)
            program = next((name for name, magic in _FORMATS.items() if re.match(magic, start)), "")
            if not program:
                yield handle
                return
            opens, damage = _reader(program, path)
            damages = (OSError, EOFError, damage)
            with opens(handle) as text:
                yield text
    except damages as error:
        if isinstance(error, OSError) and (error.errno is not None or not program):
            raise InputError(f"cannot read {path}: {error.strerror}") from error
        raise InputError(
            f"{path} is packed by {program}, and damaged or cut off ({error}); copy or download it anew"
        ) from error


def line_blocks(
    path: str, start: int, end: int | None, max_line_bytes: int, problems: Problems
) -> Iterator[tuple[int, list[str | None]]]:
    """Blocks of consecutive lines that begin in bytes [start, end) of the file, which are whole lines; None
    stands for the file's end.

    Yields (byte offset of the block's first line, its lines without newline characters). A line that is left
    out as bad is None in the list, so that positions in it still count lines. "\\n" alone ends a line: other
    line separators of Unicode stay inside, and a "\\r" before it stays at the line's end. The file's byte
    order mark is dropped. Memory is bounded by `max_line_bytes` and a block of 1 MiB.
    Raises InputError for a file that cannot be read or is shorter than `end`. Reports to `problems` bytes
    that are not UTF-8, NULs, and lines of more than `max_line_bytes`.
    """
    for offset, raw in _raw_blocks(path, start, end, max_line_bytes):
        if raw is None:
            longest = (
                f"{max_line_bytes >> 20} MiB" if max_line_bytes >= 1 << 20 else f"{max_line_bytes} bytes"
            )
            problems.report(offset, 0, f"the line is longer than {longest}", "break it into lines")
            yield offset, [None]
            continue
        mark = len(codecs.BOM_UTF8) if offset == 0 and raw.startswith(codecs.BOM_UTF8) else 0
        try:
            if b"\0" in raw:
                raise ValueError
            lines: list[str | None] = list(raw[mark:].decode("utf-8").split("\n"))
        except ValueError:  # UnicodeDecodeError is one
            position = mark
            while position < len(raw):  # as blocks of one line, so that reports come in order
                newline = raw.find(b"\n", position)
                stop = newline if newline >= 0 else len(raw)
                begin = offset + (position if position > mark else 0)
                yield begin, [_decoded(raw[position:stop], begin, problems)]
                position = stop + 1
            continue
        if raw.endswith(b"\n"):
            lines.pop()
        yield offset, lines


def _raw_blocks(path: str, start: int, end: int | None, limit: int) -> Iterator[tuple[int, bytes | None]]:
    """(byte offset, whole lines) of the range; None stands for one line of more than `limit` bytes.

    What is read at once is never more than the limit, so that only the last line of a block can be too long.
    """
    step = max(1, min(BLOCK_BYTES, limit))
    with open_text(path) as handle:
        position = handle.seek(start)
        left = sys.maxsize if end is None else end - start
        while block := handle.read(min(step, left)):
            left -= len(block)
            unfinished = len(block) - (block.rfind(b"\n") + 1)  # bytes of the line that the block ends in
            rest = handle.readline(min(limit + 1 - unfinished, left)) if unfinished else b""
            left -= len(rest)
            if unfinished + len(rest) <= limit or rest.endswith(b"\n"):
                yield position, block + rest
                position += len(block) + len(rest)
                continue
            if unfinished < len(block):
                yield position, block[:-unfinished]
            yield position + len(block) - unfinished, None
            position += len(block) + len(rest)
            while rest and not rest.endswith(b"\n"):
                rest = handle.readline(min(step, left))
                left -= len(rest)
                position += len(rest)
    if end is not None and position < end:
        raise InputError(
            f"{path} became shorter while it was read (it ends at byte {position}, expected {end}); "
            "give the command again when nobody writes to it"
        )


def _decoded(line: bytes, offset: int, problems: Problems) -> str | None:
    null = line.find(b"\0")
    if null >= 0:
        what = f"byte {null + 1} is a NUL, so this is no UTF-8 text"
        problems.report(offset, 0, what, "convert UTF-16 with iconv -f UTF-16 -t UTF-8")
        return None
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        what = f"byte {error.start + 1} is not valid UTF-8"
        problems.report(offset, 0, what, "convert the file, for example with iconv -t UTF-8")
        return None
