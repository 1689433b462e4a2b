"""English text out of Debian packages: dictionaries, books, documentation.

Packages are fetched and unpacked into a folder, without installing them and without root.
"""

from __future__ import annotations

import glob
import gzip
import html.parser
import itertools
import os
import re
import shutil
import struct
import subprocess
import zlib
from typing import Callable, Iterator, NamedTuple, Sequence

from base.errors import InputError
from data.text.prose import has_clause, prose_sentences
from data.text.sentences import split_sentences


class Package(NamedTuple):
    """An unpacked package: `folder` is what would be / had it been installed."""

    name: str
    version: str
    folder: str


def fetch_package(name: str, folder: str) -> Package:
    """Download the release's version of a package with apt-get and unpack it into `folder`, a new one.

    A name that ends in "*" stands for the package that the one without it depends on: python3-doc* is
    python3.11-doc in Debian 12.

    Raises:
        InputError: no apt-get here, or it knows no such package or cannot get it.
    """
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise _missing(name, "this system has no apt-get")
    if name.endswith("*"):
        name = name[:-1]
        depends = _run(["apt-cache", "depends", name], os.curdir).stdout
        found = re.search(r"^ +Depends: (\S+)$", depends, re.MULTILINE)
        if found is None:
            raise _missing(name, "apt-cache names nothing that it depends on")
        name = found[1]
    os.makedirs(folder)
    done = _run(["apt-get", "download", name], folder)
    archives = glob.glob(os.path.join(glob.escape(folder), "*.deb"))
    if done.returncode != 0 or len(archives) != 1:
        problems = [line for line in done.stderr.splitlines() if line.startswith("E: ")]
        raise _missing(
            name, problems[-1][3:] if problems else f"apt-get download ended with {done.returncode}"
        )
    unpacked = os.path.join(folder, "root")
    field = _run(["dpkg-deb", "--field", archives[0], "Version"], folder)
    done = _run(["dpkg-deb", "--extract", archives[0], unpacked], folder)
    for each in (field, done):
        if each.returncode != 0:
            raise _missing(name, f"dpkg-deb: {each.stderr.strip()}")
    os.unlink(archives[0])
    return Package(name, field.stdout.strip(), unpacked)


def has_package(name: str) -> bool:
    """Whether apt-get can download a package of this name, as far as its lists say."""
    return _run(["apt-cache", "show", name], os.curdir).returncode == 0


def _run(command: Sequence[str], folder: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}  # messages and names of fields in English
    return subprocess.run(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )


def _missing(name: str, reason: str) -> InputError:
    return InputError(
        f"Debian package {name}: {reason}; run `apt-get update`, leave the package out of --packages, or use "
        "text of your own: make corpus TEXT='FILES'"
    )


# GCIDE as dictd has it: a headword at the beginning of a line, below it blocks of indented lines.
_BRACKETS = re.compile(r"\[[^\[\]]*\]")  # origins of words, sources, marks such as [Obs.]
_HEAD = re.compile(r"^[^\\]*\\[^\\]*\\")  # the headword and, between backslashes, how it is pronounced
_LABELS = re.compile(
    r"^(?:[\s,;&.]|\([^()]*\)|(?:n|a|v|t|i|adv|prep|conj|interj|pron|p|pr|imp|pl|superl|compar|vb|sing|fem|masc)\.)+"
)
_NUMBER = re.compile(r"^(?:\d+\.|\([a-z0-9]\)|\([A-Z][\w. &]*\.\))\s*")
_AUTHOR = re.compile(r"\s*--\s?(?:[A-Z(][\w.'()]*[\s,&]*)+")
_REFERENCE = re.compile(r"^(?:Syn|Note|See|Cf|Usage)\b:?")


def gcide_documents(folder: str) -> Iterator[list[str]]:
    """Sentences of dict-gcide below `folder`; those with the same first three letters are a document.

    Left out: headwords, pronunciations, origins, sources, authors of quotations, synonyms, and what has no
    clause, which are most definitions.
    """
    path = os.path.join(folder, "usr/share/dictd/gcide.dict.dz")
    with gzip.open(path, "rt", encoding="utf-8", errors="replace") as handle:
        text = handle.read()
    document: list[str] = []
    letters = ""
    for block in re.split(r"\n[ \t]*\n", text):
        if block.startswith("00-database") or not block.strip():
            continue
        has_headword = not block.lstrip("\n")[:1].isspace()
        if has_headword:
            start = re.sub(r"[^a-z]", "", block[:12].lower())[:3]
            if start != letters and document:
                yield document
                document = []
            letters = start
        document += filter(has_clause, split_sentences(_plain_entry(block, has_headword)))
    if document:
        yield document


def _plain_entry(block: str, has_headword: bool) -> str:
    text = " ".join(block.split())
    for _ in range(2):  # brackets inside brackets
        text = _BRACKETS.sub("", text)
    if has_headword:
        text = _HEAD.sub("", text, count=1) if "\\" in text else ""
        text = _LABELS.sub("", text)
    text = _NUMBER.sub("", _NUMBER.sub("", text.strip()))
    if _REFERENCE.match(text):
        return ""
    text = _AUTHOR.sub(" ", text).replace("{", "").replace("}", "").replace("``", '"').replace("''", '"')
    return " ".join(text.split())


_GLOSS_PARTS = re.compile(r'"([^"]*)"')


def wordnet_documents(folder: str) -> Iterator[list[str]]:
    """Examples of wordnet-base below `folder`, as sentences; a lexicographer file is a document."""
    wordnet = os.path.join(folder, "usr/share/wordnet")
    for name in ("data.noun", "data.verb", "data.adj", "data.adv"):
        groups: dict[str, list[str]] = {}
        with open(os.path.join(wordnet, name), encoding="utf-8", errors="replace") as handle:
            for line in handle:
                if line.startswith("  "):
                    continue  # the licence
                fields, _, gloss = line.partition(" | ")
                group = groups.setdefault(fields.split(" ", 2)[1], [])
                examples = _GLOSS_PARTS.findall(gloss)
                # A verb's are sentences or commands ("start afresh"); others are often phrases.
                group += map(_as_sentence, examples if name == "data.verb" else filter(has_clause, examples))
        yield from groups.values()
    # The sentences that WordNet has for its verbs: patterns such as "The children %s to the playground".
    with open(os.path.join(wordnet, "sents.vrb"), encoding="utf-8") as handle:
        patterns = dict(line.rstrip("\n").split(" ", 1) for line in handle if " " in line)
    of_verbs = []
    with open(os.path.join(wordnet, "sentidx.vrb"), encoding="utf-8") as handle:
        for line in handle:
            key, _, numbers = line.strip().partition(" ")
            verb = key.partition("%")[0].replace("_", " ")
            for number in filter(None, numbers.split(",")):
                of_verbs.append(_as_sentence(patterns[number.strip()].replace("%s", verb)))
    yield of_verbs


def _as_sentence(example: str) -> str:
    text = " ".join(example.split()).rstrip(";,: ")
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else text + "."


_VERSE = re.compile(r"^(\d?[A-Z][a-z]+\d+):\d+ (.*)$")
_COMPRESS = b"\x1f\x9d\x90"  # what a file of compress(1) begins with


def bible_documents(folder: str) -> Iterator[list[str]]:
    """The chapters of bible-kjv-text below `folder`, a paragraph each, without the numbers of the verses."""
    lines = _bible_text(os.path.join(folder, "usr/lib/bible.data")).split("\n")
    verses = filter(None, map(_VERSE.match, lines))
    for _, chapter in itertools.groupby(verses, lambda verse: verse[1]):
        yield [" ".join(verse[2] for verse in chapter)]


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
        for chapter in re.split(r"(?im)^chapter\b.*$", novel):
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


def endless_sky_documents(folder: str) -> Iterator[list[str]]:
    """Text and speech in the data files of Endless Sky below `folder`; a mission is a document."""
    for path in _files(folder, "usr/share/games/endless-sky/data/**/*.txt"):
        with open(path, encoding="utf-8", errors="replace") as handle:
            for mission in re.split(r"\n(?=\S)", handle.read()):
                yield [" ".join(each.split()) for each in re.findall(r"`([^`]*)`", mission)]


def _files(folder: str, pattern: str) -> list[str]:
    """The files of a pattern below `folder`, each once also where links lead to it, in a fixed order."""
    found = glob.glob(os.path.join(glob.escape(folder), pattern), recursive=True)
    return sorted({os.path.realpath(path) for path in found})


class Source(NamedTuple):
    """A Debian package with English text.

    package: its name, as `fetch_package` takes it. documents: from the folder where it
    is unpacked, documents as lists of paragraphs of running text. licence: of the text, as its copyright file
    says; that file goes beside the corpus. everywhere: whether all releases since Debian 12 have it.
    """

    package: str
    documents: Callable[[str], Iterator[list[str]]]
    licence: str
    about: str
    everywhere: bool = True


SOURCES = (
    Source("dict-gcide", gcide_documents, "GPL-2+", "definitions and quotations of a dictionary"),
    Source("wordnet-base", wordnet_documents, "WordNet 3.0 (free)", "examples of the use of words"),
    Source("bible-kjv-text", bible_documents, "public domain", "the Bible of 1611"),
    Source("r-cran-janeaustenr", austen_documents, "public domain", "Jane Austen's six novels"),
    Source("python3-doc*", python_documents, "PSF-2", "the documentation of Python"),
    Source("anarchism", anarchism_documents, "GPL-2", "a book of questions and answers on politics"),
    Source("endless-sky-data", endless_sky_documents, "GPL-3+", "conversations of a game", everywhere=False),
)
