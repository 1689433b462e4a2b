"""Running text: the Bible, Jane Austen's novels, Python's documentation, HTML, a game's conversations."""

from __future__ import annotations

import glob
import html.parser
import os
import re
import struct
import subprocess
import zlib
from typing import Iterator

from base.errors import InputError
from data.text.prose import prose_sentences

_VERSE = re.compile(r"^(\d?[A-Z][a-z]+\d+):\d+ (.*)$")
_COMPRESS = b"\x1f\x9d\x90"  # what a file of compress(1) begins with


def bible_documents(folder: str) -> Iterator[list[str]]:
    """The chapters of bible-kjv-text below `folder`, a paragraph each, without the numbers of the verses."""
    chapter = ""
    verses: list[str] = []
    for line in _bible_text(os.path.join(folder, "usr/lib/bible.data")).split("\n"):
        match = _VERSE.match(line)
        if match is None:
            continue
        if match[1] != chapter and verses:
            yield [" ".join(verses)]
            verses = []
        chapter = match[1]
        verses.append(match[2])
    if verses:
        yield [" ".join(verses)]


def _bible_text(path: str) -> str:
    """The file's text: windows of 64 KiB, each packed by compress(1) and without the header of that.

    At byte 84 stand, as big-endian uint32, the size of a window, the number of windows, and where each begins
    and the last one ends.
    """
    with open(path, "rb") as handle:
        data = handle.read()
    _, count = struct.unpack_from(">II", data, 84)
    places = struct.unpack_from(f">{count + 1}I", data, 92)
    windows = []
    for start, end in zip(places, places[1:]):
        done = subprocess.run(["gzip", "-dc"], input=_COMPRESS + data[start:end], capture_output=True)
        if done.returncode != 0:
            raise InputError(
                f"{path}: not packed as this reader knows it; leave bible-kjv-text out of --packages"
            )
        windows.append(done.stdout)
    return b"".join(windows).decode("latin-1")


_CHAPTER = re.compile(r"^chapter\b.*$", re.IGNORECASE | re.MULTILINE)
_VECTOR_OF_STRINGS = 16


def austen_documents(folder: str) -> Iterator[list[str]]:
    """The chapters of Jane Austen's six novels out of r-cran-janeaustenr below `folder`."""
    path = os.path.join(folder, "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb")
    with open(path, "rb") as handle:
        data = handle.read()
    while data:  # records of R's lazy-load database: four bytes with the unpacked size, and zlib's stream
        stream = zlib.decompressobj()
        novel = "\n".join(_r_strings(stream.decompress(data[4:]), path))
        data = stream.unused_data
        for chapter in _CHAPTER.split(novel):
            yield [" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", chapter)]


def _r_strings(serialized: bytes, path: str) -> Iterator[str]:
    """The elements of a character vector as R serializes it in XDR ("R Internals", section 1.8)."""
    version = struct.unpack_from(">i", serialized, 2)[0]
    place = 14
    if version >= 3:  # the name of an encoding
        place += 4 + struct.unpack_from(">i", serialized, place)[0]
    flags, count = struct.unpack_from(">ii", serialized, place)
    if serialized[:2] != b"X\n" or flags & 255 != _VECTOR_OF_STRINGS:
        raise InputError(f"{path}: no vector of strings; leave r-cran-janeaustenr out of --packages")
    place += 8
    for _ in range(count):
        length = max(0, struct.unpack_from(">i", serialized, place + 4)[0])  # -1 of a missing value
        yield serialized[place + 8 : place + 8 + length].decode("utf-8", "replace")
        place += 8 + length


def python_documents(folder: str) -> Iterator[list[str]]:
    """The pages of python3.x-doc below `folder`, from their reStructuredText."""
    for path in _files(folder, "usr/share/doc/python3*/html/_sources/**/*.rst.txt"):
        with open(path, encoding="utf-8") as handle:
            yield list(prose_sentences(handle.read()))


def anarchism_documents(folder: str) -> Iterator[list[str]]:
    """The sections, below a heading each, of the pages of anarchism below `folder`."""
    for path in _files(folder, "usr/share/doc/anarchism/html/*.html"):
        reader = _Sections()
        with open(path, encoding="utf-8", errors="replace") as handle:
            reader.feed(handle.read())
        yield from reader.sections


class _Sections(html.parser.HTMLParser):
    """Collects the text of <p>; a heading begins a section."""

    def __init__(self) -> None:
        super().__init__()
        self.sections: list[list[str]] = [[]]
        self._inside = False

    def handle_starttag(self, tag: str, attrs: object) -> None:
        """Begin a paragraph or a section."""
        if tag == "p":
            self.sections[-1].append("")
        elif tag in ("h1", "h2", "h3"):
            self.sections.append([])
        self._inside = tag == "p" or (self._inside and tag not in ("h1", "h2", "h3"))

    def handle_endtag(self, tag: str) -> None:
        """End a paragraph."""
        self._inside = self._inside and tag != "p"

    def handle_data(self, data: str) -> None:
        """Add to the paragraph, if one is open."""
        if self._inside:
            self.sections[-1][-1] += data


_SPOKEN = re.compile(r"`([^`]*)`")


def endless_sky_documents(folder: str) -> Iterator[list[str]]:
    """Text and speech in the data files of Endless Sky below `folder`; a mission is a document."""
    for path in _files(folder, "usr/share/games/endless-sky/data/**/*.txt"):
        with open(path, encoding="utf-8", errors="replace") as handle:
            for mission in re.split(r"\n(?=\S)", handle.read()):
                yield [" ".join(each.split()) for each in _SPOKEN.findall(mission)]


def _files(folder: str, pattern: str) -> list[str]:
    """The files of a pattern below `folder`, each once also where links lead to it, in a fixed order."""
    found = glob.glob(os.path.join(glob.escape(folder), pattern), recursive=True)
    return sorted({os.path.realpath(path) for path in found})
