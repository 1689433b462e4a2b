"""One rank: ``collectives_worker.py LIBRARY RANKS RANK TASK``, in a folder that the ranks share.

Calls the host runtime's NCCL through ctypes, on NumPy arrays; exits with 0 if every result was right.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, Callable

import numpy as np

DTYPES = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64")
SUM, PROD = 0, 1
STAGING = 512 * 1024  # bytes; staging_bytes in native/byteps_host/shared.h

ALL = slice(None)

UniqueId = ctypes.c_char * 128


class IdByValue(ctypes.Structure):
    _fields_ = [("internal", UniqueId)]


class NcclError(Exception):
    """An NCCL call did not return ncclSuccess."""


class Library:
    """The calls that need no communicator."""

    def __init__(self, path: str | Path) -> None:
        self.library = ctypes.CDLL(str(path))
        self.library.ncclGetErrorString.restype = ctypes.c_char_p

    def check(self, result: int) -> None:
        if result != 0:
            raise NcclError(f"{result}: {self.library.ncclGetErrorString(result).decode()}")

    def unique_id(self) -> bytes:
        unique = IdByValue()
        self.check(self.library.ncclGetUniqueId(ctypes.byref(unique)))
        return bytes(unique)

    def group_start(self) -> None:
        self.check(self.library.ncclGroupStart())

    def group_end(self) -> None:
        self.check(self.library.ncclGroupEnd())


class Communicator:
    """One rank. Arrays are contiguous; offsets are made by slicing."""

    def __init__(self, library: Library, unique_id: bytes, ranks: int, rank: int) -> None:
        self.library, self.ranks, self.rank = library, ranks, rank
        self._handle = ctypes.c_void_p()
        by_value = IdByValue.from_buffer_copy(unique_id)
        library.check(library.library.ncclCommInitRank(ctypes.byref(self._handle), ranks, by_value, rank))

    def reduce(self, send: Any, receive: Any, root: int, op: int = SUM) -> None:
        self._call("ncclReduce", send, receive, send.size, send.dtype, op, root)

    def reduce_scatter(self, send: Any, receive: Any) -> None:
        self._call("ncclReduceScatter", send, receive, receive.size, send.dtype, SUM)

    def all_gather(self, send: Any, receive: Any) -> None:
        self._call("ncclAllGather", send, receive, send.size, send.dtype)

    def broadcast(self, send: Any, receive: Any, root: int) -> None:
        self._call("ncclBroadcast", send, receive, receive.size, send.dtype, root)

    def destroy(self) -> None:
        self.library.check(self.library.library.ncclCommDestroy(self._handle))

    def _call(self, name: str, send: Any, receive: Any, count: int, dtype: Any, *numbers: int) -> None:
        code = ctypes.c_int(DTYPES.index(np.dtype(dtype).name))
        pointers = ctypes.c_void_p(send.ctypes.data), ctypes.c_void_p(receive.ctypes.data)
        function = getattr(self.library.library, name)
        numbers_c = [ctypes.c_int(number) for number in numbers]
        self.library.check(function(*pointers, ctypes.c_size_t(count), code, *numbers_c, self._handle, None))


def join(library: Library, folder: Path, ranks: int, rank: int) -> Communicator:
    """Joins the communicator whose id the last rank, as in BytePS, leaves in `folder`."""
    file = folder / "id"
    if rank == ranks - 1:
        unique = library.unique_id()
        temporary = file.with_suffix(".tmp")
        temporary.write_bytes(unique)
        os.replace(temporary, file)
        return Communicator(library, unique, ranks, rank)
    end = time.monotonic() + 600
    while not file.exists():
        if time.monotonic() > end:
            raise TimeoutError("the last rank has not made an id")
        time.sleep(0.01)
    return Communicator(library, file.read_bytes(), ranks, rank)


def data(dtype: str, count: int, rank: int, seed: int) -> Any:
    """The contribution of `rank`; every rank can make that of the others."""
    random = np.random.RandomState([seed, rank, count])
    if dtype.startswith("float"):
        # Exponents far apart, so that another order of summation gives other bits.
        return (random.standard_normal(count) * 2.0 ** random.randint(-9, 9, count)).astype(dtype)
    return np.frombuffer(random.bytes(count * np.dtype(dtype).itemsize), dtype).copy()


def total(arrays: list[Any]) -> Any:
    """The sum in the order of the ranks; float16 in float32, rounded once; integers wrap around."""
    dtype = arrays[0].dtype
    wide = np.float32 if dtype == np.float16 else dtype
    result = arrays[0].astype(wide)
    for array in arrays[1:]:
        result = result + array.astype(wide)
    if dtype.kind == "f":
        exact = np.sum([array.astype(np.float64) for array in arrays], axis=0)
        scale = np.sum([np.abs(array.astype(np.float64)) for array in arrays], axis=0)
        bound = len(arrays) * np.finfo(dtype).eps * scale + np.finfo(dtype).tiny
        assert (np.abs(result.astype(dtype).astype(np.float64) - exact) <= bound).all()
    return result.astype(dtype)


def same(actual: Any, expected: Any) -> None:
    assert actual.dtype == expected.dtype and actual.tobytes() == expected.tobytes()


def all_operations(comm: Communicator) -> None:
    """Every type and operation, odd sizes and sizes around that of the staging memory, both ways."""
    ranks, rank = comm.ranks, comm.rank
    for dtype in DTYPES:
        room = STAGING // np.dtype(dtype).itemsize
        for seed, count in enumerate((0, 1, 3, 1027, room // ranks + 1, room + 1)):
            whole = [data(dtype, count * ranks, r, seed) for r in range(ranks)]
            part = [array[:count].copy() for array in whole]
            root, gathered = seed % ranks, np.concatenate(part)
            block = slice(rank * count, (rank + 1) * count)
            summed = total(part) if rank == root else None
            everywhere = np.full(count * ranks, 7, dtype)
            everywhere[block] = part[rank]
            # A call, what it finds in one buffer, which of that it sends, where it receives, and what.
            for call, start, send, receive, expected in (
                (partial(comm.reduce, root=root), part[rank], ALL, ALL, summed),
                (comm.reduce_scatter, whole[rank], ALL, block, total([array[block] for array in whole])),
                (comm.all_gather, everywhere, block, ALL, gathered),
                (partial(comm.broadcast, root=root), part[rank], ALL, ALL, part[root]),
            ):
                sent, out = start[send].copy(), np.full(len(start[receive]), 7, dtype)
                call(sent, out)
                same(out, np.full(count, 7, dtype) if expected is None else expected)
                same(sent, start[send])
                buffer = start.copy()
                call(buffer[send], buffer[receive])
                same(buffer[receive], start if expected is None else expected)


def groups(comm: Communicator) -> None:
    """Operations of a group run in order when the outermost group ends, each on the results before it."""
    library, ranks, rank = comm.library, comm.ranks, comm.rank
    count = 100003
    for seed in range(5):
        mine = data("float32", count * ranks, rank, seed)
        everyone = [data("float32", count * ranks, r, seed) for r in range(ranks)]
        block = slice(rank * count, (rank + 1) * count)
        buffer, untouched = mine.copy(), mine.copy()
        halves = data("float16", 33, rank, seed)
        left = np.zeros(33, "float16")
        library.group_start()
        comm.reduce_scatter(buffer, buffer[block])
        library.group_start()
        comm.reduce(halves, left, ranks - 1)
        library.group_end()
        comm.all_gather(buffer[block], buffer)
        comm.broadcast(left, left, ranks - 1)
        same(buffer, untouched)
        same(left, np.zeros(33, "float16"))
        library.group_end()
        same(buffer, total(everyone))
        same(left, total([data("float16", 33, r, seed) for r in range(ranks)]))
    library.group_start()
    library.group_end()


def halves(comm: Communicator) -> None:
    """float16 on two ranks: all numbers added to zero, and to others, against NumPy's conversions."""
    every = np.arange(65536, dtype=np.uint16).view(np.float16)
    random = np.random.RandomState(3)
    others = [np.zeros_like(every), every[::-1].copy()]
    others += [random.permutation(every) for _ in range(20)]
    with np.errstate(all="ignore"):
        for other in others:
            out = np.zeros_like(every)
            comm.reduce(every if comm.rank == 0 else other, out, 1)
            if comm.rank == 0:
                continue
            expected = (every.astype(np.float32) + other.astype(np.float32)).astype(np.float16)
            numbers = ~np.isnan(expected)
            assert (np.isnan(out) == ~numbers).all()
            same(out[numbers], expected[numbers])


def many(comm: Communicator) -> None:
    """Thousands of small operations, with a rank now and then late."""
    random = np.random.RandomState(comm.rank)
    for step in range(3000):
        if random.rand() < 0.002:
            time.sleep(0.02)
        buffer = np.full(comm.ranks, comm.rank + step, "int64")
        comm.reduce_scatter(buffer, buffer[comm.rank : comm.rank + 1])
        comm.all_gather(buffer[comm.rank : comm.rank + 1], buffer)
        same(buffer, np.full(comm.ranks, sum(r + step for r in range(comm.ranks)), "int64"))


def anonymous(comm: Communicator) -> None:
    """The shared memory has no name that could be left behind."""
    maps = Path("/proc/self/maps").read_text()
    assert "/memfd:nccl" in maps and "/dev/shm" not in maps
    buffer = np.zeros(STAGING, "float32")
    comm.broadcast(buffer, buffer, 0)
    comm.destroy()
    assert "/memfd:nccl" not in Path("/proc/self/maps").read_text()


def refusal(call: Callable[[], None]) -> str:
    """The error of a call, which has to fail."""
    try:
        call()
    except NcclError as error:
        return str(error)
    sys.exit("the call succeeded")


def killed(comm: Communicator) -> None:
    """Rank 0 dies; the call of each of the others fails soon, and names it."""
    buffer = np.zeros(10, "float32")
    comm.broadcast(buffer, buffer, 0)
    if comm.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    for _ in range(2):
        print(refusal(lambda: comm.broadcast(buffer, buffer, 0)))


def different(comm: Communicator) -> None:
    """Ranks that call different things are told so instead of being given garbage."""
    buffer = np.zeros(10 + comm.rank, "float32")
    print(refusal(lambda: comm.broadcast(buffer, buffer, 0)))


def wrong_calls(comm: Communicator) -> None:
    """Wrong arguments are refused at once, on each rank alone."""
    buffer = np.zeros(10, "float32")
    for call, part in (
        (lambda: comm.reduce(buffer, buffer, 0, PROD), "ncclSum"),
        (lambda: comm.reduce(buffer, buffer, comm.ranks), f"root {comm.ranks} of {comm.ranks} ranks"),
        (lambda: Communicator(comm.library, bytes(128), 2, 0), "no id"),
        (lambda: Communicator(comm.library, comm.library.unique_id(), 2, 2), "rank 2 of 2"),
        (lambda: Communicator(comm.library, comm.library.unique_id(), 65, 0), "65 ranks"),
        (comm.library.group_end, "without ncclGroupStart"),
    ):
        assert part in refusal(call), part


TASKS = [all_operations, groups, halves, many, anonymous, killed, different, wrong_calls]

if __name__ == "__main__":
    path, ranks, rank, task = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    communicator = join(Library(path), Path.cwd(), ranks, rank)
    {function.__name__: function for function in TASKS}[task](communicator)
