from __future__ import annotations

import contextlib
import filecmp
import io
import json
import os
import re
import shutil
import signal
import sys
import time

import numpy as np
import pytest

from base.progress import Printed
from data.formats.files import identify, peek, read_instances
from data.prepare import main
from data.store.tokens import TokenStore
from tests.data.token_stores import content
from tests.processes import run_command, start_command

PREPARE = [sys.executable, "-m", "data.prepare"]
DONE = "*/store.partial/unfinished/*/result.json"  # of units


@pytest.fixture(scope="module")
def corpus(embedded, tmp_path_factory):
    """Eight files, some 2.5 MB of real text: enough that workers are started, a unit or more each."""
    directory = tmp_path_factory.mktemp("corpus")
    for number in range(8):
        text = (embedded / "corpus" / f"train-{number % 4}.txt").read_bytes()
        (directory / f"part-{number}.txt").write_bytes(text[number * 1000 :].split(b"\n", 1)[1])
    return directory


@pytest.fixture(scope="module")
def words(corpus, embedded):
    return ["--input", f"{corpus}/*.txt", "--vocab", str(embedded / "vocab.txt")]


@pytest.fixture(scope="module")
def reference(words, tmp_path_factory):
    """The store that an uninterrupted run with one worker makes."""
    output = tmp_path_factory.mktemp("reference") / "store"
    run_command([*PREPARE, *words, "--output", output, "--num_workers", "1"]).check()
    return output


def error_line(capsys, arguments):
    """The one line on standard error of a command that ends with code 2."""
    assert main([str(word) for word in arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1, err
    return err


def test_the_whole_directory_is_the_same_for_any_number_of_workers(words, reference, tmp_path):
    output = tmp_path / "store"
    result = run_command([*PREPARE, *words, "--output", output, "--num_workers", "3"]).check()
    assert content(output) == content(reference)
    assert os.listdir(tmp_path) == ["store"]
    store = TokenStore.open(str(output))
    counts = f"{store.num_documents:,} documents, {store.num_sentences:,} sentences, {store.num_tokens:,} tok"
    assert counts in result.stdout
    assert len(result.stdout.splitlines()) == 1 and "M tokens/s" in result.stdout and result.stderr == ""
    assert len(store.manifest["sources"]) == 8


def test_ctrl_c_is_one_line_and_the_command_goes_on(words, reference, tmp_path):
    for attempt in range(10):  # on a busy machine the command may have ended before the signal comes
        output = tmp_path / str(attempt) / "store"
        command = [*PREPARE, *words, "--output", output, "--num_workers", "2"]
        with start_command(command) as run:
            while run.poll() is None and not list(tmp_path.glob(DONE)):
                time.sleep(0.01)
            for pid in run.pids():  # as a terminal does: the whole foreground group; workers are not in it
                with contextlib.suppress(ProcessLookupError):  # some live for a moment only
                    if os.getpgid(pid) == os.getpgid(run.pid):
                        os.kill(pid, signal.SIGINT)
            result = run.wait()
        if result.returncode != 0:
            break
    assert result.returncode == 130 and result.stdout == ""
    assert list(tmp_path.glob(DONE)), "what was done is lost"
    assert result.stderr == "interrupted; give the same command again, and it goes on where it stopped\n"
    run_command(command).check()
    assert content(output) == content(reference)


def test_what_is_done_is_not_done_again_and_nothing_is_overwritten(words, reference, capsys):
    assert main([*words, "--output", str(reference)]) == 0
    assert "nothing to do" in capsys.readouterr().out
    before = {name: os.stat(reference / name).st_mtime_ns for name in os.listdir(reference)}
    line = error_line(capsys, [*words, "--output", reference, "--cased"])
    assert str(reference) in line and "another name" in line
    assert {name: os.stat(reference / name).st_mtime_ns for name in os.listdir(reference)} == before


# The most memory, in MB, that the command's own process, and that any of its workers, had.
PEAKS = """
import sys
from resource import RUSAGE_CHILDREN, getrusage
from base.memory import peak_of
from data.prepare import main
assert main(sys.argv[1:]) == 0
print(peak_of() >> 20, getrusage(RUSAGE_CHILDREN).ru_maxrss >> 10)
"""


def test_memory_does_not_depend_on_the_size_of_the_text(embedded, tmp_path):
    """2.3 MB and 23 MB of text in one file."""
    text = b"".join((embedded / "corpus" / f"train-{number}.txt").read_bytes() + b"\n" for number in range(4))
    peaks = []
    for times in (3, 30):
        path = tmp_path / f"{times}.txt"
        path.write_bytes(text * times)
        words = ["--input", path, "--vocab", embedded / "vocab.txt", "--output", tmp_path / f"store{times}"]
        said = run_command([sys.executable, "-c", PEAKS, *words, "--num_workers", "2"]).check().stdout
        peaks.append([int(peak) for peak in said.split()[-2:]])
        assert os.path.getsize(tmp_path / f"store{times}" / "ids-00000.bin") > 100_000 * times
    for small, large in zip(*peaks):
        assert small > 20 and large < small + 10, f"MB of the parent and of a worker at 1x and 10x: {peaks}"
        assert large < 120, peaks


def test_text_becomes_files_of_instances_by_way_of_a_store(embedded, tmp_path, capsys):
    """The same files from text in one command, and from a store in two."""
    text = ["--input", str(embedded / "corpus" / "eval.txt"), "--vocab", str(embedded / "vocab.txt")]
    masks = ["--format", "ofrecord", "--dupe_factor", "2", "--max_seq_length", "64", "--seed", "3"]
    masks += ["--num_workers", "1", "--instances_per_file", "300"]
    assert main([*text, *masks, "--output", str(tmp_path / "one")]) == 0
    assert main([*text, "--output", str(tmp_path / "store")]) == 0
    assert main(["--input", str(tmp_path / "store"), *masks, "--output", str(tmp_path / "two")]) == 0
    out, err = capsys.readouterr()
    assert err == "" and out.splitlines()[0].split(": ")[1] == out.splitlines()[2].split(": ")[1]
    assert sorted(os.listdir(tmp_path)) == ["one", "store", "two"]
    names = [name for name in sorted(os.listdir(tmp_path / "one")) if name != "manifest.json"]
    assert len(names) > 1
    for name in names:
        one, two = tmp_path / "one" / name, tmp_path / "two" / name
        assert identify(str(one)).format == "ofrecord" and peek(str(one))[0] == 64
        assert filecmp.cmp(one, two, shallow=False), name
    (tmp_path / "one.tokens").mkdir()
    (tmp_path / "one.tokens" / "mine").touch()
    line = error_line(capsys, [*text, *masks, "--output", tmp_path / "one"])
    assert "one.tokens holds mine and is removed at the end" in line
    shutil.rmtree(tmp_path / "one.tokens")
    for change in (["--seed", "4"], ["--format", "tfrecord"], ["--gzip"]):  # before anything is tokenized
        line = error_line(capsys, [*text, *masks, *change, "--output", tmp_path / "one"])
        assert (
            "--gzip" in line if change == ["--gzip"] else "one is there already, with other content" in line
        )
    assert sorted(os.listdir(tmp_path)) == ["one", "store", "two"]


def test_instances_are_converted_and_text_is_not_taken_for_them(embedded, tmp_path, capsys):
    text = str(embedded / "corpus" / "eval.txt")
    vocab = ["--vocab", str(embedded / "vocab.txt")]
    assert main(["--input", text, *vocab, "--format", "npz", "--output", str(tmp_path / "npz")]) == 0
    files = str(tmp_path / "npz" / "*.npz")
    packed = ["--format", "tfrecord", "--gzip", "--output", str(tmp_path / "t")]
    assert main(["--input", files, *vocab, *packed]) == 0
    paths = (tmp_path / "npz" / "pretrain-00000.npz", tmp_path / "t" / "pretrain-00000.tfrecord.gz")
    one, two = (list(read_instances(str(path), 2000)) for path in paths)
    assert all(np.array_equal(a, b) for a, b in zip(one[0], two[0]))
    capsys.readouterr()
    short = ["--format", "npz", "--max_seq_length", "64", "--output", tmp_path / "short"]
    assert "holds sequences of up to 128 tokens" in error_line(capsys, ["--input", files, *vocab, *short])
    line = error_line(capsys, ["--input", files, *vocab, "--output", tmp_path / "store"])
    assert "masked instances" in line and "--format" in line
    both = ["--input", f"{files},{text}", *vocab, "--format", "npz", "--output", tmp_path / "x"]
    line = error_line(capsys, both)
    assert "separately" in line and text in line


def test_skipped_records_are_counted_and_named(tmp_path, embedded, capsys):
    path = tmp_path / "bad.txt"
    path.write_bytes(b"one\n\xff\n\ntwo\n")
    words = ["--input", str(path), "--vocab", str(embedded / "vocab.txt"), "--output", f"{tmp_path}/store"]
    assert "bad.txt, line 2" in error_line(capsys, words)
    assert sorted(os.listdir(tmp_path)) == ["bad.txt"]
    assert main([*words, "--skip_bad_records"]) == 0
    err = capsys.readouterr().err.splitlines()
    assert err[0] == "skipped 1 bad records:" and "bad.txt, line 2" in err[1]
    assert json.loads((tmp_path / "store" / "manifest.json").read_text("utf-8"))["counts"]["skipped"] == 1


def test_input_and_options_that_cannot_be_are_one_line(embedded, tmp_path, capsys):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.txt").write_text("one\n\ntwo\n")
    (tmp_path / "file").write_text("mine")
    vocab = ["--vocab", embedded / "vocab.txt"]
    folder = ["--input", tmp_path / "folder"]
    output = ["--output", tmp_path / "out"]
    for words, message in (
        ([*folder, *vocab, *output, "--sp_nbest", "5"], "--sp_nbest needs --sentencepiece"),
        ([*folder, *vocab, *output, "--sentencepiece", "x.model"], "--vocab and --sentencepiece"),
        ([*folder, *vocab, *output, "--format", "npz", "--max_seq_length", "1024"], "--max_seq_length 1024"),
        (["--input", tmp_path / "none", *vocab, *output], "--input: no file matches"),
        ([*folder, *output], "give --vocab"),
        ([*folder, "--vocab", tmp_path / "file", *output], "file lacks [PAD]"),
        ([*folder, *vocab, "--output", tmp_path / "folder" / "out"], "keep them apart"),
        (["--input", f"{tmp_path}/folder/a.txt", *vocab, "--output", folder[1]], "keep them apart"),
        (["--input", f"{tmp_path}/fold*/*", *vocab, "--output", f"{folder[1]}/out"], "keep them apart"),
        ([*folder, *vocab, "--output", tmp_path / "file"], "file is a file"),
        ([*folder, *vocab, "--output", tmp_path / "file" / "out"], "file/out: File exists"),
        ([*folder, *vocab, "--output", "/proc/out"], "cannot build /proc/out"),
        (["--input", "/dev/zero", *vocab, *output], "/dev/zero"),
        (["--input", sys.executable, *vocab, *output], "line 1"),
    ):
        assert message in error_line(capsys, words)
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]
    assert (tmp_path / "file").read_text() == "mine"
    build = [*folder, *vocab, *output]
    assert main([str(word) for word in build]) == 0
    capsys.readouterr()
    assert "already" in error_line(capsys, ["--input", tmp_path / "out", *vocab, "--output", tmp_path / "x"])
    (tmp_path / "other.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n")
    other = ["--vocab", tmp_path / "other.txt", "--format", "npz", "--output", tmp_path / "x"]
    assert "another vocabulary than that of --vocab" in error_line(capsys, ["--input", output[1], *other])


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves on."""
    seconds = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: seconds[0])
    return seconds


def test_progress_is_a_line_now_and_then(clock):
    stream = io.StringIO()
    progress = Printed(stream)
    progress.begin("tokenizing", 50_000_000)
    progress.update(10_000_000, {"tokens": 1_000_000})  # resumed: no tokens of this run yet
    for second in range(40):
        clock[0] += 1
        progress.update(10_000_000 + 1_000_000 * (second + 1), {"tokens": 1_000_000 + 200_000 * (second + 1)})
    progress.end()
    lines = stream.getvalue().splitlines()
    said = "tokenizing: {} of 50 MB, 0.20 M tokens/s, 00:{:02} left"
    assert lines == [said.format(done, 50 - done) for done in (20, 30, 40, 50)]


@pytest.mark.parametrize(
    "total, line",
    [
        (400, "tokenizing: 100 of 400 bytes"),
        (310_000, "tokenizing: 78 of 310 KB"),  # ten thousand files of a line each
        (1_600_000, "tokenizing: 0.4 of 1.6 MB"),
        (60_000_000_000, "tokenizing: 15000 of 60000 MB"),
    ],
)
def test_progress_of_little_text_is_in_a_unit_that_shows_it(clock, total, line):
    stream = io.StringIO()
    progress = Printed(stream)
    progress.begin("tokenizing", total)
    clock[0] += 11
    progress.update(total // 4, {})
    assert stream.getvalue().splitlines() == [line]


def test_progress_is_a_bar_on_a_terminal():
    pty, terminal = os.openpty()
    with os.fdopen(terminal, "w") as stream:
        progress = Printed(stream)
        progress.begin("tokenizing", 4_000_000)
        progress.update(1_000_000, {"tokens": 100})
        progress.note("a line of its own")
        time.sleep(0.15)
        progress.update(4_000_000, {"tokens": 1_000_000})
        progress.end()
        shown = ""
        while "tokenizing: 100%" not in shown:
            shown += os.read(pty, 1 << 16).decode()
    os.close(pty)
    assert "a line of its own\r\n" in shown and "M tokens/s" in shown
    assert re.search(r"tokenizing: 100%\|.*4.00M/4.00M", shown)


def test_help_says_what_it_costs(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    shown = capsys.readouterr().out
    assert caught.value.code == 0 and "bytes a token" in shown and "goes on where it stopped" in shown
