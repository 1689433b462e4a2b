"""The one line that says why a launch has failed, from what launchers and ranks really write."""

from __future__ import annotations

import pytest

from comparison.launch import LONGEST, Launched, reason_of_exit, telling_line

MXNET = """supervised: connected
error: rank 1: Traceback (most recent call last):
  File "/r/bert/entry.py", line 22, in exit_code
    return main()
  File "/v/mxnet/base.py", line 246, in check_call
    raise get_last_ffi_error()
mxnet.base.MXNetError: Traceback (most recent call last):
  File "../src/storage/./cpu_device_storage.h", line 74
MXNetError: Failed to allocate CPU Memory
--------------------------------------------------------------------------
Primary job  terminated normally, but 1 process returned
a non-zero exit code. Per user-direction, the job has been aborted.
--------------------------------------------------------------------------
supervised: exit 1
"""
GLOO = """[0]<stdout>:step 10/60  mlm_loss 7.5
[1]<stderr>:error: rank 1: Traceback (most recent call last):
[1]<stderr>:  File "x.py", line 3, in average
[0]<stderr>:error: rank 1 gave no sign of life
[1]<stderr>:RuntimeError: it broke
Process 1 exit with status code 1.
"""
BYTEPS = """[rank 0] step 10/60  mlm_loss 7.5
[rank 1] error: the disk is full
[server 0] [18:18:46] byteps/server/server.cc:512: byteps has been shutdown
launch: rank 1 exited with 1; ended the run
"""
KILLED = """step 10/60
--------------------------------------------------------------------------
mpirun noticed that process rank 1 with PID 0 on node vm exited on signal 9 (Killed).
--------------------------------------------------------------------------
supervised: exit 137
"""


def ended(code: int, oom_kills: int = 0) -> Launched:
    return Launched(code, 1.0, False, {}, oom_kills=oom_kills)


@pytest.mark.parametrize(
    ("log", "line"),
    [
        (MXNET, "rank 1: MXNetError: Failed to allocate CPU Memory"),
        (GLOO, "rank 1: RuntimeError: it broke"),
        (BYTEPS, "rank 1: the disk is full"),
        ("error: --data x: no such file\n", "--data x: no such file"),
        (KILLED, "mpirun noticed that process rank 1 with PID 0 on node vm exited on signal 9 (Killed)."),
        ("[rank 0] fine\nlaunch: rank 0 was killed by SIGSEGV; ended the run\n", None),
        ("a\nterminate called after an instance of 'X'\nb\n", "terminate called after an instance of 'X'"),
        ("nothing special\nbut this was last\n\n", "but this was last"),
    ],
)  # fmt: skip
def test_the_telling_line(log, line):
    expected = line or "launch: rank 0 was killed by SIGSEGV; ended the run"
    assert str(telling_line(log)) == expected


def test_silence():
    assert telling_line("supervised: connected\n\nsupervised: exit 1\n") is None
    assert reason_of_exit(ended(1), "") == ("exit code 1, and it said nothing", False)


def test_long_lines_are_cut():
    assert len(str(telling_line("error: " + 5000 * "x"))) == LONGEST


@pytest.mark.parametrize(
    "line",
    [
        "MXNetError: Failed to allocate CPU Memory",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "cudaMalloc retry failed: out of memory",
        "OSError: [Errno 12] Cannot allocate memory",
        "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 9.1 TiB",
        "MemoryError",
    ],
)
def test_out_of_memory_by_what_is_said(line):
    reason, out_of_memory = reason_of_exit(ended(1), f"error: rank 0 ended\n{line}\n")
    assert out_of_memory and reason == f"out of memory: {line}"


def test_out_of_memory_by_the_kernel():
    assert reason_of_exit(ended(137, oom_kills=1), KILLED)[1]
    assert reason_of_exit(ended(1, oom_kills=1), KILLED)[1]
    assert not reason_of_exit(ended(137), KILLED)[1]  # somebody else has killed it
    assert not reason_of_exit(ended(1, oom_kills=1), "error: no data\n")[
        1
    ]  # it was another program's process
