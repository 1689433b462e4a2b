"""Files that somebody else may have written: one line for each, and nothing waits."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from pathlib import Path

import pytest

from base.errors import InputError, one_line
from base.files import leads_out, replacing
from base.json_files import read_json_file, read_json_lines, read_json_object
from tests.processes import LIMIT


def rejected(path: Path | str, **words: int) -> str:
    """The message, which has to come within seconds: another thread reads."""
    found: list[str] = []

    def read() -> None:
        try:
            found.append(f"read: {read_json_object(str(path), **words)}")
        except InputError as error:
            found.append(str(error))

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(LIMIT)
    assert found, f"reading {path} waits"
    assert found[0].startswith(f"{path}: ") and len(found[0].splitlines()) == 1, found
    return found[0]


@pytest.mark.parametrize(
    "content, said",
    [
        (b"", "not JSON"),
        (b'{"a": 1', "not JSON: Expecting ',' delimiter at line 1, column 8"),
        (b"\xff\xfe{}", "byte 0 is not UTF-8"),
        (b"[" * 200_000, "nested too deeply"),
        (b'{"a": ' + b"9" * 100_000 + b"}", "100,000 digits"),
        (b"[1]", "not a JSON object"),
    ],
    ids=["empty", "cut", "binary", "brackets", "digits", "list"],
)
def test_content_that_is_no_json_object(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    assert said in rejected(path)


def test_what_is_no_regular_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        for path in (
            tmp_path / "pipe",
            tmp_path,
            "/dev/zero",
            "/dev/tty",
            tmp_path / "socket",
            tmp_path / "no",
        ):
            assert "cannot be read" in rejected(path)


def test_a_file_that_is_too_large_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with open(path, "wb") as file:
        file.truncate(1 << 40)
    assert "more than 1 MiB" in rejected(path, most_bytes=1 << 20)


def test_good_files(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps({"a": [1, 2.5, "é", None, 2**70]}).encode())
    assert read_json_file(str(path)) == {"a": [1, 2.5, "é", None, 2**70]}


def test_lines_that_are_no_objects_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n[2]\n' + b"[" * 100_000 + b'\n{"a": 3}\n{"a": 4')
    assert read_json_lines(str(path)) == [{"a": 1}, {"a": 3}]
    with pytest.raises(FileNotFoundError):
        read_json_lines(str(tmp_path / "none"))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="no regular file"):
        read_json_lines(str(tmp_path / "pipe"))


def test_lines_of_a_file_that_comes_and_goes_are_read_or_absent(tmp_path):
    """As a run's metrics, where another process looks at them while it begins anew."""
    path, stop = tmp_path / "lines", threading.Event()

    def change() -> None:
        while not stop.is_set():
            path.write_text('{"a": 1}\n')
            path.unlink()

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(20_000):
            with contextlib.suppress(FileNotFoundError):
                assert read_json_lines(str(path)) in ([], [{"a": 1}])
    finally:
        stop.set()
        thread.join()


def test_a_message_is_one_line_whatever_it_quotes() -> None:
    text = str(InputError("--data a\nb\r\x1b[31m\udcff: " + "x" * 10_000 + " the end"))
    assert len(text.splitlines()) == 1 and len(text) < 2_100 and text.endswith(" the end")
    assert "\x1b" not in text and text.encode()
    assert one_line("as it is: é") == "as it is: é"


@pytest.mark.parametrize("mask, mode", [(0o022, 0o644), (0o077, 0o600)])
def test_files_are_created_as_the_umask_says(tmp_path: Path, mask: int, mode: int) -> None:
    before = os.umask(mask)
    try:
        with replacing(str(tmp_path / "a")) as file:
            file.write(b"1")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == mode


def test_a_link_in_the_place_of_a_file_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "other").write_text("kept")
    (tmp_path / "folder" / "a").symlink_to(tmp_path / "other")
    with replacing(str(tmp_path / "folder" / "a")) as file:
        file.write(b"new")
    assert (tmp_path / "other").read_text() == "kept" and (tmp_path / "folder" / "a").read_text() == "new"


def test_links_that_lead_out(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "own").write_text("1")
    for name, target in (("inside", "own"), ("out", "../x"), ("absolute", "/etc/hostname"), ("up", "..")):
        (tmp_path / "folder" / name).symlink_to(target)
    found = {path.name: leads_out(str(path)) for path in (tmp_path / "folder").iterdir()}
    assert found == {"own": False, "inside": False, "out": True, "absolute": True, "up": True}
