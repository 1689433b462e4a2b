from __future__ import annotations

import os

import pytest

from base.errors import InputError
from data.text.corpus import documents, expand_globs, sentences


def write(path, content):
    path.write_bytes(content)
    return str(path)


def test_documents_end_at_blank_lines_and_ends_of_files(tmp_path):
    first = write(tmp_path / "a.txt", b"\n\n one \ntwo\n\n \t \nthree")
    second = write(tmp_path / "b.txt", b"four\n")
    assert list(documents([first, second])) == [["one", "two"], ["three"], ["four"]]


def test_byte_order_mark_and_crlf_are_no_text(tmp_path):
    path = write(tmp_path / "a.txt", b"\xef\xbb\xbfone\r\ntwo\r\n\r\nthree\r\n")
    assert list(documents([path])) == [["one", "two"], ["three"]]


def test_a_mark_alone_is_a_blank_line(tmp_path):
    assert list(sentences([write(tmp_path / "a.txt", b"\xef\xbb\xbf\r\n")])) == []


def test_line_separators_inside_a_line_do_not_split_it(tmp_path):
    path = write(tmp_path / "a.txt", "one\u2028still\x85one\x0cline\n".encode())
    assert len(list(documents([path]))[0]) == 1


@pytest.mark.parametrize("bad", [b"\xff\xfe", b"caf\xe9", b"\xed\xa0\x80", b"\xc3"])
def test_invalid_utf8_names_file_and_line(tmp_path, bad):
    path = write(tmp_path / "bad.txt", b"good\n" * 41 + bad + b"\n")
    with pytest.raises(InputError, match=r"bad\.txt, line 42: .*UTF-8") as caught:
        list(sentences([path]))
    assert "\n" not in str(caught.value)


def test_globs_expand_sorted_once_each_and_across_commas(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("b.txt", "a.txt", "c.md"):
        write(tmp_path / name, b"x")
    (tmp_path / "d.txt").mkdir()
    found = expand_globs(f"~/*.txt, {tmp_path}/a.*,~/c.md", "--data")
    assert [os.path.basename(path) for path in found] == ["a.txt", "b.txt", "c.md"]


@pytest.mark.parametrize(
    "patterns, message", [("", "no file given"), (" , ", "no file given"), ("{}/z*", "z\\*")]
)
def test_globs_without_files_name_flag_and_pattern(tmp_path, patterns, message):
    with pytest.raises(InputError, match=f"--data: .*{message}"):
        expand_globs(patterns.format(tmp_path), "--data")


def test_one_pattern_without_files_is_an_error_even_if_others_match(tmp_path):
    write(tmp_path / "a.txt", b"x")
    with pytest.raises(InputError, match="missing"):
        expand_globs(f"{tmp_path}/a.txt,{tmp_path}/missing.txt", "--data_eval")


def test_an_empty_file_is_an_error(tmp_path):
    write(tmp_path / "empty.txt", b"")
    with pytest.raises(InputError, match=r"--data: .*empty\.txt is empty"):
        expand_globs(f"{tmp_path}/*.txt", "--data")


def test_a_file_that_disappears_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="cannot read"):
        list(sentences([str(tmp_path / "gone.txt")]))
