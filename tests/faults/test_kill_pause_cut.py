"""A rank, the BytePS server or the scheduler is killed or stopped, at the start, between two steps and while
rank 0 saves: every process of the run ends in time and with an error, somebody says who is missing, and the
last checkpoint is intact. With the real scripts and launchers."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from pathlib import Path

import pytest

from tests.processes import LIMIT, ROOT, environ_of, nothing_new, run_ranks, start_ranks, until, words_of
from training.checkpoint import list_steps, newest_complete

SCRIPTS = {
    "mpirun": ROOT / "run_pretraining_hvd.py",
    "gloo": ROOT / "run_pretraining_hvd.py",
    "byteps": ROOT / "run_pretraining_byteps.py",
}
TIMEOUT = 30  # --comm_timeout: on a busy machine two ranks do not join in less
KILL, STOP = signal.SIGKILL, signal.SIGSTOP
UNFINISHED = re.compile(r"\d{7}\.(params|states\.npz|json)\.tmp-.*")


def arguments(corpus, directory, **changes) -> list[str]:
    options = {
        "raw": True,
        "use_avg_len": True,
        "resume": True,
        "data": corpus.train,
        "vocab": corpus.vocab,
        "model": "bert_1_32_2",
        "max_seq_length": 32,
        "batch_size": 128,
        "num_buckets": 2,
        "num_data_workers": 1,
        "num_steps": 1_000_000,
        "lr": 0.001,
        "warmup_ratio": 0.1,
        "log_interval": 10,
        "ckpt_interval": 10,
        "keep_checkpoints": 2,
        "ckpt_dir": directory,
        "comm_timeout": TIMEOUT,
        "peak_tflops": 1,  # else measured
        **changes,
    }
    return words_of(options)


def start(launcher, args):
    options = {}
    if launcher == "byteps":
        # hosts/launch.py also finds stopped parts, on its own; here the ranks shall.
        options["launcher_args"] = ["--stopped_timeout", 1000]
    return start_ranks(SCRIPTS[launcher], 2, launcher, args=args, **options)


def find(run, launcher, who) -> int:
    """The process id of a rank (its number), "server" or "scheduler"; waits until it has been started."""
    while run.poll() is None:
        if launcher != "byteps":
            name = "OMPI_COMM_WORLD_RANK" if launcher == "mpirun" else "HOROVOD_RANK"
            pids = [pid for pid in run.find(SCRIPTS[launcher].name) if f"{name}={who}" in environ_of(pid)]
        elif who in ("server", "scheduler"):
            pids = run.find_role(who)
        else:
            pids = run.find_role("worker", DMLC_WORKER_ID=who)
        if pids:
            return pids[0]
        time.sleep(0.02)
    raise AssertionError(run.wait().describe())


def wait_for_joining(run, launcher, who) -> None:
    """Until rank `who` has loaded the library with which it joins the others, or the run has ended. On a busy
    machine its imports alone may take as long as the limit to everything that follows."""
    library = "/byteps/mxnet/c_lib" if launcher == "byteps" else "/horovod/mxnet/mpi_lib"
    pid = find(run, launcher, who)
    while run.poll() is None:
        with contextlib.suppress(OSError):
            if library in Path(f"/proc/{pid}/maps").read_text("utf-8", "replace"):
                return
        time.sleep(0.05)


def wait_for_checkpoint(run, directory, after=0) -> None:
    until(lambda: any(step > after for step in list_steps(str(directory))), run)


def catch_saving(pid, directory) -> None:
    """Stops process `pid`, rank 0, in the middle of writing a checkpoint."""
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        if unfinished(directory):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.05)  # a system call that has begun comes to its end
            if unfinished(directory):
                return
            os.kill(pid, signal.SIGCONT)
    raise AssertionError("rank 0 was never caught while it saved")


def unfinished(directory) -> list[str]:
    return [name for name in os.listdir(directory) if UNFINISHED.fullmatch(name)]


def traces() -> set[str]:
    """Files that BytePS leaves on a machine if nobody prevents it."""
    return {name for name in os.listdir("/dev/shm") if name.startswith("BytePS")} | {
        name for name in os.listdir("/tmp") if name.startswith("socket_")
    }


CASES = [
    ("mpirun", 1, STOP, "start"),
    ("mpirun", 0, STOP, "step"),
    ("mpirun", 0, KILL, "save"),
    ("gloo", 1, KILL, "step"),
    ("gloo", 0, STOP, "save"),
    ("byteps", 1, KILL, "start"),
    ("byteps", 1, STOP, "step"),
    ("byteps", 0, STOP, "save"),
    ("byteps", "server", STOP, "start"),
    ("byteps", "server", STOP, "step"),
    ("byteps", "server", KILL, "save"),
    ("byteps", "scheduler", KILL, "start"),
    ("byteps", "scheduler", STOP, "step"),
]


@pytest.mark.parametrize(
    ("launcher", "who", "how", "when"),
    CASES,
    ids=[f"{launcher}-{who}-{how.name}-{when}" for launcher, who, how, when in CASES],
)
def test_every_process_ends_and_the_checkpoint_is_good(launcher, who, how, when, corpus, tmp_path):
    before = traces()
    with start(launcher, arguments(corpus, tmp_path)) as run:
        victim = find(run, launcher, who)
        if when != "start":
            wait_for_checkpoint(run, tmp_path)
        if when == "save":
            rank_0 = find(run, launcher, 0)
            catch_saving(rank_0, tmp_path)
            os.kill(victim, how)
            if who != 0:
                with contextlib.suppress(ProcessLookupError):  # a launcher that noticed has killed it
                    os.kill(rank_0, signal.SIGCONT)
        else:
            os.kill(victim, how)
            if when == "start" and how == STOP:  # killed parts are noticed by the launcher
                wait_for_joining(run, launcher, 1 if who == 0 else 0)
        result = run.wait()  # raises when a process outlives the launcher
    assert not result.timed_out and result.returncode != 0, result.describe()

    # Who is missing is said by another rank, or by the launcher, which also knows how its parts have ended.
    named = who if isinstance(who, str) else f"rank {who}"
    reasons = [line for line in result.stderr.splitlines() if "error: " in line or "run noticed" in line]
    reasons += [line for line in result.stderr.splitlines() if line.startswith("launch: ")]
    assert any(named in line for line in reasons), result.describe()
    assert "Traceback" not in "".join(rank.stderr for rank in result.ranks), result.describe()
    if how == STOP:
        assert any(f"pid {victim}" in line for line in reasons if "error: " in line), result.describe()

    if when != "start":
        damaged = []
        checkpoint = newest_complete(str(tmp_path), damaged.append)
        assert checkpoint is not None and checkpoint.step >= 10
        if when == "save" and who == 0:
            assert unfinished(tmp_path)  # it really was in the middle
    if when == "save" and how == KILL:
        args = arguments(corpus, tmp_path, num_steps=checkpoint.step + 3)
        resumed = run_ranks(SCRIPTS[launcher], 1, "none", args=args).check()
        assert f"continuing after step {checkpoint.step}" in resumed.stdout
        assert max(list_steps(str(tmp_path))) == checkpoint.step + 3 and not unfinished(tmp_path)
    if launcher == "byteps":
        nothing_new(before, traces)
