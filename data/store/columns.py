"""Columns of numbers on disk: each one array, cut into shard files, appended once and then memory-mapped.

A column `ids` lies in `ids-00000.bin`, `ids-00001.bin`, ...: little-endian numbers without a header, all
files but the last one of exactly `shard_bytes`. Readers see one flat array, whatever the number of files.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
from dataclasses import dataclass
from typing import Any, Iterator, Mapping, Sequence

import numpy as np

from base.errors import InputError
from base.files import sha256_of_all, sync_directory
from data.store.mapped import MappedFiles, map_files

SHARD_BYTES = 1 << 30


@dataclass(frozen=True)
class Column:
    """A column of a build.

    With `ends_of` the column holds offsets into that other column: values count from the start of the unit,
    the builder adds what was there before, and the column begins with an extra 0. With `drop_repeated` an
    offset equal to the last one is left out.
    """

    name: str
    dtype: str
    ends_of: str | None = None
    drop_repeated: bool = False


class ColumnWriter:
    """Writes a column in `directory`, an existing directory, over what is there.

    `shard_bytes` is a multiple of the page size. `length` is the number of elements so far, `last` the last
    of them. Without `sync` a lost machine may lose what was written.
    """

    def __init__(
        self, directory: str, column: Column, shard_bytes: int = SHARD_BYTES, sync: bool = True
    ) -> None:
        self._directory, self._name, self._dtype = directory, column.name, np.dtype(column.dtype)
        if shard_bytes <= 0 or shard_bytes % mmap.PAGESIZE or shard_bytes % self._dtype.itemsize:
            raise ValueError(f"shard_bytes {shard_bytes} is no multiple of the page size {mmap.PAGESIZE}")
        self._shard_bytes, self._sync = shard_bytes, sync
        self.length = self.last = 0
        self._shards: list[dict[str, Any]] = []
        self._size = 0  # bytes in the open file
        self._file = -1
        self._digest = hashlib.sha256()

    def append(self, values: np.ndarray) -> None:
        """Appends a one-dimensional array, converted to the column's dtype. Raises ValueError for integers
        that this cannot hold."""
        array, dtype = np.asarray(values), self._dtype
        if len(array) == 0:
            return
        if dtype.kind in "iu" and array.dtype != dtype:
            bounds = np.iinfo(dtype)
            if array.dtype.kind not in "iub" or array.min() < bounds.min or array.max() > bounds.max:
                raise ValueError(f"column {self._name}: values that {dtype} cannot hold")
        array = np.ascontiguousarray(array, dtype=dtype)
        content = array.data.cast("B")
        while content:
            if self._file < 0:
                path = self._path(len(self._shards))
                self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o666)
                self._digest, self._size = hashlib.sha256(), 0
            written = os.write(self._file, content[: self._shard_bytes - self._size])
            self._digest.update(content[:written])
            self._size += written
            content = content[written:]
            if self._size == self._shard_bytes:
                self._end_shard()
        self.length += len(array)
        self.last = array[-1].item()

    def close(self) -> dict[str, Any]:
        """Closes the column; returns what a manifest says of it: dtype, length, and file, size and sha256 of
        each shard, none if it is empty."""
        if self._file >= 0:
            self._end_shard()
        if self._sync:
            sync_directory(self._directory)
        return {"dtype": self._dtype.str, "length": self.length, "shards": self._shards}

    def remove(self) -> None:
        """Closes and removes the files."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        for number in range(len(self._shards) + 1):
            with contextlib.suppress(OSError):
                os.unlink(self._path(number))

    def _path(self, number: int) -> str:
        return os.path.join(self._directory, f"{self._name}-{number:05d}.bin")

    def _end_shard(self) -> None:
        if self._sync:
            os.fsync(self._file)
        os.close(self._file)
        self._file = -1
        name = os.path.basename(self._path(len(self._shards)))
        self._shards.append({"file": name, "size": self._size, "sha256": self._digest.hexdigest()})


def map_columns(
    directory: str, described: Mapping[str, Any], columns: Sequence[Column]
) -> tuple[dict[str, np.ndarray], MappedFiles]:
    """Each column by its name as one read-only array over all its files, mapped side by side.

    `described` holds what `ColumnWriter.close` returned, by the columns' names; it may come from a damaged or
    hostile manifest. The files stay mapped as long as an array or a view of one lives. One that is cut
    meanwhile reads as zeros: call `check` of the files after reading.
    Raises InputError for a column of another type or length, and a file that is missing or has another size.
    """
    files: list[tuple[str, int]] = []
    extents: list[tuple[int, int]] = []  # of each column: its first file, and its bytes
    for column in columns:
        kind, first = np.dtype(column.dtype), len(files)
        shards = list(_shards(directory, described, column.name))
        if described[column.name].get("dtype") != kind.str:
            raise InputError(f"the column {column.name} has another type")
        for number, (path, size, _) in enumerate(shards, start=1):
            if size <= 0 or size % (kind.itemsize if number == len(shards) else mmap.PAGESIZE):
                raise InputError(f"{path}: {size} bytes, which no shard can have; the manifest is damaged")
            if not os.path.isfile(path) or os.path.getsize(path) != size:
                raise InputError(f"{path} is missing or does not have its {size} bytes")
            files.append((path, size))
        extents.append((first, sum(size for _, size in files[first:])))
        if described[column.name].get("length") != extents[-1][1] // kind.itemsize:
            raise InputError(f"the column {column.name} has another length")
    if not files:
        raise InputError(f"{directory}: its columns are all empty")
    memory, places, mapped = map_files(files)
    arrays = {column.name: np.empty(0, column.dtype) for column in columns}
    for column, (first, size) in zip(columns, extents):
        if size:
            content = memory[places[first] : places[first] + size]
            arrays[column.name] = np.frombuffer(content, dtype=column.dtype)
    return arrays, mapped


def check_sums(directory: str, described: Mapping[str, Any]) -> None:
    """Raises InputError naming a file of the columns that is missing or does not have its checksum."""
    shards = [shard for name in described for shard in _shards(directory, described, name)]
    try:
        for (path, _, checksum), actual in zip(shards, sha256_of_all([path for path, _, _ in shards])):
            if actual != checksum:
                raise InputError(f"{path} does not have its checksum")
    except OSError as error:
        raise InputError(f"cannot read {error.filename}: {error.strerror}") from error


def _shards(directory: str, described: Mapping[str, Any], name: str) -> Iterator[tuple[str, int, str]]:
    """Path, size and checksum of each file of a column. Raises InputError for a description that is none."""
    try:
        for shard in described[name]["shards"]:
            file, size, checksum = shard["file"], shard["size"], shard["sha256"]
            if not (isinstance(file, str) and type(size) is int and os.path.basename(file) == file):
                raise TypeError
            yield os.path.join(directory, file), size, str(checksum)
    except (KeyError, TypeError) as error:
        raise InputError(f"{directory}: its manifest describes the column {name} wrongly") from error
