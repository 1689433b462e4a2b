"""Text files: which are named, their documents, and parts of them, which give what the whole files give."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import pickle
import tempfile
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from base.errors import InputError
from data.options import TextConfig
from data.text.corpus import documents, expand_inputs, read_unit, sentences, text_units

try:
    from compression import zstd
except ImportError:
    from backports import zstd

LINES = b"\xef\xbb\xbf\r\n one\r\ntwo \xe2\x80\xa8 still\n\n\n \t\nthree. Four! five\n\nsix"
DOCS = (
    b'<doc id="1" url="u" title="A">\nA\n\nFirst here. Second here.\n\nThird.\n</doc>\n\n'
    b'<doc id="2" url="u" title="B">\nB\n</doc>\n<doc id="3" url="u" title="C">\nC\n\nLast.\n</doc>\n'
)
WIKITEXT = (
    b" \n = A = \n \n First . Second . \n \n = = S = = \n \n Third . \n \n = B = \n \n = C = \n \n Last . \n"
)
JSON = b"".join(
    json.dumps({"id": str(i), "title": "T", "text": text}).encode() + b"\n"
    for i, text in enumerate(["One. Two.\nThree.", "", "Four."])
)
MANY = TextConfig(skip_bad_records=True)


def write(path, content):
    path.write_bytes(content)
    return str(path)


def in_units(paths, text_settings, unit_bytes=1 << 62):
    """Sentences and ends of documents as a builder sees them, and the messages about bad lines. By default a
    file is one unit."""
    result, messages = [], []
    units = text_units(paths, text_settings, unit_bytes)
    for unit in units:
        for sentence in read_unit(unit, text_settings, messages.append):
            if sentence is not None or (result and result[-1] is not None):
                result.append(sentence)
    assert_tiled(paths, units)
    return result, messages


def assert_tiled(paths, units):
    """The parts cover every file without gap or overlap, in order."""
    position = dict.fromkeys(paths, 0)
    for unit in units:
        assert unit.start == position[unit.path] and unit.end >= unit.start
        assert unit.size == unit.end - unit.start
        assert unit.last == (unit.end == os.path.getsize(unit.path))
        position[unit.path] = unit.end
    assert position == {path: os.path.getsize(path) for path in paths}


@pytest.mark.parametrize(
    "content", [LINES, DOCS, WIKITEXT, JSON, b"\n", b"x", b"a\n\0b\n\nc\n"], ids=range(7)
)
@pytest.mark.parametrize(
    "text_settings", [MANY, TextConfig("books", True, True), TextConfig("lines", True, True)]
)
def test_parts_of_every_size_give_the_whole(tmp_path, content, text_settings):
    paths = [write(tmp_path / "a", content), write(tmp_path / "b", content)]
    whole = in_units(paths, text_settings)
    for unit_bytes in range(1, len(content) + 2):
        assert in_units(paths, text_settings, unit_bytes) == whole


SOME_LINES = [
    *(b"", b" \t ", b"\r", b"Word. Next", "é\u2028x\u0085y\x0cz\x1cw".encode(), b"long " * 40),
    *(b"\xff bad", b"a\0b", b"\xef\xbb\xbf", b"\xe2\x80\xa8"),
    *(b'<doc id="1" title="T">', b'<doc id="2" title="">\xff', b"T", b"end.</doc>", b"</doc>"),
    *(b" = T = ", b" = T\xff = ", b" = = S = = ", b" = \xe3\x80\x80 = "),
    *(b'{"id": "1", "text": "One. Two.\\nThree"}', b'{"text": 1}', b"[1]"),
]


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.sampled_from(SOME_LINES), max_size=25),
    st.booleans(),
    st.sampled_from([b"\n", b"\r\n"]),
    st.integers(1, 200),
    st.sampled_from(["auto", "lines", "books", "wikiextractor", "wikitext"]),
    st.booleans(),
)
def test_parts_of_generated_files_give_the_whole(lines, closed, newline, unit_bytes, text_format, split):
    content = newline.join(lines) + (newline if closed else b"")
    text_settings = TextConfig(text_format, split, True)
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "text")
        with open(path, "wb") as handle:
            handle.write(content)
        whole, messages = in_units([path], text_settings)
        assert in_units([path], text_settings, unit_bytes) == (whole, messages)
        assert not whole or whole[-1] is None
        for first, second in zip([None, *whole], whole):
            assert second is not None or first is not None
        for sentence in filter(None, whole):
            assert sentence == sentence.strip() and "\n" not in sentence
        for message in messages:
            assert message.startswith(f"{path}, line ") and "\n" not in message
        if messages:
            strict = TextConfig(text_format, split, False)
            with pytest.raises(InputError) as caught:
                list(sentences([path], strict))
            # The first that the skipping reader counted is the one that the strict one stops at.
            assert str(caught.value).startswith(messages[0])


def test_lines_longer_than_the_blocks_that_are_read(tmp_path):
    long = ("word " * 150_000).encode() + b"end."  # 0.75 MB, below the limit of 1 MiB
    content = b"".join(b"%d\n" % i * 1000 + long + b"\n\n" for i in range(4)) + long
    path = write(tmp_path / "a", content)
    whole = in_units([path], TextConfig())
    assert whole[1] == [] and sum(sentence is not None for sentence in whole[0]) == 4005
    for unit_bytes in (1000, 1 << 18, 1 << 20, 3_000_000):
        assert in_units([path], TextConfig(), unit_bytes) == whole


def test_parts_are_about_as_large_as_asked_and_can_be_sent_to_a_worker(tmp_path):
    path = write(tmp_path / "a", b"a line of text\n" * 100_000)
    units = text_units([path], unit_bytes=1 << 17)
    assert all((1 << 17) <= unit.size < (1 << 17) + 15 for unit in units[:-1])
    assert len({unit.name for unit in units}) == len(units)
    assert pickle.loads(pickle.dumps(units)) == units


PACKED = {"gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress}
# With a checksum, as its command has it.
PACKED["zstd"] = partial(zstd.compress, options={zstd.CompressionParameter.checksum_flag: 1})


@pytest.mark.parametrize("program", PACKED)
def test_a_packed_file_is_its_text(tmp_path, program):
    """In one part, whatever its name; two packed files in a row are one."""
    pack = PACKED[program]
    plain, long = TextConfig("lines", skip_bad_records=True), b"long " * 210_000 + b"\n1"
    cases = [(content, MANY) for content in (LINES, DOCS, JSON, b"a\xff\nb", b"a line of text\n" * 80_000)]
    for content, text_settings in (*cases, (DOCS, plain), (long, plain)):
        whole, messages = in_units([write(tmp_path / "plain", content)], text_settings)
        path = write(tmp_path / "text.txt", pack(content[:9]) + pack(content[9:]))
        found = in_units([path], text_settings)
        assert found[0] == whole and len(found[1]) == len(messages)
        assert all(each.startswith(f"{path}, near byte ") for each in found[1])
        assert in_units([path], text_settings, 1000) == found
        assert len(text_units([path], text_settings, 1000)) == 1
    with pytest.raises(InputError, match=f"{path}, line 1: the line is longer"):
        in_units([path], TextConfig())


@pytest.mark.parametrize("program", PACKED)
def test_a_damaged_packed_file_is_one_line(tmp_path, program):
    """Cut off, or changed anywhere but in headers that say nothing of the text."""
    packed = PACKED[program](os.urandom(3000).hex().encode())
    path = str(tmp_path / "text")
    for content in (packed[:-1], packed[:2000], packed[:11], packed[:1500] + b"damaged" + packed[1507:]):
        write(tmp_path / "text", content)
        message = f"^{path} is packed by {program}, and damaged or cut off"
        with pytest.raises(InputError, match=message) as raised:
            in_units([path], MANY)
        assert "\n" not in str(raised.value)


def test_a_file_cut_short_while_it_is_read(tmp_path):
    path = write(tmp_path / "a", b"line\n" * 1000)
    last = text_units([path], unit_bytes=100)[-1]
    os.truncate(path, 2000)
    with pytest.raises(InputError, match="became shorter"):
        list(read_unit(last))


def test_globs_expand_sorted_once_each_and_directories_stand_for_files(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("b/wiki_01", "b/wiki_00", "a/wiki_00", "b/.hidden", ".git/x"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path / name, b"x")
    write(tmp_path / "a" / "empty", b"")
    write(tmp_path / "c", b"x")
    found = expand_inputs(f"~/*, {tmp_path}/a/wiki_00", "--input")
    expected = ["a/wiki_00", "b/wiki_00", "b/wiki_01", "c"]
    assert [os.path.relpath(path, tmp_path) for path in found] == expected


def test_a_name_with_brackets_is_not_only_a_pattern(tmp_path):
    path = write(tmp_path / "a[1].txt", b"x")
    assert expand_inputs(path, "--input") == [path]
    other = write(tmp_path / "b1.txt", b"x")
    assert expand_inputs(f"{tmp_path}/b[1].txt", "--input") == [other]


def test_a_directory_of_empty_files_is_an_error_that_names_them(tmp_path):
    for name in ("a", "b/c"):
        (tmp_path / "text" / name).parent.mkdir(parents=True, exist_ok=True)
        write(tmp_path / "text" / name, b"")
    with pytest.raises(InputError) as caught:
        expand_inputs(f"{tmp_path}/text", "--data")
    folder = tmp_path / "text"
    assert str(caught.value) == (f"--data: {folder} holds nothing but empty files: {folder}/a, {folder}/b/c")
    for number in range(5):
        write(tmp_path / "text" / f"d{number}", b"")
    with pytest.raises(InputError, match=r"text/a, .*/c, .*/d0 and 4 more$"):
        expand_inputs(f"{tmp_path}/text", "--data")
    write(tmp_path / "text" / "whole", b"x")
    assert expand_inputs(f"{tmp_path}/text", "--data") == [f"{folder}/whole"]


def test_a_named_pipe_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match=r"--input: .*pipe is not a regular file"):
        expand_inputs(str(tmp_path / "pipe"), "--input")
    with pytest.raises(InputError, match="pipe is not a regular file"):
        text_units([str(tmp_path / "pipe")])


@pytest.mark.parametrize(
    "content, expected",
    [
        (b"\n\n one \ntwo\n\n \t \nthree", [["one", "two"], ["three"]]),
        (b"\xef\xbb\xbfone\r\ntwo\r\n\r\nthree\r\n", [["one", "two"], ["three"]]),
        (b"\xef\xbb\xbf\r\n", []),
        ("one\u2028still\x85one\x0cline\n".encode(), [["one\u2028still\x85one\x0cline"]]),
    ],
    ids=["blank lines", "byte order mark and CRLF", "mark alone", "separators inside a line"],
)
def test_documents_of_lines(tmp_path, content, expected):
    paths = [write(tmp_path / "a.txt", content), write(tmp_path / "b.txt", b"four\n")]
    assert list(documents(paths)) == [*expected, ["four"]]


@pytest.mark.parametrize(
    "patterns, message",
    [
        ("", "no file given"),
        (" , ", "no file given"),
        ("{0}/a.txt,{0}/z*", "no file matches .*z\\*"),
        ("{}/*.txt", r"empty\.txt is empty"),
    ],
)
def test_globs_without_files_name_flag_and_pattern(tmp_path, patterns, message):
    write(tmp_path / "a.txt", b"x")
    write(tmp_path / "empty.txt", b"")
    with pytest.raises(InputError, match=f"^--data: .*{message}"):
        expand_inputs(patterns.format(tmp_path), "--data")


def test_a_file_that_disappears_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="cannot read"):
        list(sentences([str(tmp_path / "gone.txt")]))
