"""Signals from the first moment of a process on: its exit code, and that it leaves soon."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.processes import LIMIT, ROOT
from tests.training.small_runs import handlers
from training.stopping import Stopped, StopRequest, code_of

__all__ = ["handlers"]  # a fixture for all tests of this module
CODES = [(signal.SIGTERM, 143), (signal.SIGUSR1, 143), (signal.SIGINT, 130)]

# A script whose main() has begun to write a file; READY says that the moment has come.
BUSY = """
import sys
from training.stopping import end_at_signals
end_at_signals()
if sys.argv[1] == "importing":
    print("READY", flush=True)
    import time
    time.sleep(1000)
import ctypes, os, signal, threading, time
import training.stopping
from base.files import replacing
from training.entry import exit_code

def main():
    if sys.argv[1] == "library":  # waits like MXNet: no instruction of Python's is executed
        print("READY", flush=True)
        library, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
        library.pthread_mutex_lock(mutex)
        library.pthread_mutex_lock(mutex)  # for ever; signals do not end it
    training.stopping.GRACE = 1000  # nothing but the exception ends the process
    with replacing("half.txt") as handle:
        handle.write(b"half")
        if sys.argv[1] == "elsewhere":  # the signal interrupts no call, as one does that comes just before it
            number = int(sys.argv[2])
            threading.Timer(0.5, lambda: signal.pthread_kill(threading.get_ident(), number)).start()
        print("READY", flush=True)
        time.sleep(1000)
    return 0

sys.exit(exit_code(main, leaves=True))
"""


@pytest.mark.parametrize(("number", "code"), CODES, ids=["TERM", "USR1", "INT"])
def test_a_signal_before_the_steps_ends_with_its_code_and_leaves_no_half_file(number, code, tmp_path):
    for moment in ("importing", "elsewhere", "writing"):
        found, stderr = ended_by(number, moment, tmp_path)
        assert found == code and "Traceback" not in stderr, stderr
        assert list(tmp_path.iterdir()) == []
    assert f"stopped by {signal.Signals(number).name}" in stderr


def test_what_waits_in_a_library_is_ended_too(tmp_path):
    """Python runs no handler then: the lock waits on after the signal, as MXNet does."""
    code, stderr = ended_by(signal.SIGUSR1, "library", tmp_path)
    assert code == 143, stderr


def ended_by(number, moment, folder) -> tuple:
    """Exit code and standard error of a process that gets the signal at a moment."""
    process = subprocess.Popen(
        [sys.executable, "-c", BUSY, moment, str(int(number))], cwd=folder, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout.readline() == "READY\n", process.stderr.read()
        if moment != "elsewhere":
            process.send_signal(number)
        _, stderr = process.communicate(timeout=LIMIT)
        return process.returncode, stderr
    finally:
        process.kill()


class TestStopRequest:
    @pytest.mark.parametrize(("number", "code"), CODES, ids=["TERM", "USR1", "INT"])
    def test_steps_note_it(self, number, code):
        stop = StopRequest()
        stop.listen()
        signal.raise_signal(number)
        assert stop.exit_code == code == code_of(number)

    def test_what_was_noted_ends_the_next_start(self):
        stop = StopRequest()
        stop.listen()
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(Stopped) as raised:
            stop.leave()
        assert raised.value.code == 143

    def test_a_second_interrupt_interrupts(self):
        stop = StopRequest()
        stop.listen()
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
