"""Folders that appear whole, in place of older ones, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from base import files
from base.files import is_temporary, replacing_folder, sha256_of


class NoExchange:
    """A C library without renameat2."""

    def __init__(self, *arguments, **options):
        pass


@pytest.fixture(params=["exchange", "two renames"])
def place(request, tmp_path, monkeypatch) -> Path:
    if request.param == "two renames":
        monkeypatch.setattr(files.ctypes, "CDLL", NoExchange)
    return tmp_path


def fill(path: Path, **content: str) -> None:
    with replacing_folder(f"{path}{os.sep}") as folder:
        assert is_temporary(folder) and os.path.dirname(folder) == str(path.parent)
        for name, text in content.items():
            Path(folder, name).write_text(text)


def test_a_new_folder_and_one_in_place_of_another(place):
    fill(place / "out", a="1", b="2")
    assert sorted(os.listdir(place / "out")) == ["a", "b"]
    fill(place / "out", c="3")
    assert (place / "out" / "c").read_text() == "3"
    assert os.listdir(place) == ["out"] and os.listdir(place / "out") == ["c"]


def test_an_exception_leaves_the_old_folder_or_none(place):
    for before in ([], ["out"]):
        with pytest.raises(KeyboardInterrupt), replacing_folder(str(place / "out")) as folder:
            Path(folder, "half").write_text("x")
            raise KeyboardInterrupt
        assert os.listdir(place) == before
        fill(place / "out", a="1")
        assert os.listdir(place / "out") == ["a"]


def test_a_rename_that_fails_gives_the_old_folder_back(tmp_path, monkeypatch):
    monkeypatch.setattr(files.ctypes, "CDLL", NoExchange)
    fill(tmp_path / "out", a="1")
    rename, calls = os.rename, []

    def failing(one: str, other: str) -> None:
        calls.append(one)
        if len(calls) == 2:
            raise OSError(5, "Input/output error")
        rename(one, other)

    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(OSError, match="Input/output"):
        fill(tmp_path / "out", b="2")
    assert os.listdir(tmp_path) == ["out"] and os.listdir(tmp_path / "out") == ["a"]


def test_the_error_of_a_read_names_the_file():
    """As of a disk that fails: this file opens, and its first page cannot be read."""
    with pytest.raises(OSError, match="Input/output error: '/proc/self/mem'"):
        sha256_of("/proc/self/mem")
