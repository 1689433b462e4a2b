"""Signals from the first moment of a process on: its exit code, and that it leaves soon."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.faults.jobs import SCRIPTS, patched
from tests.processes import LIMIT, ROOT, run_command, run_ranks, start_command, start_ranks, until
from tests.training.small_runs import command
from training.stopping import SAME, Stopped, StopRequest

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
        if sys.argv[1] == "destructor":  # whose exceptions Python ignores
            class Garbage:
                def __del__(self):
                    print("READY", flush=True)
                    time.sleep(1000)
            Garbage()
            time.sleep(1000)
        if sys.argv[1] == "elsewhere":  # the signal interrupts no call, as one does that comes just before it
            number = int(sys.argv[2])
            threading.Timer(0.5, lambda: signal.pthread_kill(threading.get_ident(), number)).start()
        print("READY", flush=True)
        time.sleep(1000)
    return 0

sys.exit(exit_code(main, leaves=True))
"""


# Steps that have begun.
STEPS = """
import sys, time
import training.stopping
from training.stopping import StopRequest, leave_at_signals
training.stopping.SAME = float(sys.argv[1])
stop = StopRequest()
leave_at_signals()
stop.listen()
print("READY", flush=True)
while stop.exit_code is None:
    time.sleep(0.01)
print("SAVING", flush=True)
sys.stdin.readline()
print("SAVED", flush=True)
sys.exit(stop.exit_code)
"""


@pytest.mark.parametrize(("number", "code"), CODES, ids=["TERM", "USR1", "INT"])
def test_a_signal_before_the_steps_ends_with_its_code_and_leaves_no_half_file(number, code, tmp_path):
    # SIGUSR1 has SIGTERM's handlers and code.
    moments = ["importing", "elsewhere", "destructor"] if number != signal.SIGUSR1 else []
    for moment in (*moments, "writing"):
        found, stderr = ended_by(number, moment, tmp_path)
        assert found == code and "Traceback" not in stderr, stderr
        assert list(tmp_path.iterdir()) == []
    assert f"stopped by {signal.Signals(number).name}" in stderr


def test_what_waits_in_a_library_is_ended_too(tmp_path):
    """Python runs no handler then: the lock waits on after the signal, as MXNet does."""
    code, stderr = ended_by(signal.SIGUSR1, "library", tmp_path)
    assert code == 143, stderr


def begun(code: str, *words: object, **options: Any) -> subprocess.Popen[str]:
    """A process of Python that has said READY."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, words)], text=True, stdin=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        **options,
    )  # fmt: skip
    assert process.stdout.readline() == "READY\n", process.stderr.read()
    return process


def ended_by(number, moment, folder) -> tuple:
    """Exit code and standard error of a process that gets the signal at a moment."""
    process = begun(BUSY, moment, int(number), cwd=folder)
    try:
        if moment != "elsewhere":
            process.send_signal(number)
        _, stderr = process.communicate(timeout=LIMIT)
        return process.returncode, stderr
    finally:
        process.kill()


def test_a_second_sigterm_ends_a_run_that_saves():
    with begun(STEPS, 0.1) as process:
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "SAVING\n"
        # Again and again; of a process that has ended nothing is sent.
        until(lambda: process.send_signal(signal.SIGTERM) or process.poll() is not None)
        assert process.returncode == 143 and "SAVED" not in process.stdout.read()


@pytest.mark.parametrize(("same", "more"), [(1000.0, signal.SIGTERM), (0.0, signal.SIGUSR1)])
def test_copies_of_the_first_signal_and_sigusr1_let_it_save(same, more):
    """`timeout` sends SIGTERM twice at once; hosts/launch.py repeats SIGUSR1 to mpirun."""
    with begun(STEPS, same) as process:
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "SAVING\n"
        for _ in range(5):
            process.send_signal(more)
            time.sleep(0.1)
        out, err = process.communicate("\n", timeout=LIMIT)
        assert (process.returncode, out, err) == (143, "SAVED\n", "")


def catches(pid: int, number: int) -> bool:
    """Whether the process has a handler for the signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    return bool(int(status.split("SigCgt:")[1].split()[0], 16) >> (number - 1) & 1)


def test_a_second_sigterm_ends_a_run_in_a_step_that_does_not_end(tmp_path):
    words = "--dummy_data_len 16 --model bert_1_32_2 --batch_size 1 --accumulate 65536 --ckpt_dir"
    command = [sys.executable, ROOT / "run_pretraining_hvd.py", *words.split(), tmp_path / "run"]
    with start_command(command) as run:
        until(lambda: catches(run.pid, signal.SIGUSR2), run)  # as steps do
        os.kill(run.pid, signal.SIGTERM)
        time.sleep(SAME + 0.5)
        assert run.poll() is None, "the step ends, and the test tests nothing"
        os.kill(run.pid, signal.SIGTERM)
        result = run.wait()
    assert result.returncode == 143 and "Traceback" not in result.stderr, result.describe()


# Rank 1 gets an interrupt in its third step; every rank writes its code beside the run.
SIGNALLED = """
import os, signal
import training.step, training.train
rank = os.environ["OMPI_COMM_WORLD_RANK"]
step, train = training.step.TrainStep.__call__, training.train.train_stages
def signalled(self, number, *given, **named):
    if (number, rank) == (3, "1"):
        signal.raise_signal(signal.SIGINT)
    return step(self, number, *given, **named)
def noting(*given, **named):
    code = train(*given, **named)
    open({folder!r} + "/code" + rank, "w").write(str(code))
    return code
training.step.TrainStep.__call__, training.train.train_stages = signalled, noting
"""


def test_all_ranks_end_with_the_code_of_an_interrupt_to_one(tmp_path):
    """A launcher takes the code of the rank that ends first."""
    script = patched(ROOT / SCRIPTS["mpirun"], SIGNALLED.format(folder=str(tmp_path)))
    words = command(tmp_path / "run", "--num_steps", "6", "--log_interval", "1")
    result = run_ranks(script, 2, "mpirun", args=words)
    found = [(tmp_path / f"code{rank}").read_text() for rank in (0, 1)]
    assert (result.returncode, found) == (130, ["130", "130"]), result.describe()


# Rank 1 waits in a library for rank 0, where it comes to no handler.
WAITING = """
import ctypes, os, time
import training.train
from base.launchers import launched_rank
def waits(configs):
    os.write(1, b"WAITING\\n")
    if launched_rank(os.environ) == 0:
        time.sleep(1000)
    library, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)
training.stopping.GRACE = 1000
training.train.check_same = waits
"""


def test_a_rank_that_waits_for_one_that_has_obeyed_ends_with_its_code(tmp_path):
    script = patched(ROOT / SCRIPTS["byteps"], WAITING)
    with start_ranks(script, 2, "byteps", args=command(tmp_path / "run")) as run:
        until(lambda: run.stdout().count("WAITING") == 2, run)
        os.kill(run.pid, signal.SIGTERM)
        result = run.wait()
    assert result.returncode == 143 and "has ended" not in result.stderr, result.describe()


def test_sigusr1_does_not_kill_what_is_complete():
    """Python gives handlers up before it deletes modules, which takes MXNet a while."""
    script = """
import os, signal, sys
from training.entry import exit_code
class Late:
    def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.SIGUSR1):
        kill(pid, number)
late = Late()
sys.exit(exit_code(lambda: 0, leaves=True))
"""
    result = run_command([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert result.returncode == 0, result.describe()


class TestStopRequest:
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
