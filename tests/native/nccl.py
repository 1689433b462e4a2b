"""The host runtime's NCCL calls through ctypes, on NumPy arrays."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

DTYPES = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64")
SUM, PROD = 0, 1
STAGING = 512 * 1024  # bytes; staging_bytes in native/byteps_host/shared.h

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

    def reduce_scatter(self, send: Any, receive: Any, op: int = SUM) -> None:
        self._call("ncclReduceScatter", send, receive, receive.size, send.dtype, op)

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
