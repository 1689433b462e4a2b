"""--comm_only with real ranks, of which some are wrong or crash; its options; going on where it ended."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from base.errors import InputError
from comparison.backends import BACKENDS, HVD_SCRIPT, MPIRUN, Backend
from comparison.launch import Launched
from comparison.messages import command as module
from comparison.messages.command import Sweep, compare_messages, read_rank, why
from comparison.options import parse_options
from tests.comparison.messages.test_report import launch as sent

SPOILED = Path(__file__).with_name("spoiled_messages_worker.py")
SPOILS = {
    spoil: Backend(f"{spoil} Horovod", HVD_SCRIPT, MPIRUN, {"SPOIL": spoil}) for spoil in ("wrong", "crash")
}


def options_of(output, *words, backends=BACKENDS):
    return parse_options(["--comm_only", "--output", str(output), *map(str, words)], backends)


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """Two real backends, one that is wrong and ends badly, one that fails and is started again."""
    output = tmp_path_factory.mktemp("messages")
    words = ["--sizes", "4KB", "64KB", "3x1KB", "--message_seconds", "0.05", "--repeats", "1"]
    backends = {**BACKENDS, **SPOILS}
    options = options_of(output, "--backends", "hvd_mpi", "byteps", *SPOILS, *words, backends=backends)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "RANK", SPOILED)
        code = compare_messages(options)
    return output, options, code, json.loads((output / "messages.json").read_text())


def row_of(written, backend, message):
    return next(row for row in written["figures"] if (row["backend"], row["message"]) == (backend, message))


@pytest.mark.parametrize("backend", ["hvd_mpi", "byteps"])
def test_messages_of_real_backends(real, backend):
    written = real[3]
    assert written["complete"]
    for message, nbytes in (("4KB", 4096), ("64KB", 65536), ("3x1KB", 3072)):
        row = row_of(written, backend, message)
        assert row["bytes"] == nbytes and row["reason"] is None
        seconds = row["latency_s"]["median"]
        assert 1e-5 < seconds < 5 and row["algorithm_bytes_per_s"] == pytest.approx(nbytes / seconds)
    launch = next(each for each in written["launches"] if each["backend"] == backend)
    assert len(launch["attempts"]) == 1 and launch["attempts"][0]["returncode"] == 0
    attempt = launch["attempts"][0]
    assert attempt["peak_bytes"]["worker"] > 5e7
    assert 1 < attempt["cpu_s"] < 2 * os.cpu_count() * attempt["seconds"] and 0 <= attempt["others"] < 1
    for result in launch["results"].values():
        assert len(result["ranks_s"]) == 2 and len(result["rounds_s"]) >= 2
        assert result["rounds_s"] == [max(pair) for pair in zip(*result["ranks_s"])]


def test_a_wrong_backend_is_called_wrong(real):
    output, _, code, written = real
    assert code == 1 == written["outcome"]["code"] and written["outcome"]["complete"]
    assert [each.partition(": ")[0] for each in sorted(written["outcome"]["failed"])] == [
        "crash-2x 64KB",
        "wrong-2x 64KB",
    ]
    row = row_of(written, "wrong", "64KB")
    assert row["reason"].startswith("wrong: rank 1, round 0: element 1000 is ")
    assert row["reason"].endswith("(1 of 16,384 are wrong)")
    found, expected = re.search(r"is (\S+) instead of (\S+) ", row["reason"]).groups()
    assert float(found) == float(expected) + 1
    assert "latency_s" not in row and "latency_s" in row_of(written, "wrong", "3x1KB")
    assert not any("wrong" in (pair["first"], pair["second"]) for pair in written["pairs"])
    assert "wrong Horovod with 2 ranks is wrong at 64KB" in (output / "messages.md").read_text()


def test_a_failure_costs_one_size(real):
    """It was started again for the message after the one at which it fails."""
    written = real[3]
    assert "the network is gone" in row_of(written, "crash", "64KB")["reason"]
    for message in ("4KB", "3x1KB"):
        assert row_of(written, "crash", message)["latency_s"]["median"] > 0
    launch = next(each for each in written["launches"] if each["backend"] == "crash")
    assert [each["returncode"] == 0 for each in launch["attempts"]] == [False, True]


def test_start_up_and_agreement_of_the_right_backends(real):
    output, _, _, written = real
    assert [(each["backend"], each["workers"]) for each in written["starts"]] == [
        ("hvd_mpi", 2),
        ("byteps", 2),
    ]
    for start in written["starts"]:
        launch = next(each for each in written["launches"] if each["backend"] == start["backend"])
        attempt = launch["attempts"][0]
        begun = max(each["first_s"] for each in launch["results"].values())
        assert begun < start["start_up_s"]["median"] == attempt["start_up_s"] < attempt["seconds"]
        assert 1e-6 < start["agreement_s"]["median"] == attempt["agreement_s"] < 1
    assert "### Start-up, and agreement of the ranks" in (output / "messages.md").read_text()


def test_a_bad_end_is_reported(real):
    text = (real[0] / "messages.md").read_text()
    assert "wrong Horovod, 2 ranks, repeat 1: after the last message: exit code 1: " in text


# without ranks


def sender(calls, failing=None):
    """In place of `Sweep.measure`."""

    def measure(sweep, turn, directory):
        names = [message.name for message in sweep.to_send(turn)]
        calls.append((*turn.setting, names))
        failures = {failing: "exit code 1: gone"} if failing in names else {}
        kept = {name: 0.5 for name in names if name not in failures}
        made = sent(turn.setting, turn.repeat, kept, failures=failures)
        made["attempts"][0]["others"] = 0.78
        return {**made, "seconds": 1.0}

    return measure


def test_a_second_call_continues(tmp_path, monkeypatch, capsys):
    """More repeats do, other messages do not. test_loop.py interrupts."""
    calls = []
    words = ["--sizes", "4KB", "64KB", "--backends", "hvd_mpi", "byteps", "--repeats"]
    monkeypatch.setattr(Sweep, "measure", sender(calls))
    assert compare_messages(options_of(tmp_path, *words, 3)) == 0
    said = capsys.readouterr()
    assert "done in 1 s, about 3 s left; other programs took 78% of the machine" in said.out
    assert "launch 3/6" in said.out and "--repeats 3: verdicts take 5" in said.err
    assert compare_messages(options_of(tmp_path, *words, 5)) == 0
    assert len(calls) == 6 + 4
    written = json.loads((tmp_path / "messages.json").read_text())
    assert written["complete"] and len(written["launches"]) == 10
    with pytest.raises(InputError, match="--seed 1 instead of 0; --sizes 4KB 64KB 1MB instead of 4KB 64KB"):
        compare_messages(options_of(tmp_path, *words, 5, "--sizes", "4KB", "64KB", "1MB", "--seed", 1))


def test_what_failed_once_is_not_sent_again(tmp_path, monkeypatch, capsys):
    calls = []
    monkeypatch.setattr(Sweep, "measure", sender(calls, failing="64KB"))
    words = ["--sizes", "4KB", "64KB", "--backends", "hvd_mpi", "--repeats", 2]
    assert compare_messages(options_of(tmp_path, *words)) == 1
    assert [names for _, _, names in calls] == [["4KB", "64KB"], ["4KB"]]
    assert "failed: exit code 1: gone" in (tmp_path / "messages.md").read_text()
    # What lacks a message is repeated where that is asked for.
    monkeypatch.setattr(Sweep, "measure", sender(calls))
    assert compare_messages(options_of(tmp_path, *words, "--retry_failed")) == 0
    assert [names for _, _, names in calls[2:]] == [["4KB", "64KB"]] * 2
    assert "failed: " not in (tmp_path / "messages.md").read_text()
    # A launch that has nothing to send is not made.
    monkeypatch.setattr(Sweep, "measure", sender(calls, failing="4KB"))
    capsys.readouterr()
    assert compare_messages(options_of(tmp_path / "none", "--sizes", "4KB", *words[3:])) == 1
    assert len(calls) == 5 and "repeat 2: left out: no message is left" in capsys.readouterr().out


def test_a_dry_run_sends_nothing(tmp_path, monkeypatch, capsys):
    hosts = tmp_path / "hosts"
    hosts.write_text("a slots=1\nb slots=1\n")
    monkeypatch.setattr(Sweep, "measure", None)
    words = ["--sizes", "4KB", "--backends", "hvd_mpi", "byteps", "--repeats", 5, "--hostfile", hosts]
    assert compare_messages(options_of(tmp_path / "out", *words, "--dry_run")) == 0
    said = capsys.readouterr().out
    assert "hosts and slots: a:1 b:1\n10 launches for 2 settings; 0 are made in" in said
    assert (
        "mpirun -np 2 --hostfile " in said and " byteps " in said and "\nabout 1 min 45 s (by a rule" in said
    )
    assert os.listdir(tmp_path) == ["hosts"]


def test_several_numbers_of_ranks(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(Sweep, "measure", sender(calls))
    words = ["--sizes", "4KB", "--backends", "hvd_mpi", "--workers", 1, 4, 2, "--repeats", 1]
    compare_messages(options_of(tmp_path, *words))
    assert sorted(workers for _, workers, _ in calls) == [2, 4]
    text = (tmp_path / "messages.md").read_text()
    assert "over 4 ranks" in text and "over 2 ranks" in text and "over 1 rank" not in text


def test_what_does_not_fit_is_said(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(Sweep, "measure", sender(calls))
    monkeypatch.setattr(module, "available_bytes", lambda: 3e9)
    words = ["--sizes", "4KB", "512MB", "--backends", "hvd_mpi", "--repeats"]
    assert compare_messages(options_of(tmp_path, *words, 1)) == 0
    monkeypatch.setattr(module, "available_bytes", lambda: 1e12)
    assert compare_messages(options_of(tmp_path, *words, 2)) == 0  # as in the launch before
    assert [names for _, _, names in calls] == [["4KB"], ["4KB"]]
    assert "left out: needs about" in (tmp_path / "messages.md").read_text()


# what ranks leave behind


def test_a_line_that_was_cut_off_does_not_count(tmp_path):
    path = tmp_path / "rank-0.jsonl"
    lines = ['{"joined": {"rank": 0}}', '{"begins": "4KB"}', '{"message": "4KB", "rounds_s": [1.0]}']
    path.write_text("\n".join([*lines, '{"begins": "1MB"}', '{"message": "1MB", "rou']))
    account = read_rank(path)
    assert account["begun"] == ["4KB", "1MB"] and account["results"] == {"4KB": {"rounds_s": [1.0]}}
    assert account["joined"] is not None and read_rank(tmp_path / "none")["joined"] is None


def test_reasons(tmp_path):
    log = tmp_path / "run.log"
    log.write_text("noise\n")
    accounts = [{"joined": {"rank": 0}}, {"joined": None}]
    assert why(Launched(124, 60.0, True, {}), log, 60, accounts) == "no end within 60 s (--time_limit)"
    assert "rank 1 left no file" in why(Launched(0, 5.0, False, {}), log, 60, accounts)
    log.write_text("error: rank 1: rank 1 lost the other ranks: gone\nmore\n")
    said = why(Launched(1, 5.0, False, {}), log, 60, [accounts[0]] * 2)
    assert said.startswith("exit code 1: ") and said.endswith("lost the other ranks: gone")
