"""Raw text, UTF-8: the files, the parts they are read in, and their sentences and documents."""

from __future__ import annotations

import glob
import io
import os
import stat
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Callable, Iterator, Sequence

from base.errors import InputError
from data.options import TextConfig
from data.text.formats import BOOKS, DOC, JSON, LINES, border, detect_format, paragraphs
from data.text.lines import Problems, line_blocks, open_text
from data.text.sentences import split_sentences

MAX_SENTENCE_BYTES = 1 << 20  # of a line that is one sentence
MAX_PARAGRAPH_BYTES = 1 << 24  # of a line that is a paragraph, or a whole document in JSON
UNIT_BYTES = 4 << 20
_LISTED = 3  # names of files in a message


@dataclass(frozen=True)
class TextUnit:
    """Whole lines of a text file, bytes [start, end), to be read on their own by `read_unit`.

    name: for messages. format: what the file is, as `data.text.formats` calls it. last: it ends the file.
    packed: the bytes, all of the file's, are to be unpacked first.
    """

    name: str
    path: str
    start: int
    end: int
    format: str
    last: bool
    packed: bool = False

    @property
    def size(self) -> int:
        """Length in bytes."""
        return self.end - self.start


def expand_inputs(patterns: str, flag: str) -> list[str]:
    """The files that comma-separated paths and glob patterns name, sorted and each once.

    `~` is expanded and `**` crosses directories. A directory stands for all files below it, but empty and
    hidden ones and those in hidden directories; links to directories are not followed. `flag` (such as
    "--data") is what error messages call the source.
    Raises InputError when a pattern matches no file, or when a file is empty or cannot be read.
    """
    pieces = [piece.strip() for piece in patterns.split(",") if piece.strip()]
    if not pieces:
        raise InputError(f"{flag}: no file given")
    paths = set()
    for piece in pieces:
        matches: list[str] = []
        empty: list[str] = []
        named = os.path.expanduser(piece)
        # A name with brackets in it is a pattern that does not match itself.
        for path in [named] if os.path.exists(named) else glob.glob(named, recursive=True):
            if not os.path.isdir(path):
                _check_file(path, flag)
                matches.append(path)
            else:
                for below in _files_below(path, flag):
                    # A file below may be empty (WikiExtractor leaves such), a file that was named may not.
                    (matches if os.path.getsize(below) else empty).append(below)
        if empty and not matches:
            listed = ", ".join(sorted(empty)[:_LISTED])
            more = f" and {len(empty) - _LISTED:,} more" if len(empty) > _LISTED else ""
            raise InputError(f"{flag}: {piece} holds nothing but empty files: {listed}{more}")
        if not matches:
            raise InputError(f"{flag}: no file matches {piece!r}")
        paths.update(matches)
    return sorted(paths)


def text_units(
    paths: Sequence[str], settings: TextConfig = TextConfig(), unit_bytes: int = UNIT_BYTES
) -> list[TextUnit]:
    """The files in parts of about `unit_bytes` bytes, in order; every file has one at least.

    A part begins where a line does, in Wikipedia's forms where a document does, and therefore may be longer.
    A file that gzip, bzip2, xz or zstd has packed is one part: only from its beginning can it be read.
    The parts depend only on the arguments and the files' content.
    Raises InputError for a file that cannot be read, is an archive or no regular file.
    """
    return [unit for path in paths for unit in _file_units(path, settings, max(1, unit_bytes))]


def read_unit(
    unit: TextUnit, settings: TextConfig = TextConfig(), on_bad: Callable[[str], None] | None = None
) -> Iterator[str | None]:
    """The sentences of one part of a file, and None where a document ends.

    Over all parts in order, these are the same sentences in the same documents for any `unit_bytes`, if the
    reader ignores a None that follows no sentence (at the very beginning, or after another None, also one of
    the part before). Such a None comes at the borders of parts only. A document may begin in one part and end
    in another; the end of a file always ends it. Sentences have no newline, no white space around them, and
    are never empty. Memory is bounded by the longest line that is allowed (16 MiB).
    Where `settings.skip_bad_records`, bad lines are left out and `on_bad`, which must be given, gets one line
    for each naming file and line. Otherwise raises InputError with that.
    """
    start = -1 if unit.packed else unit.start
    problems = Problems(unit.path, start, on_bad if settings.skip_bad_records else None)
    one_sentence = unit.format in (LINES, BOOKS) and not settings.split_sentences
    limit = MAX_SENTENCE_BYTES if one_sentence else MAX_PARAGRAPH_BYTES
    blocks = line_blocks(unit.path, unit.start, None if unit.packed else unit.end, limit, problems)
    found = paragraphs(unit.format, blocks, problems, inside=unit.start > 0, ends=unit.last)
    if one_sentence:
        return found
    split = ((None,) if each is None else split_sentences(each) for each in found)
    return chain.from_iterable(split)


def sentences(
    paths: Sequence[str],
    settings: TextConfig = TextConfig(),
    on_bad: Callable[[str], None] | None = None,
) -> Iterator[str | None]:
    """The sentences of the files in order, and None where a document ends, as `read_unit` over whole files.

    By default a line is a sentence and a blank line ends a document, unless a file is seen to be Wikipedia's.
    A byte order mark and CRLF line ends are accepted.
    """
    for path in paths:
        for unit in _file_units(path, settings, 1 << 62):
            yield from read_unit(unit, settings, on_bad)


def documents(
    paths: Sequence[str],
    settings: TextConfig = TextConfig(),
    on_bad: Callable[[str], None] | None = None,
) -> Iterator[list[str]]:
    """The documents of the files, each a non-empty list of sentences. Otherwise as `sentences`."""
    for ends, group in groupby(sentences(paths, settings, on_bad), lambda each: each is None):
        if not ends:
            yield [each for each in group if each is not None]


def _files_below(directory: str, flag: str) -> Iterator[str]:
    def fail(error: OSError) -> None:
        raise InputError(f"{flag}: cannot read {error.filename}: {error.strerror}") from error

    for place, subdirectories, names in os.walk(directory, onerror=fail):
        subdirectories[:] = [name for name in subdirectories if not name.startswith(".")]
        for name in names:
            path = os.path.join(place, name)
            if not name.startswith(".") and os.path.isfile(path):
                yield path


def _check_file(path: str, flag: str) -> None:
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as handle:
            if not stat.S_ISREG(os.fstat(handle.fileno()).st_mode):
                raise InputError(f"{flag}: {path} is not a regular file; write what it gives to a file first")
            if not handle.read(1):
                raise InputError(f"{flag}: {path} is empty")
    except OSError as error:
        raise InputError(f"{flag}: cannot read {path}: {error.strerror}") from error


def _file_units(path: str, settings: TextConfig, unit_bytes: int) -> list[TextUnit]:
    text_format = detected = detect_format(path)
    if settings.text_format == "wikiextractor":
        # Whatever else it is, reading it as elements names the line at fault.
        text_format = JSON if detected == JSON else DOC
    elif settings.text_format != "auto":
        text_format = settings.text_format
    with open_text(path) as handle:
        size = os.fstat(handle.fileno()).st_size
        if not isinstance(handle, io.BufferedReader):  # as a file that is not packed is read
            return [TextUnit(path, path, 0, size, text_format, last=True, packed=True)]
        borders = [0]
        while size - borders[-1] > unit_bytes:
            borders.append(border(handle, text_format, borders[-1] + unit_bytes, size))
        if borders[-1] < size or size == 0:
            borders.append(size)
    return [
        TextUnit(f"{path}, bytes {start} to {end}", path, start, end, text_format, end == size)
        for start, end in zip(borders, borders[1:])
    ]
