"""Lines and prefixes of hosts/launching/output.py."""

from __future__ import annotations

import os
import pty
import re

from hypothesis import given
from hypothesis import strategies as st

from hosts.launching.output import LONGEST, Lines, Output, Screen
from tests.processes import LIMIT, until

streams = st.lists(st.sampled_from([b"\r", b"\n", b"\r\n", b"a", b"bc ", "ü".encode()]), max_size=40)


@given(streams, st.lists(st.integers(0, 60), max_size=8))
def test_lines_do_not_depend_on_the_pieces_in_which_they_come(words, cuts):
    text = b"".join(words)
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    lines = Lines()
    cut = [line for start, end in zip(edges, edges[1:]) for line in lines.feed(text[start:end])]
    cut += lines.finish()
    ended = text if not text or text.endswith(b"\n") else text + b"\n"
    assert b"".join(cut) == ended
    # An independent way to the same cuts: everything up to and including the next end of line.
    assert cut == re.findall(rb"[^\r\n]*(?:\r\n|\r|\n)", ended)


def test_a_line_without_an_end_does_not_fill_the_memory():
    lines = Lines()
    cut = [line for _ in range(40) for line in lines.feed(b"x" * (LONGEST // 10))]
    assert len(cut) == 3 and all(len(line) <= 1.2 * LONGEST for line in cut)


def test_on_a_terminal_a_line_replaces_a_progress_bar():
    master, slave = pty.openpty()
    said: list[str] = []
    expected = b"[rank 0] 50% ##########\r\x1b[K[rank 1] short\r\n[rank 0] next\r\n"
    with open(slave, "wb", buffering=0) as terminal:
        screen = Screen(terminal, said.append)
        screen.write("[rank 0] ", b"50% ##########\r")
        screen.write("[rank 1] ", b"short\n")
        screen.write("[rank 0] ", b"next\n")
        screen.finish(10)
        shown = b""
        while len(shown) < len(expected):  # a terminal gives what has arrived
            shown += os.read(master, 1000)
    os.close(master)
    assert shown == expected
    assert said == []


def test_output_that_cannot_be_written_is_reported_once(tmp_path):
    said: list[str] = []
    with open("/dev/full", "wb", buffering=0) as full:
        screen = Screen(full, said.append)
        for _ in range(3):
            screen.write("[rank 0] ", b"line\n")
        screen.finish(10)
    (tmp_path / "rank.0").mkdir()
    (tmp_path / "rank.0" / "stdout").symlink_to("/dev/full")
    output = Output(None, tmp_path, said.append)
    for _ in range(3):
        output.write("rank 0", 0, b"line\n")
    output.close()
    assert len(said) == 2 and all("No space left on device; the run goes on" in line for line in said)


def test_a_path_that_is_no_text_is_shown_as_it_is(tmp_path):
    folder = tmp_path / os.fsdecode(b"\xff")
    (folder / "rank.0").mkdir(parents=True)
    (folder / "rank.0" / "stdout").symlink_to("/dev/full")
    with open(tmp_path / "shown", "wb", buffering=0) as shown:
        screen = Screen(shown)
        Output(None, folder, screen.say).write("rank 0", 0, b"line\n")
        screen.finish(10)
    said = b"/\xff/rank.0/stdout: No space left on device; the run goes on without this file\n"
    assert (tmp_path / "shown").read_bytes().endswith(said)


def test_a_reader_that_stalls_costs_bounded_memory_and_no_time():
    """64 MiB into a pipe that nobody reads; then the reader comes back, and hears what it has missed."""
    reader, writer = os.pipe()
    said: list[str] = []
    with open(writer, "wb", buffering=0) as stream, open(reader, "rb", buffering=0) as pipe:
        screen = Screen(stream, said.append)
        for number in range(64):  # the writer is stuck, the caller is not
            screen.write("[rank 0] ", b"%03d" % number + b"." * (1 << 20) + b"\n")
        taken = bytearray()
        while taken.count(b"\n") < 16:
            taken += pipe.read(1 << 20)
        until(lambda: screen.write("", b"next\n") or said)
        screen.finish(LIMIT)
    assert [int(line[9:12]) for line in taken.splitlines()[:16]] == list(range(16))
    assert said == ["48 lines are not shown: what they were written to did not take them in time"]


def test_a_log_file_is_appended_to(tmp_path):
    for text in (b"first run\n", b"second run\n"):
        output = Output(None, tmp_path, print)
        output.write("rank 0", 0, text)
        output.close()
    assert (tmp_path / "rank.0" / "stdout").read_bytes() == b"first run\nsecond run\n"
