"""MXNet's .params format in plain Python: the bytes that `mx.nd.save` writes, array by array.

Writing it here rather than through MXNet means that every write is checked (MXNet does not look at what
closing the file returns, and a full disk leaves a short file without an error), that one array at a time is
in memory, and that a file can be inspected before mxnet is imported.

The layout, all little-endian, from MXNet 1.x (`NDArray::Save` in src/ndarray/ndarray.cc):

    uint64 0x112, uint64 0
    uint64 count, then per array:
        uint32 0xF993FAC9, int32 storage type (0: dense)
        int32 dimensions, int64 each
        int32 device type (1: cpu), int32 device id, int32 dtype, the elements
    uint64 count, then per name: uint64 length, UTF-8
"""

from __future__ import annotations

import math
import os
import struct
from typing import IO, Any, Mapping, Protocol

import numpy as np

from bert.weights.tensors import MAX_ARRAYS, Damaged, Tensor, reading, stored_tensor, to_numpy

LIST_MAGIC = 0x112
ARRAY_MAGIC = 0xF993FAC9
ARRAY_MAGIC_NUMPY = 0xF993FACA  # written under MXNet's NumPy shape semantics; the same layout
DENSE = 0
CPU = 1
DTYPES = {0: "<f4", 1: "<f8", 2: "<f2", 3: "|u1", 4: "<i4", 5: "|i1", 6: "<i8"}
FLAGS = {np.dtype(code): flag for flag, code in DTYPES.items()}


class Writable(Protocol):
    """As much of a file as writing needs."""

    def write(self, data: Any) -> Any: ...


def write_params(file: Writable, arrays: Mapping[str, Any]) -> None:
    """Write named Tensors, MXNet or NumPy arrays, one at a time in memory.

    Raises:
        ValueError: an array without elements or dimensions, or of a dtype that the format does not have.
        OSError: from the file.
    """
    file.write(struct.pack("<QQQ", LIST_MAGIC, 0, len(arrays)))
    for name, source in arrays.items():
        array = to_numpy(source)
        if array.size == 0 or array.ndim == 0 or array.dtype not in FLAGS:
            raise ValueError(f"{name}: the .params format cannot hold {array.dtype} of shape {array.shape}")
        file.write(struct.pack("<IiI", ARRAY_MAGIC, DENSE, array.ndim))
        file.write(struct.pack(f"<{array.ndim}q", *array.shape))
        file.write(struct.pack("<iii", CPU, 0, FLAGS[array.dtype]))
        file.write(np.ascontiguousarray(array).data.cast("B"))
    file.write(struct.pack("<Q", len(arrays)))
    for name in arrays:
        encoded = name.encode("utf-8")
        file.write(struct.pack("<Q", len(encoded)) + encoded)


def read_index(path: str) -> dict[str, Tensor]:
    """A file's arrays by name, in order; the elements are read later.

    Every length is checked against the file's, so a truncated file cannot pass.

    Raises:
        InputError: the file cannot be read, is truncated, or is not a list of named dense arrays.
    """
    with reading(path, "a .params file of named dense arrays"), open(path, "rb") as file:
        return _Reader(path, file).index()


class _Reader:
    def __init__(self, path: str, file: IO[bytes]):
        self._path, self._file = path, file
        self._size = file.seek(0, os.SEEK_END)
        file.seek(0)

    def index(self) -> dict[str, Tensor]:
        if self._unpack("Q")[0] != LIST_MAGIC:
            raise Damaged("it does not begin as one")
        self._unpack("Q")
        arrays = [self._array() for _ in range(self._number())]
        try:
            names = [self._take(self._count()).decode("utf-8") for _ in range(self._number())]
        except UnicodeDecodeError as error:
            raise Damaged("a name is not UTF-8") from error
        if len(names) != len(arrays) or len(set(names)) != len(names):
            raise Damaged(
                f"{len(names)} names, {len(set(names))} of them different, for {len(arrays)} arrays"
            )
        if self._file.tell() != self._size:
            raise Damaged(f"{self._size - self._file.tell()} bytes too many")
        return dict(zip(names, arrays))

    def _array(self) -> Tensor:
        magic, storage, ndim = self._unpack("IiI")
        if magic not in (ARRAY_MAGIC, ARRAY_MAGIC_NUMPY) or storage != DENSE or not 0 < ndim <= 32:
            raise Damaged(f"no dense array at byte {self._file.tell()}")
        shape = self._unpack(f"{ndim}q")
        flag = self._unpack("iii")[2]
        if flag not in DTYPES or min(shape) < 1:
            raise Damaged(f"no array of a known dtype and shape at byte {self._file.tell()}")
        tensor = stored_tensor(self._path, self._file.tell(), shape, np.dtype(DTYPES[flag]))
        self._skip(math.prod(shape) * tensor.dtype.itemsize)
        return tensor

    def _number(self) -> int:
        count = self._count()
        if count > MAX_ARRAYS:
            raise Damaged(f"{count} arrays, the limit is {MAX_ARRAYS}")
        return count

    def _count(self) -> int:
        count = self._unpack("Q")[0]
        if count > self._size:  # every array and every name takes bytes
            raise Damaged("it ends too early")
        return count

    def _unpack(self, layout: str) -> tuple[int, ...]:
        return struct.unpack("<" + layout, self._take(struct.calcsize("<" + layout)))

    def _take(self, size: int) -> bytes:
        start = self._file.tell()
        self._skip(size)
        self._file.seek(start)
        return self._file.read(size)

    def _skip(self, size: int) -> None:
        if self._file.tell() + size > self._size:
            raise Damaged("it ends too early")
        self._file.seek(size, os.SEEK_CUR)
