"""Command lines: words that argparse would drop, numbers that Python would read otherwise than people do."""

from __future__ import annotations

import argparse
import sys

import pytest

from base.command_line import OptionParser, at_least, finite, positive_int, seconds, split_at_dashes, within
from tests.processes import ROOT, run_command


def test_dashes_alone_end_the_options():
    parser = OptionParser(allow_abbrev=False)
    parser.add_argument("--size", type=positive_int)
    parser.add_argument("words", nargs="*")
    found = parser.parse_args(["--size=3", "--", "python", "script", "--seed=--", "--name==--"])
    assert (found.size, found.words) == (3, ["python", "script", "--seed=--", "--name==--"])
    assert parser.parse_args(["a=--", "--size=3"]).words == ["a=--"], "a word that is no option"
    assert split_at_dashes(["a", "--", "b", "--", "c"]) == (["a"], ["b", "--", "c"])


def test_a_command_says_it_in_one_line():
    """Though there are words behind "--"; tests/faults/test_bad_values.py has all commands without."""
    words = [sys.executable, ROOT / "hosts" / "launch.py", "--min_hosts=--", "--", "python", "x.py"]
    result = run_command(words)
    (line,) = result.stderr.splitlines()
    assert result.returncode == 2 and "--min_hosts" in line and "'--' is no value" in line


@pytest.mark.parametrize("read", [positive_int, at_least(0), within(0, 100), finite, seconds])
def test_numbers_are_plain_digits(read):
    assert read("10") == 10 and read("+7") == 7
    for text in ("1_0", "\u0661\u0660", "\uff11\uff10", "1\u00a00", "\u00b2", "0x10", "1e999", "nan"):
        with pytest.raises(argparse.ArgumentTypeError):
            read(text)
