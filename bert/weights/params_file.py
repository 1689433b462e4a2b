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

from bert.weights.tensors import MAX_ARRAYS, Damaged, Source, Tensor, reading, stored_tensor, to_numpy

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
        source = Source(file, os.fstat(file.fileno()).st_size)
        if source.unpack("<Q") != (LIST_MAGIC,):
            raise Damaged("it does not begin as one")
        source.skip(8)
        arrays = [_array(path, file, source) for _ in range(_number(source))]
        try:
            names = [source.read(*source.unpack("<Q")).decode("utf-8") for _ in range(_number(source))]
        except UnicodeDecodeError as error:
            raise Damaged("a name is not UTF-8") from error
        if len(names) != len(arrays) or len(set(names)) != len(names):
            raise Damaged(
                f"{len(names)} names, {len(set(names))} of them different, for {len(arrays)} arrays"
            )
        if source.left:
            raise Damaged(f"{source.left} bytes too many")
        return dict(zip(names, arrays))


def _array(path: str, file: IO[bytes], source: Source) -> Tensor:
    magic, storage, ndim = source.unpack("<IiI")
    if magic not in (ARRAY_MAGIC, ARRAY_MAGIC_NUMPY) or storage != DENSE or not 0 < ndim <= 32:
        raise Damaged(f"no dense array at byte {file.tell()}")
    shape = source.unpack(f"<{ndim}q")
    flag = source.unpack("<iii")[2]
    if flag not in DTYPES or min(shape) < 1:
        raise Damaged(f"no array of a known dtype and shape at byte {file.tell()}")
    tensor = stored_tensor(path, file.tell(), shape, np.dtype(DTYPES[flag]))
    source.skip(math.prod(shape) * tensor.dtype.itemsize)
    return tensor


def _number(source: Source) -> int:
    (count,) = source.unpack("<Q")
    if count > MAX_ARRAYS:
        raise Damaged(f"{count} arrays, the limit is {MAX_ARRAYS}")
    return count
