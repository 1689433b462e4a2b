"""Raw text: one sentence a line, a blank line between documents, UTF-8."""

from __future__ import annotations

import codecs
import glob
import os
from typing import Iterator, Sequence

from data.errors import InputError


def expand_globs(patterns: str, flag: str) -> list[str]:
    """The files that comma-separated glob patterns name, sorted and each once.

    `~` is expanded and `**` crosses directories. `flag` (such as "--data") is what error messages call the
    source.
    Raises InputError when a pattern matches no file, or when a file is empty or cannot be read.
    """
    pieces = [piece.strip() for piece in patterns.split(",") if piece.strip()]
    if not pieces:
        raise InputError(f"{flag}: no file given")
    found = set()
    for piece in pieces:
        matches = [
            path for path in glob.glob(os.path.expanduser(piece), recursive=True) if not os.path.isdir(path)
        ]
        if not matches:
            raise InputError(f"{flag}: no file matches {piece!r}")
        found.update(matches)
    for path in found:
        try:
            with open(path, "rb") as handle:
                if not handle.read(1):
                    raise InputError(f"{flag}: {path} is empty")
        except OSError as error:
            raise InputError(f"{flag}: cannot read {path}: {error.strerror}") from error
    return sorted(found)


def sentences(paths: Sequence[str]) -> Iterator[str | None]:
    """The sentences of the files in order, with None after each document.

    Surrounding white space is removed; a line of white space, or the end of a file, ends a document. A byte
    order mark and CRLF line ends are accepted. Memory is bounded by the longest line.
    Raises InputError naming the file and the line for bytes that are not UTF-8.
    """
    for path in paths:
        inside_document = False
        try:
            with open(path, "rb") as handle:
                for number, raw in enumerate(handle, 1):
                    line = _decode(raw, path, number).strip()
                    if line:
                        inside_document = True
                        yield line
                    elif inside_document:
                        inside_document = False
                        yield None
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}") from error
        if inside_document:
            yield None


def documents(paths: Sequence[str]) -> Iterator[list[str]]:
    """The documents of the files, each a non-empty list of sentences. Errors as in `sentences`."""
    document: list[str] = []
    for line in sentences(paths):
        if line is None:
            yield document
            document = []
        else:
            document.append(line)


def _decode(raw: bytes, path: str, number: int) -> str:
    if number == 1 and raw.startswith(codecs.BOM_UTF8):
        raw = raw[len(codecs.BOM_UTF8) :]
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}, line {number}: byte {error.start + 1} is not valid UTF-8; convert the file, "
            f"for example with iconv -t UTF-8"
        ) from error
