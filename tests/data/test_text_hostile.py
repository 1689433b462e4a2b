from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from base.errors import InputError
from data.options import TextConfig
from data.text.corpus import read_unit, sentences, text_units
from data.text.lines import Problems, line_blocks
from tests.processes import run_command

MIB = 1 << 20


def write(path, content):
    path.write_bytes(content)
    return str(path)


def strict_error(path, text_settings):
    with pytest.raises(InputError) as caught:
        list(sentences([path], text_settings))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def skipped(path, text_format, split=False):
    messages = []
    text_settings = TextConfig(text_format, split, skip_bad_records=True)
    return [s for s in sentences([path], text_settings, messages.append) if s is not None], messages


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
    message = strict_error(path, TextConfig(form))
    line = before.count(b"\n") + 1
    assert message.startswith(f"{path}, line {line}: ") and what in message
    assert message.endswith(", or give --skip_bad_records")
    found, messages = skipped(path, form)
    assert [sentence[:3] for sentence in found] == ["One", "Two"]
    assert messages == [message.split(";")[0]]


def test_thousands_of_bad_lines_are_counted_with_their_numbers(tmp_path):
    content = b"".join(b"good\n" * (i % 3) + b"bad\xff\n" for i in range(5000))
    path = write(tmp_path / "text", content)
    expected = [
        f"{path}, line {number}: byte 4 is not valid UTF-8"
        for number, line in enumerate(content.split(b"\n"), 1)
        if line.startswith(b"bad")
    ]
    found, messages = skipped(path, "lines")
    assert len(found) == content.count(b"good") and messages == expected
    in_units = []
    text_settings = TextConfig("lines", skip_bad_records=True)
    for unit in text_units([path], text_settings, 5000):
        list(read_unit(unit, text_settings, in_units.append))
    assert in_units == expected


def test_numbers_of_lines_take_no_quadratic_time(tmp_path):
    def seconds(repeats):
        path = write(tmp_path / "text", b"<doc>\n\xff\ntext\n" * repeats)
        start = time.process_time()
        _, messages = skipped(path, "wikiextractor")
        numbers = [int(message.split("line ")[1].split(":")[0]) for message in messages]
        assert sorted(numbers) == sorted(i for k in range(repeats) for i in (3 * k + 1, 3 * k + 2))
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
    problems = Problems(str(path), offset, True, messages.append)
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
    problems = Problems(path, 0, True, messages.append)
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
