"""The forms in which corpora come: which one a file has, where documents begin, the text without mark-up."""

from __future__ import annotations

import codecs
import html
import json
import re
from typing import IO, Any, Iterable, Iterator, Optional

from base.errors import InputError
from data.text.lines import Problems, open_text
from data.text.sentences import UNKNOWN

# What `detect_format` can answer. WikiExtractor writes two forms: <doc> elements and JSON lines.
LINES, BOOKS, WIKITEXT, DOC, JSON = "lines", "books", "wikitext", "wikiextractor-doc", "wikiextractor-json"

PROBE_BYTES = 1 << 16
_BLANK_BLOCK = 1 << 20
_MAX_HEADING = 1000  # characters; the pattern takes quadratic time

Blocks = Iterable[tuple[int, list[Optional[str]]]]

_ARCHIVES = {"tar -x": (257, b"ustar"), "unzip": (0, b"PK\x03\x04")}
# Between words, where no line feed is.
_RETURN = re.compile(rb"\S[ \t]*\r\s*\S")
_DOC_BEGIN = re.compile(r"<doc(?:\s[^\n]*)?>\s*\Z")
_TITLE = re.compile(r'\stitle="(.*)"[^"]*>\s*\Z', re.DOTALL)
_JSON_KEYS = re.compile(rb'\{\s*"(?:id|revid|url|title|text)"\s*:')
_SPLIT_SIGN = re.compile(r" ?@([-,.])@ ?")
# " = Title = ", " = = Section = = ": as many signs on both sides. Spaces around it may have been stripped.
_HEADING = re.compile(r"\s?((?:= )+)(?!=)(\S.*?) ((?:= ?)+)\s*\Z", re.DOTALL)


def detect_format(path: str) -> str:
    """The form of the file, from its first 64 KiB of text: WIKITEXT, DOC, JSON or LINES.

    Raises InputError for a file that cannot be read, is an archive, or whose lines end with carriage returns
    alone.
    """
    probe = _probe(path)
    for tool, (place, magic) in _ARCHIVES.items():
        if probe.startswith(magic, place):
            raise InputError(f"{path} is an archive: unpack it first, for example with {tool}")
    if b"\n" not in probe and _RETURN.search(probe) and _decoded(probe[: probe.rfind(b"\r")]):
        raise InputError(
            f"{path} has carriage returns alone for line ends, as on old Macs: convert it, for example with "
            "tr '\\r' '\\n'"
        )
    lines = probe.split(b"\n")
    if _DOC_BEGIN.match(_decoded(lines[0])):
        return DOC
    if lines[0].startswith(b"{"):
        record = _json_value(lines[0]) if len(lines) > 1 else None
        if _JSON_KEYS.match(lines[0]) or (isinstance(record, dict) and record):
            return JSON
    texts = [_decoded(line) for line in lines]
    for index, text in enumerate(texts[:-1] if len(probe) >= PROBE_BYTES else texts):
        blank_before = index == 0 or not texts[index - 1].strip()
        blank_after = index + 1 >= len(texts) or not texts[index + 1].strip()
        if blank_before and blank_after and heading_level(text):
            return WIKITEXT
    return LINES


def border(handle: IO[bytes], text_format: str, nominal: int, end: int) -> int:
    """The first byte from `nominal` on at which a part of the file may begin, `end` if there is none.

    That is a line's beginning, and for DOC and WIKITEXT also a document's, so that a part needs to know
    nothing of the part before it. Reads forward only, in bounded memory.
    """
    position = _next_line(handle, nominal, end)
    if text_format not in (DOC, WIKITEXT):
        return position
    handle.seek(position)
    blank_before = False  # not known; at worst the next document is taken
    while position < end:
        line = handle.readline(PROBE_BYTES)
        if not line:
            return end
        # A line that the reader would leave out as bad begins nothing, hence the strict decoding.
        if text_format == DOC:
            begins = line.startswith(b"<doc") and _DOC_BEGIN.match(_decoded(line)) is not None
        else:
            begins = blank_before and b"=" in line[:4] and heading_level(_decoded(line)) == 1
        if begins:
            return position
        blank_before = not line.strip()
        position += len(line)
        if not line.endswith(b"\n") and position < end:
            position = _next_line(handle, position, end)
            handle.seek(position)
            blank_before = False
    return end


def heading_level(line: str) -> int:
    """1 for WikiText's " = Title = ", 2 for " = = Section = = " and so on, 0 for other lines."""
    if "=" not in line[:4] or len(line) > _MAX_HEADING:
        return 0
    match = _HEADING.match(line)
    if not match:
        return 0
    left, right = match.group(1).count("="), match.group(3).count("=")
    return left if left == right else 0


def paragraphs(
    text_format: str, blocks: Blocks, problems: Problems, inside: bool, ends: bool
) -> Iterator[str | None]:
    """Paragraphs of a file of this form, or of a part of it, and None after each document.

    `inside`: a document may come from the part before. `ends`: the part ends the file.
    """
    if text_format == WIKITEXT:
        return _of_wikitext(blocks)
    if text_format == DOC:
        return _of_elements(blocks, problems)
    if text_format == JSON:
        return _of_json(blocks, problems)
    return _of_lines(blocks, inside, ends, is_book=text_format == BOOKS)


def _of_lines(blocks: Blocks, inside: bool, ends: bool, is_book: bool) -> Iterator[str | None]:
    """Lines; a blank one ends a document, but is nothing in a book."""
    for _, lines in blocks:
        for line in lines:
            if line is None:
                continue
            line = line.strip()
            if line:
                inside = True
                yield line
            elif inside and not is_book:
                inside = False
                yield None
    if ends and (inside or is_book):
        yield None


def _of_wikitext(blocks: Blocks) -> Iterator[str | None]:
    """Paragraphs of WikiText, None after each article.

    A title after a blank line begins an article. Headings are dropped. "@-@", "@,@" and "@.@" are put back
    together, because they would otherwise become tokens that no other text has; "<unk>" becomes UNKNOWN. The
    spaces around punctuation stay: BERT's tokenizers separate punctuation anyway, so that removing them would
    change no token.
    """
    inside = False
    blank_before = True
    for _, lines in blocks:
        for line in lines:
            if line is None:
                blank_before = False
                continue
            level = heading_level(line)
            if level:
                if level == 1 and blank_before and inside:
                    inside = False
                    yield None
                if level > 1 or blank_before:
                    blank_before = False
                    continue
            line = line.strip()
            blank_before = not line
            if line:
                inside = True
                line = _SPLIT_SIGN.sub(r"\1", line) if "@" in line else line
                yield line.replace("<unk>", UNKNOWN)
    if inside:
        yield None


def _of_elements(blocks: Blocks, problems: Problems) -> Iterator[str | None]:
    """Paragraphs of WikiExtractor's <doc> elements, None after each; the title line on top is dropped.

    Reported: text outside of elements, which is left out, and elements without an end, whose text is kept.
    """
    opened: tuple[int, int] | None = None  # where the element begins that is being read
    stray = False  # text outside of elements was already reported here
    title: str | None = None  # to be dropped if it is the next line
    where = (0, 0)
    for offset, lines in blocks:
        for index, line in enumerate(lines):
            where = (offset, index)
            if line is None or not line.strip():
                continue
            if line.startswith("<doc") and _DOC_BEGIN.match(line):
                if opened is not None:
                    _not_closed(problems, opened)
                    yield None
                opened, stray = where, False
                match = _TITLE.search(line)
                title = match.group(1).strip() if match else None
                continue
            text = line.strip()
            if opened is None:
                if not stray:
                    stray = True
                    what = "text outside of <doc ...> and </doc>"
                    problems.report(
                        *where, what, "is the file whole? Give --text_format lines if it is plain text"
                    )
                continue
            closed = text.endswith("</doc>")
            if closed:
                text = text[: -len("</doc>")].strip()
            if text and not (title is not None and text in (title, html.unescape(title))):
                yield text
            if text:
                title = None
            if closed:
                opened = None
                yield None
    if opened is not None:
        _not_closed(problems, opened)
        yield None


def _of_json(blocks: Blocks, problems: Problems) -> Iterator[str | None]:
    """Paragraphs of the "text" of JSON lines, which are its lines; None after each record that has some.

    Reported and left out: lines that are no JSON object with a string "text".
    """
    for offset, lines in blocks:
        for index, line in enumerate(lines):
            if line is None or not line.strip():
                continue
            text = _json_text(line)
            if text is None:
                what = 'the line is no JSON object with a string "text"'
                problems.report(offset, index, what, "give --text_format lines if this is plain text")
                continue
            inside = False
            for paragraph in text.split("\n"):
                paragraph = paragraph.strip()
                if paragraph:
                    inside = True
                    yield paragraph
            if inside:
                yield None


def _json_text(line: str) -> str | None:
    record = _json_value(line)
    text = record.get("text") if isinstance(record, dict) else None
    if not isinstance(text, str) or "\0" in text:
        return None
    try:
        text.encode("utf-8")  # "\ud800" is valid JSON, but no character
    except UnicodeEncodeError:
        return None
    return text


def _json_value(line: str | bytes) -> Any:
    """Content of a JSON line with all numbers as None, or None if it is no JSON."""
    try:
        # Numbers are not wanted, and some releases of Python take quadratic time for long ones.
        return json.loads(line, parse_int=lambda _: None, parse_float=lambda _: None)
    except (ValueError, RecursionError):
        return None


def _not_closed(problems: Problems, opened: tuple[int, int]) -> None:
    what = "the document that begins here has no </doc>"
    problems.report(*opened, what, "is the file whole? Extract it again")


def _decoded(line: bytes) -> str:
    """The line, or nothing if it is no text."""
    try:
        return "" if b"\0" in line else line.decode("utf-8")
    except UnicodeDecodeError:
        return ""


def _probe(path: str) -> bytes:
    """The first 64 KiB of the file from its first line with text, without a byte order mark."""
    with open_text(path) as handle:
        text = handle.read(PROBE_BYTES).removeprefix(codecs.BOM_UTF8)
        while text and not text.strip():
            text = text[-1:] + handle.read(_BLANK_BLOCK) if len(text) > 1 else handle.read(_BLANK_BLOCK)
        blank = len(text) - len(text.lstrip())
        text = text[text.rfind(b"\n", 0, blank) + 1 :]
        return (text + handle.read(max(0, PROBE_BYTES - len(text))))[:PROBE_BYTES]


def _next_line(handle: IO[bytes], position: int, end: int) -> int:
    """Start of the first line that begins at `position` or later."""
    handle.seek(position - 1)  # a newline just before `position` makes it a beginning
    while block := handle.readline(_BLANK_BLOCK):
        if block.endswith(b"\n"):
            return min(handle.tell(), end)
    return end
