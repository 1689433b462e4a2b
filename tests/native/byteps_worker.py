"""One BytePS rank: ``byteps_worker.py TASK``, with BytePS's own variables. Exits with 0 if all was right."""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

import byteps.mxnet.ops as bps
import mxnet as mx
import numpy as np


def declare(name: str) -> None:
    """Not with bps.byteps_declare_tensor, which checks a return value that does not exist."""
    function = bps.MXNET_LIB_CTYPES.byteps_mxnet_declare_tensor
    function.restype = None
    function(bps.c_str(name), 0, (ctypes.c_char_p * 1)(), (ctypes.c_char_p * 1)())


def push_pull(array: Any, name: str) -> None:
    bps.byteps_push_pull(array, name=name, is_average=False)


@functools.cache
def residues(count: int) -> Any:
    """7 i modulo 11, for i below `count`."""
    return (np.arange(count) * 7 % 11).astype("int8")


def values(rank: int, step: int, dtype: str) -> Any:
    """A rank's contribution where `residues` is 0, 1, ... 10: whole numbers, whose sums are exact in every
    type."""
    return ((np.arange(11) + rank * 5 + step) % 11 - (5 if dtype[0] != "u" else 0)).astype(dtype)


def contribution(rank: int, step: int, count: int, dtype: str) -> Any:
    return values(rank, step, dtype)[residues(count)]


def check(array: Any, step: int, count: int, dtype: str) -> None:
    sums = sum(values(rank, step, dtype).astype("int64") for rank in range(bps.size()))
    wrong = np.flatnonzero(array.asnumpy() != sums.astype(dtype)[residues(count)])
    if wrong.size:
        sys.exit(f"step {step}, {count} of {dtype}: {wrong.size} wrong, the first at {wrong[0]}")


def sums() -> None:
    """Sums of known values, in several types and sizes; each tensor alternates between two names."""
    cases = [
        (dtype, count)
        for dtype in ("float32", "float16", "float64", "int32")
        for count in (1, 7, 4099, 300001)
    ]
    for index, _ in enumerate(cases):
        for turn in range(2):
            declare(f"sum.{index}.{turn}")
    for step in range(4):
        arrays = []
        for index, (dtype, count) in enumerate(cases):
            arrays.append(mx.nd.array(contribution(bps.rank(), step, count, dtype), dtype=dtype))
            push_pull(arrays[-1], f"sum.{index}.{step % 2}")
        for array, (dtype, count) in zip(arrays, cases):
            check(array, step, count, dtype)
    named = [line for line in Path("/proc/self/maps").read_text().splitlines() if "/dev/shm/BytePS" in line]
    if named:
        sys.exit(f"memory with a name: {named[0]}")


def in_turn() -> None:
    """Prints in how many of six sums, for each order of arrival, the bits are those of adding by rank."""
    cases = [(dtype, count) for dtype in ("float32", "float16") for count in (100, 3000, 300001)]
    for index, _ in enumerate(cases):
        for turn in range(2):
            declare(f"turn.{index}.{turn}")
    declare("meet.0"), declare("meet.1")
    right = 0
    for step, order in enumerate(itertools.permutations(range(3))):
        for each in range(2):  # every rank has come to this step
            vector = mx.nd.ones((2,))
            push_pull(vector, f"meet.{each}")
            vector.wait_to_read()
        time.sleep(0.1 * order[bps.rank()])
        arrays, expected = [], []
        for index, (dtype, count) in enumerate(cases):
            drawn = [np.random.RandomState(100 * step + rank).standard_normal(count) for rank in range(3)]
            first, second, third = (each.astype(dtype) for each in drawn)
            expected.append((first + second) + third)
            arrays.append(mx.nd.array((first, second, third)[bps.rank()], dtype=dtype))
            arrays[-1].wait_to_read()  # BytePS asks at once where it lies
            push_pull(arrays[-1], f"turn.{index}.{step % 2}")
        found = [array.asnumpy() for array in arrays]
        right += all(each.tobytes() == wanted.tobytes() for each, wanted in zip(found, expected))
    print(f"by rank {right} of 6")


def traffic() -> None:
    """Prints the bytes that eight sums of 8 MB send over the loopback interface."""
    declare("vector.0"), declare("vector.1")  # one alone would race: docs/byteps.md
    count, sent = 2000000, 0
    for step in range(9):
        array = mx.nd.array(contribution(bps.rank(), step, count, "float32"))
        push_pull(array, f"vector.{step % 2}")
        check(array, step, count, "float32")
        (line,) = (each for each in Path("/proc/self/net/dev").read_text().splitlines() if " lo:" in each)
        sent = sent or int(line.split()[1])
    print(f"sent {int(line.split()[1]) - sent}")


def idle() -> None:
    """Prints what two seconds without work cost, and the median time of a small exchange."""
    declare("small")
    vector = mx.nd.ones((2,))
    for _ in range(20):
        push_pull(vector, "small")
        vector.wait_to_read()
    times = []
    for _ in range(100):
        began = time.perf_counter()
        push_pull(vector, "small")
        vector.wait_to_read()
        times.append(time.perf_counter() - began)
    before = resource.getrusage(resource.RUSAGE_SELF)
    time.sleep(2)
    after = resource.getrusage(resource.RUSAGE_SELF)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"idle {used:.3f} s of 2 s, median {1000 * np.median(times):.3f} ms")


def killed() -> None:
    """Ends by SIGKILL in the middle of an exchange, which is not the first."""
    declare("vector.0"), declare("vector.1")
    for step in range(3):
        vector = mx.nd.array(contribution(bps.rank(), step, 1000000, "float32"))
        push_pull(vector, f"vector.{step % 2}")
        check(vector, step, 1000000, "float32")
    push_pull(mx.nd.ones((1000000,)), "vector.1")
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    bps.init()
    tasks = (sums, in_turn, traffic, idle, killed)
    {function.__name__: function for function in tasks}[sys.argv[1]]()
    bps.shutdown()
