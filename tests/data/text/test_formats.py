"""The forms of text, bad lines in them, and text that is meant to take time or memory."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path

import pytest

from base.errors import InputError
from data.options import TextConfig
from data.text.corpus import documents, read_unit, sentences, text_units
from data.text.formats import BOOKS, DOC, JSON, LINES, WIKITEXT, detect_format, heading_level
from data.text.lines import Problems, line_blocks
from data.text.sentences import UNKNOWN
from tests.data.text.test_units import write
from tests.data.wikitext import DOCUMENTS
from tests.processes import run_command


@pytest.fixture
def file(tmp_path):
    def write(content):
        path = tmp_path / "text"
        path.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
        return str(path)

    return write


def skipping(path, text_format="auto"):
    """The documents, and the messages about lines left out."""
    messages = []
    found = list(documents([path], TextConfig(text_format, skip_bad_records=True), messages.append))
    return found, messages


def numbers(messages):
    """The lines that they name."""
    return [int(re.search(r"text, line (\d+): ", message)[1]) for message in messages]


def error(path, text_format="auto"):
    with pytest.raises(InputError) as caught:
        list(sentences([path], TextConfig(text_format)))
    assert "\n" not in str(caught.value)
    return str(caught.value)


WIKIEXTRACTOR = """<doc id="12" url="https://en.wikipedia.org/wiki?curid=12" title="A &quot;B&quot;">
A "B"

A "B" is a thing. It is old.

See also: C. F. Gauss.
</doc>
<doc id="13" url="https://en.wikipedia.org/wiki?curid=13" title="Nothing">
Nothing

</doc>

<doc id="14" revid="9" url="u" title="Say "when" again">

Say "when" again

When. Now.</doc>
<doc id="15">
No title here. Two.
</doc>
"""


@pytest.mark.parametrize(
    "content",
    [WIKIEXTRACTOR, b"\xef\xbb\xbf" + WIKIEXTRACTOR.replace("\n", "\r\n").encode()],
    ids=["as it is", "with CRLF and a byte order mark"],
)
def test_wikiextractor_elements(file, content):
    path = file(content)
    assert detect_format(path) == DOC
    expected = [
        ['A "B" is a thing.', "It is old.", "See also: C. F. Gauss."],
        ["When.", "Now."],
        ["No title here.", "Two."],
    ]
    assert list(documents([path])) == expected
    assert list(documents([path], TextConfig("wikiextractor"))) == expected


def test_only_the_first_line_can_be_the_title(file):
    path = file('<doc id="1" title="Go">\nIt is a game.\nGo\nGo is old.\n</doc>\n')
    assert list(documents([path])) == [["It is a game.", "Go", "Go is old."]]


def test_json_lines(file):
    records = [
        {"id": "1", "url": "u", "title": "T", "text": "One. Two.\n\nThree\u2028still."},
        {"id": "2", "text": ""},
        {"text": "\n \n"},
        {"text": "Four."},
    ]
    path = file("\n".join(json.dumps(record) for record in records))
    assert detect_format(path) == JSON
    expected = [["One.", "Two.", "Three\u2028still."], ["Four."]]
    assert list(documents([path])) == expected
    assert list(documents([path], TextConfig("wikiextractor"))) == expected


def test_a_long_first_record_is_still_seen_as_json(file):
    path = file(json.dumps({"id": "1", "text": "Word. " * 50_000}) + "\n")
    assert detect_format(path) == JSON
    assert sum(len(document) for document in documents([path])) == 50_000


def test_wikitext(file):
    path = file(
        " \n = The <unk> = \n \n A state @-@ owned ship of 3 @,@ 200 t ( 1 @.@ 5 @-@ inch ) . It sank . \n"
        " \n = = Life = = \n \n Then <unk> left . \n = = = 1990 = = = \n x = y = z \n"
        " \n = 2 + 2 = 4 = \n \n Sum . \n"
    )
    assert detect_format(path) == WIKITEXT
    life = ["It sank .", f"Then {UNKNOWN} left .", "x = y = z"]
    expected = [["A state-owned ship of 3,200 t ( 1.5-inch ) .", *life], ["Sum ."]]
    assert list(documents([path])) == expected


def test_a_title_without_a_blank_line_before_it_is_text(file):
    path = file(" = A = \n \n One . \n = 5 = \n Two . \n")
    assert list(documents([path])) == [["One .", "= 5 =", "Two ."]]


def test_headings():
    levels = {
        1: (" = A = ", "= A =", " = A = B = "),
        2: (" = = A b = = \r",),
        3: (" = = = A = = = ",),
        0: (" = A", "A = B", " = = A = ", " = = ", "", " == A == ", " = " + "A" * 2000 + " = "),
    }
    for level, lines in levels.items():
        assert [heading_level(line) for line in lines] == [level] * len(lines)


def test_a_hostile_heading_takes_no_long_time(file):
    path = file(" = A = \n \n = a" + " =" * 4_000_000 + " b = \n")
    start = time.process_time()
    list(documents([path]))
    assert time.process_time() - start < 10


def test_books_are_one_document_each(tmp_path):
    for name in "ab":
        (tmp_path / name).write_text(f"Chapter {name}\n\n\nIt began. It went on.\n\n   \nThe end", "utf-8")
    paths = [str(tmp_path / "a"), str(tmp_path / "b")]
    assert [unit.format for unit in text_units(paths, TextConfig("books"))] == [BOOKS, BOOKS]
    lines = ["Chapter a", "It began. It went on.", "The end"]
    assert next(documents(paths, TextConfig("books"))) == lines
    split = list(documents(paths, TextConfig("books", split_sentences=True)))
    assert split[0] == ["Chapter a", "It began.", "It went on.", "The end"] and len(split) == 2


def test_formats_are_seen_in_the_content(file):
    plain = ("Plain text.\n\nMore.\n", "", "\n \n", "a = b\n", "Text.\n = not a heading = \nText.\n")
    nearly = ("<document>\n", "<doc> is a word\n", "{braces} in text\n", "{}\n", '"a": 1\n')
    cut_out = "The rest of a text . \n \n = = Next = = \n \n More . \n"  # of the middle of a larger file
    for expected, contents in (
        (LINES, (*plain, *nearly)),
        (JSON, ['{"other": 1}\n']),
        (WIKITEXT, ["\n" * 3_000_000 + " = T = \n \nText\n", cut_out]),
        (DOC, ["\n" * 100_000 + '<doc id="1">\n']),
    ):
        assert [detect_format(file(content)) for content in contents] == [expected] * len(contents)


def test_every_file_has_its_own_format(tmp_path):
    (tmp_path / "a").write_text("One. Two.\n", "utf-8")
    (tmp_path / "b").write_text(" = T = \n \n One . Two . \n", "utf-8")
    paths = [str(tmp_path / "a"), str(tmp_path / "b")]
    assert list(documents(paths)) == [["One. Two."], ["One .", "Two ."]]
    assert list(documents(paths, TextConfig("lines"))) == [["One. Two."], ["= T ="], ["One . Two ."]]


def test_text_outside_of_elements(file):
    path = file('stray\nmore\n<doc id="1">\nOne.\n</doc>\nafter\n\nand\n<doc id="2">\nTwo.\n</doc>\n')
    assert "text, line 1: text outside of <doc" in error(path, "wikiextractor")
    found, messages = skipping(path, "wikiextractor")
    assert found == [["One."], ["Two."]] and numbers(messages) == [1, 6]


def test_elements_without_an_end(file):
    path = file('<doc id="1">\nOne.\n<doc id="2">\nTwo.\n</doc>\n\n<doc id="3">\nThree.\n')
    assert "text, line 1: the document that begins here has no </doc>" in error(path)
    found, messages = skipping(path)
    assert found == [["One."], ["Two."], ["Three."]] and numbers(messages) == [1, 7]


@pytest.mark.parametrize(
    "bad",
    [
        "[1, 2]",
        '"text"',
        '{"title": "T"}',
        '{"text": 3}',
        '{"text": null}',
        '{"text": "cut off',
        "not JSON",
        '{"text": "a\\u0000b"}',
        '{"text": "\\ud800"}',
        "[" * 100_000,
        '{"text": ' + "9" * 1_000_000 + "}",
    ],
    ids=range(11),
)
def test_bad_json_lines(file, bad):
    path = file('{"text": "One."}\n' + bad + '\n\n{"text": "Two."}\n')
    start = time.process_time()
    assert 'text, line 2: the line is no JSON object with a string "text"' in error(path)
    found, messages = skipping(path)
    assert found == [["One."], ["Two."]] and numbers(messages) == [2]
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    "begin, tool", [(b"PK\x03\x04", "unzip"), (b"wiki.txt".ljust(257, b"\0") + b"ustar", "tar -x")]
)
def test_archives_are_refused_by_name(file, begin, tool):
    assert f"is an archive: unpack it first, for example with {tool}" in error(file(begin + b"rest\n"))


@pytest.mark.parametrize("text", [b"One.\r\rTwo.\r", b"One. \r\r" + "\u4e2d".encode() * 30_000])
def test_carriage_returns_alone_are_named(file, text):
    path = file(text)
    assert error(path).startswith(f"{path} has carriage returns alone for line ends")
    assert list(documents([file(text.replace(b"\r", b"\r\n"))]))[0] == ["One."]


def test_text_that_begins_like_a_compressed_file(file):
    assert list(documents([file("BZh is a name\n")])) == [["BZh is a name"]]


def test_real_wikitext(wikitext):
    assert detect_format(wikitext) == WIKITEXT
    found = list(documents([wikitext]))
    assert len(found) == DOCUMENTS
    text = "\n".join(sentence for document in found for sentence in document)
    assert "@-@" not in text and "@.@" not in text and "<unk>" not in text and "= =" not in text
    with open(wikitext, encoding="utf-8") as handle:
        body = [line for line in handle if not line.startswith(" =")]
    assert text.count(UNKNOWN) == sum(line.count("<unk>") for line in body)
    joined = "".join(body).replace(" @-@ ", "-").replace(" @,@ ", ",").replace(" @.@ ", ".")
    # One line ends in " @,@ ", so compare without white space.
    assert "".join(text.replace(UNKNOWN, "<unk>").split()) == "".join(joined.split())
    assert 15 < len(text.split()) / sum(len(document) for document in found) < 35


MIB = 1 << 20


FORMS = {
    "lines": (b"One.\n\n", b"\nTwo.\n"),
    "books": (b"One.\n\n", b"\nTwo.\n"),
    "wikitext": (b" = T = \n \n One . \n", b" Two . \n"),
    "wikiextractor": (b'<doc id="1">\nOne.\n', b"Two.\n</doc>\n"),
}
BAD = {
    b"caf\xe9": "byte 4 is not valid UTF-8; convert the file, for example with iconv -t UTF-8",
    b"a\0b": "byte 2 is a NUL, so this is no UTF-8 text; convert UTF-16 with iconv -f UTF-16 -t UTF-8",
    b"\xed\xa0\x80": "byte 1 is not valid UTF-8",
    b"\xc0\x80": "byte 1 is not valid UTF-8",
    b"x\xf4\x90\x80\x80": "byte 2 is not valid UTF-8",
    b"\xff" * 2_000_000: "longer than 1 MiB",
    b"y" * (MIB + 1): "longer than 1 MiB",
}


# All kinds in one form, and in the other forms one kind and the lines that are too long for them.
CASES = [("lines", bad) for bad in BAD] + [
    (form, bad) for form in FORMS if form != "lines" for bad in (b"caf\xe9", b"y" * (MIB + 1))
]


@pytest.mark.parametrize("form, bad", CASES, ids=[f"{form} {bad[:6].hex()}" for form, bad in CASES])
def test_a_bad_line_is_named_or_left_out_alone(tmp_path, form, bad):
    what = BAD[bad]
    if "longer" in what and form not in ("lines", "books"):
        bad, what = bad * 16, "longer than 16 MiB"
    before, after = FORMS[form]
    path = write(tmp_path / "text", before + bad + b"\r\n" + after)
    message = error(path, form)
    line = before.count(b"\n") + 1
    assert message.startswith(f"{path}, line {line}: ") and what in message
    assert message.endswith(", or give --skip_bad_records")
    found, messages = skipping(path, form)
    assert [sentence[:3] for sentence in sum(found, [])] == ["One", "Two"]
    assert messages == [message.split(";")[0]]


def test_thousands_of_bad_lines_are_counted_with_their_numbers(tmp_path):
    content = b"".join(b"good\n" * (i % 3) + b"bad\xff\n" for i in range(5000))
    path = write(tmp_path / "text", content)
    expected = [
        f"{path}, line {number}: byte 4 is not valid UTF-8"
        for number, line in enumerate(content.split(b"\n"), 1)
        if line.startswith(b"bad")
    ]
    found, messages = skipping(path, "lines")
    assert len(sum(found, [])) == content.count(b"good") and messages == expected
    in_units = []
    text_settings = TextConfig("lines", skip_bad_records=True)
    for unit in text_units([path], text_settings, 5000):
        list(read_unit(unit, text_settings, in_units.append))
    assert in_units == expected


def test_numbers_of_lines_take_no_quadratic_time(tmp_path):
    def seconds(repeats):
        path = write(tmp_path / "text", b"<doc>\n\xff\ntext\n" * repeats)
        start = time.process_time()
        _, messages = skipping(path, "wikiextractor")
        assert sorted(numbers(messages)) == sorted(i for k in range(repeats) for i in (3 * k + 1, 3 * k + 2))
        return time.process_time() - start

    seconds(100)
    assert seconds(8_000) < 20 * seconds(1_000)  # eight times if linear, 64 times if quadratic


def test_far_into_a_huge_file_messages_name_the_byte_when_skipping(tmp_path):
    # Counting lines up to there for each of thousands of parts would read the file again and again.
    path = tmp_path / "text"
    offset = 300 * MIB
    with open(path, "wb") as handle:
        handle.seek(offset - 1)  # sparse: takes no room
        handle.write(b"\nbad\xff\ngood\n")
    messages = []
    problems = Problems(str(path), offset, messages.append)
    blocks = list(line_blocks(str(path), offset, offset + 10, MIB, problems))
    assert [line for _, lines in blocks for line in lines] == [None, "good"]
    assert messages == [f"{path}, near byte {offset}: byte 4 is not valid UTF-8"]
    with pytest.raises(InputError, match="text, line 2: byte 4 is not valid UTF-8"):
        list(line_blocks(str(path), offset, offset + 10, MIB, Problems(str(path), offset)))


@pytest.mark.parametrize("limit", [1, 5, 100])
@pytest.mark.parametrize("last", [b"", b"\n"])
def test_the_longest_line_allowed(tmp_path, limit, last):
    lines = [b"a" * limit, b"b" * (limit + 1), b"", b"c" * limit, b"d" * (3 * limit + 1), b"e", b"f" * limit]
    path = write(tmp_path / "text", b"\n".join(lines) + last)
    messages = []
    problems = Problems(path, 0, messages.append)
    blocks = list(line_blocks(path, 0, Path(path).stat().st_size, limit, problems))
    assert [line for _, found in blocks for line in found] == [
        line.decode() if len(line) <= limit else None for line in lines
    ]
    assert messages == [f"{path}, line {i}: the line is longer than {limit} bytes" for i in (2, 5)]


PARAGRAPH = "It was \u4e2d " + "and " * 100 + "it was not. "
MEMORY = """
import sys
from base.memory import peak_of
from data.text.corpus import read_unit, text_units
from data.options import TextConfig

before = peak_of()
settings = TextConfig(sys.argv[2], True, True)
messages = []
count = 0
for unit in text_units([sys.argv[1]], settings):
    for sentence in read_unit(unit, settings, messages.append):
        count += 1
print((peak_of() - before) >> 20, count, len(messages))
"""


def reading(path, text_format):
    """Megabytes that reading takes in a process of its own, and the numbers of sentences and of messages."""
    command = [sys.executable, "-c", MEMORY, str(path), text_format]
    return map(int, run_command(command).check().stdout.split())


@pytest.mark.parametrize("text_format", ["lines", "wikiextractor"])
def test_memory_for_a_line_of_100_mb(tmp_path, text_format):
    path = tmp_path / "text"
    with open(path, "wb") as handle:
        handle.write(b"One.\n" if text_format == "lines" else b'<doc id="1">\nOne.\n')
        for _ in range(100):
            handle.write(b"0123456 " * 125_000)
        handle.write(b"\nTwo.\n" if text_format == "lines" else b"\nTwo.\n</doc>\n")
    megabytes, count, messages = reading(path, text_format)
    assert (count, messages) == (3, 1)  # two sentences, the end of the document; the long line
    assert megabytes < 60
    path.unlink()


def test_memory_for_the_longest_paragraph_allowed(tmp_path):
    path = tmp_path / "text"
    path.write_bytes((PARAGRAPH * (16 * MIB // len(PARAGRAPH.encode("utf-8")))).encode("utf-8"))
    megabytes, count, messages = reading(path, "lines")
    assert messages == 0 and count == 16 * MIB // len(PARAGRAPH.encode("utf-8")) + 1
    assert megabytes < 200


def test_an_error_while_reading_is_an_input_error():
    with pytest.raises(InputError, match="cannot read /proc/self/mem: Input/output error"):
        text_units(["/proc/self/mem"])
