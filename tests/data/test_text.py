from __future__ import annotations

import os

import pytest

from base.errors import InputError
from data.text.corpus import documents, expand_inputs, sentences


def write(path, content):
    path.write_bytes(content)
    return str(path)


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


def test_globs_expand_sorted_once_each_and_across_commas(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("b.txt", "a.txt", "c.md"):
        write(tmp_path / name, b"x")
    (tmp_path / "d.txt").mkdir()
    found = expand_inputs(f"~/*.txt, {tmp_path}/a.*,~/c.md", "--data")
    assert [os.path.basename(path) for path in found] == ["a.txt", "b.txt", "c.md"]


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
