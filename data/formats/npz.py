"""GluonNLP's npz files, read and written row block by row block.

GluonNLP's create_pretraining_data.py stores rows of different lengths as pickled object arrays. Unpickling
runs whatever the file says, so these are rejected here; `python -m data.convert_npz` turns them into padded
arrays without running anything. `numpy.load` would hold whole arrays in memory, so the members of the archive
are read here as streams, all seven side by side.
"""

from __future__ import annotations

import functools
import io
import math
import zipfile
import zlib
from contextlib import ExitStack
from typing import IO, Mapping, NamedTuple

import numpy as np

from base.errors import InputError
from data.formats.records import (
    PretrainingArrays,
    ReadRows,
    check_expansion,
    check_shapes,
    check_type,
    in_blocks,
    one_line,
)

_HEADER_LIMIT = 10_000  # NumPy's own bound for the text of an array's header
_DIRECTORY_LIMIT = 1 << 20  # a directory of seven arrays has well below 1 KiB
_READ_LIMIT = 16 << 20  # far above a block of rows
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError)


class _Column(NamedTuple):
    stream: IO[bytes]
    shape: tuple[int, ...]
    dtype: np.dtype


class BoundedFile(io.FileIO):
    """A file whose reads are bounded, since zipfile reads as much as an archive's directory says."""

    limit = _DIRECTORY_LIMIT

    def read(self, size: int | None = -1) -> bytes:
        wanted = self.limit + 1 if size is None or size < 0 else min(size, self.limit + 1)
        content = super().read(wanted) or b""
        if len(content) > self.limit:
            raise zipfile.BadZipFile("asks for an absurd amount of memory")
        return content

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_SET and offset < 0:  # before Python 3.12 zipfile trusts the directory's place
            raise zipfile.BadZipFile("its directory would begin before the file")
        return super().seek(offset, whence)


def write(handle: IO[bytes], rows: PretrainingArrays, compress: bool = True) -> None:
    """Write padded arrays, int32 and float32 as GluonNLP's, to the seekable `handle`."""
    method = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    with zipfile.ZipFile(handle, "w", method) as archive:
        for name, column in rows._asdict().items():
            dtype = np.dtype("<f4" if name == "masked_lm_weights" else "<i4")
            info = zipfile.ZipInfo(name + ".npy", date_time=(1980, 1, 1, 0, 0, 0))  # the same bytes each time
            info.compress_type = method
            with archive.open(info, "w", force_zip64=True) as member:
                np.lib.format.write_array_header_1_0(
                    member, {"descr": dtype.str, "fortran_order": False, "shape": column.shape}
                )
                for block in in_blocks(column):
                    member.write(block.astype(dtype).tobytes())


def open_columns(path: str, stack: ExitStack) -> tuple[Mapping[str, ReadRows], tuple[int, int, int]]:
    """Readers of the seven arrays, as long as the `stack` is open, and `check_shapes` of them.

    Raises InputError naming the file and the array, as reading does: no zip archive, a missing array, object
    arrays, Fortran order, wrong types or shapes, an array longer or shorter than it says, a wrong checksum.
    Damage to a compressed array cannot be tied to an instance, so none of it can be skipped.
    """
    name = "the archive's directory"
    try:
        handle = stack.enter_context(BoundedFile(path))
        archive = stack.enter_context(zipfile.ZipFile(handle))
        handle.limit = _READ_LIMIT
        stored = handle.seek(0, io.SEEK_END)
        members = {info.filename: info for info in archive.infolist()}
        missing = [field for field in PretrainingArrays._fields if field + ".npy" not in members]
        if missing:
            raise InputError(f"{path} lacks the array{'s' if len(missing) > 1 else ''} {', '.join(missing)}")
        wanted = [members[field + ".npy"] for field in PretrainingArrays._fields]
        check_expansion(path, sum(info.file_size for info in wanted), stored)
        columns = {}
        for name, info in zip(PretrainingArrays._fields, wanted):
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits & 1:
                raise InputError(f"{path}: {name} is neither stored nor deflated, as NumPy would have it")
            stream = stack.enter_context(archive.open(info))
            columns[name] = _open_column(path, name, stream, info.file_size)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except _DAMAGED as error:
        raise InputError(f"{path}: {name} is damaged ({one_line(error)})") from error
    shape = check_shapes(path, {name: column.shape for name, column in columns.items()})
    return {name: functools.partial(_read_rows, path, name, each) for name, each in columns.items()}, shape


def read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype, int]:
    """Shape, whether the order is Fortran's, type, and size in bytes of an array's header, which is read.

    The header is a Python literal: for a damaged one this can raise anything.
    """
    start = stream.read(8)
    length_size = {(1, 0): 2, (2, 0): 4}[np.lib.format.read_magic(io.BytesIO(start))]
    length_field = stream.read(length_size)
    length = int.from_bytes(length_field, "little")
    if length > _HEADER_LIMIT:
        raise ValueError("a header too long")
    header = io.BytesIO(length_field + stream.read(length))
    read = np.lib.format.read_array_header_1_0 if length_size == 2 else np.lib.format.read_array_header_2_0
    return (*read(header), 8 + length_size + length)


def _open_column(path: str, name: str, stream: IO[bytes], size: int) -> _Column:
    try:
        shape, fortran, dtype, header_size = read_header(stream)
    except Exception as error:
        raise InputError(f"{path}: {name} is damaged or no array ({one_line(error)})") from error
    if dtype.hasobject:
        raise InputError(
            f"{path}: {name} is an object array, which would have to be unpickled; "
            "convert the file with python -m data.convert_npz"
        )
    check_type(path, name, dtype)
    if fortran and len(shape) > 1:
        raise InputError(f"{path}: {name} is in Fortran order; save it as numpy.ascontiguousarray makes it")
    if any(extent < 0 for extent in shape) or header_size + math.prod(shape) * dtype.itemsize != size:
        raise InputError(f"{path}: {name} is damaged: its shape {shape} does not fit its {size} bytes")
    return _Column(stream, shape, dtype)


def _read_rows(path: str, name: str, column: _Column, first: int, stop: int) -> np.ndarray:
    shape = (stop - first, *column.shape[1:])
    size = math.prod(shape) * column.dtype.itemsize
    try:
        content = column.stream.read(size)
        last = stop == column.shape[0]
        if len(content) < size or (last and column.stream.read(1)):  # the read past the end checks the CRC
            raise EOFError("it ends too early or too late")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except _DAMAGED as error:
        raise InputError(f"{path}: {name} is damaged ({one_line(error)})") from error
    return np.frombuffer(content, column.dtype).reshape(shape)
