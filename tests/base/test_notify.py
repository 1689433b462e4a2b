"""A user's command hears of a run, and can neither hold it up nor fail it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from base import notify
from tests.processes import LIMIT, ROOT, until


@pytest.fixture
def own(monkeypatch, tmp_path):
    """The file that commands of this test write to."""
    monkeypatch.setenv("OWN", str(tmp_path / "said"))
    return tmp_path / "said"


def test_it_finds_what_happened_in_its_environment(own):
    command = 'echo "$RUN_EVENT|$RUN_MESSAGE|$RUN_CODE" > "$OWN.tmp"; mv "$OWN.tmp" "$OWN"'
    notify.tell(notify.FAILURE, "rank 1 'was\nlost'; $(touch /nothing) `touch`", 1, command)
    until(own.exists)
    assert own.read_text() == "failure|rank 1 'was lost'; $(touch /nothing) `touch`|1\n"
    own.unlink()
    notify.tell(notify.RESTART, "after step 3", command=command)
    until(own.exists)
    assert own.read_text() == "restart|after step 3|\n"


def test_it_ignores_no_signal_that_a_run_ignores(own):
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        notify.tell(
            notify.END, "complete", 0, 'grep SigIgn /proc/self/status > "$OWN.tmp"; mv "$OWN.tmp" "$OWN"'
        )
    finally:
        signal.signal(signal.SIGUSR1, before)
    until(own.exists)
    ignored = int(own.read_text().split()[1], 16)
    assert not ignored & (1 << signal.SIGUSR1 - 1 | 1 << signal.SIGPIPE - 1)


@pytest.mark.parametrize("command", ["exit 7", "/not/there", "kill -9 $$", "'", "cat; echo x >&2"])
def test_one_that_fails_says_nothing(command, capfd):
    notify.tell(notify.END, "complete", 0, command)
    assert capfd.readouterr() == ("", "")


def test_one_that_cannot_be_started_is_a_warning(monkeypatch, capfd):
    monkeypatch.setenv("PATH", "/not/there")
    notify.tell(notify.END, "complete", 0, "true")
    assert capfd.readouterr().err == "warning: --notify: timeout: No such file or directory\n"


def test_one_that_hangs_is_not_waited_for_and_is_killed(own, monkeypatch):
    monkeypatch.setattr(notify, "LIMIT", 1)
    begun = time.process_time()
    notify.tell(notify.END, "complete", 0, "trap '' TERM HUP; echo $$ > $OWN; while :; do sleep 1; done")
    assert time.process_time() - begun < 1
    pid = int(until(lambda: own.exists() and own.read_text()))
    assert os.getsid(pid) != os.getsid(0)
    until(lambda: not Path(f"/proc/{pid}/exe").exists())  # nor has a zombie a program


def test_the_end_of_a_process_does_not_wait_for_it(own):
    """Neither the process nor those who read its output."""
    code = "from base import notify; notify.tell('end', '', 0, 'echo $$ > $OWN; exec sleep 50'); print(1)"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=LIMIT)
    assert result.stdout == b"1\n"
    pid = int(until(lambda: own.exists() and own.read_text()))
    os.kill(pid, signal.SIGKILL)  # it is there


def test_it_inherits_no_open_file(own):
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    notify.tell(notify.END, "", 0, "ls -l /proc/$$/fd > $OWN.tmp; mv $OWN.tmp $OWN; sleep 5")
    until(own.exists)
    os.close(writer)
    assert os.read(reader, 1) == b"", "the end of the pipe, while the command still runs"
    os.close(reader)
    assert "pipe" not in own.read_text()
