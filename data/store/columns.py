"""Columns of numbers on disk: each one array, cut into shard files, appended once and then memory-mapped.

A column `ids` lies in `ids-00000.bin`, `ids-00001.bin`, ...: little-endian numbers without a header, all
files but the last one of exactly `shard_bytes`. Readers see one flat array, whatever the number of files.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
from typing import Any, Iterable, Mapping, Sequence

import numpy as np

from base.errors import InputError
from base.files import sha256_of_all, sync_directory
from data.store.mapped import MappedFiles, map_files, mapped_at

SHARD_BYTES = 1 << 30


class ColumnWriter:
    """Writes the column `name` in `directory`, an existing directory, over what is there.

    `dtype` is what is stored; `shard_bytes` a multiple of the page size.
    """

    def __init__(
        self, directory: str, name: str, dtype: np.dtype | str, shard_bytes: int = SHARD_BYTES
    ) -> None:
        self.dtype = np.dtype(dtype)
        if shard_bytes <= 0 or shard_bytes % mmap.PAGESIZE or shard_bytes % self.dtype.itemsize:
            raise ValueError(f"shard_bytes {shard_bytes} is no multiple of the page size {mmap.PAGESIZE}")
        self._directory, self._name, self._shard_bytes = directory, name, shard_bytes
        self._shards: list[dict[str, Any]] = []
        self._bytes = 0
        self._file = -1
        self._digest = hashlib.sha256()

    @property
    def length(self) -> int:
        """Elements written so far."""
        return self._bytes // self.dtype.itemsize

    def append(self, values: np.ndarray) -> None:
        """Append a one-dimensional array, converted to the column's dtype."""
        content = (
            np.ascontiguousarray(values, dtype=self.dtype).data.cast("B") if len(values) else memoryview(b"")
        )
        while content:
            if self._file < 0:
                path = self._path(len(self._shards))
                self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o666)
                self._digest = hashlib.sha256()
            room = self._shard_bytes - self._bytes % self._shard_bytes
            written = os.write(self._file, content[: min(room, 1 << 30)])
            self._digest.update(content[:written])
            self._bytes += written
            content = content[written:]
            if self._bytes % self._shard_bytes == 0:
                self._end_shard()

    def close(self) -> list[dict[str, Any]]:
        """Sync and close; returns `{"file", "size", "sha256"}` of each file in order, none if it is empty."""
        if self._file >= 0:
            self._end_shard()
        sync_directory(self._directory)
        return [dict(shard) for shard in self._shards]

    def remove(self) -> None:
        """Close and remove the files."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        for number in range(len(self._shards) + 1):
            with contextlib.suppress(OSError):
                os.unlink(self._path(number))

    def _path(self, number: int) -> str:
        return os.path.join(self._directory, f"{self._name}-{number:05d}.bin")

    def _end_shard(self) -> None:
        os.fsync(self._file)
        os.close(self._file)
        self._file = -1
        path = self._path(len(self._shards))
        size, checksum = os.path.getsize(path), self._digest.hexdigest()
        self._shards.append({"file": os.path.basename(path), "size": size, "sha256": checksum})


def map_column(
    directory: str, shards: Sequence[Mapping[str, Any]], dtype: np.dtype | str, verify: bool
) -> np.ndarray:
    """The column as one read-only array over all its files, mapped side by side in the address space.

    `shards` is what `ColumnWriter.close` returned; it may come from a damaged or hostile manifest. With
    `verify` every checksum is computed. The files stay mapped as long as the array or a view of it lives. One
    that is cut meanwhile reads as zeros: see `check_mapped`.
    Raises InputError for a file that is missing or has the wrong size or checksum.
    """
    kind = np.dtype(dtype)
    described = [_described(directory, shard) for shard in shards]
    for index, (path, size, _) in enumerate(described):
        last = index == len(described) - 1
        if size <= 0 or size % (kind.itemsize if last else mmap.PAGESIZE):
            raise InputError(f"{path}: {size} bytes, which no shard can have; the manifest is damaged")
        if _size(path) != size:
            raise InputError(f"{path} is missing or does not have its {size} bytes")
    if verify:
        for (path, _, checksum), actual in zip(described, sha256_of_all([path for path, _, _ in described])):
            if actual != checksum:
                raise InputError(f"{path} does not have its checksum")
    if not described:
        return np.empty(0, dtype=kind)
    return np.frombuffer(map_files([(path, size) for path, size, _ in described]), dtype=kind)


def mapped_files(columns: Iterable[np.ndarray]) -> tuple[MappedFiles, ...]:
    """The files that `map_column` has mapped for these columns, for `check_mapped` after reading."""
    return tuple(mapped_at(column.ctypes.data) for column in columns if len(column))


def check_mapped(files: Iterable[MappedFiles]) -> None:
    """Raises InputError naming a file that became shorter, or could not be read, while it was mapped."""
    for each in files:
        each.check()


def _described(directory: str, shard: Mapping[str, Any]) -> tuple[str, int, str]:
    try:
        name, size, checksum = shard["file"], shard["size"], shard["sha256"]
    except (KeyError, TypeError) as error:
        raise InputError(f"{directory}: its manifest describes a shard file wrongly") from error
    if not (isinstance(name, str) and isinstance(size, int) and os.path.basename(name) == name):
        raise InputError(f"{directory}: its manifest describes a shard file wrongly")
    return os.path.join(directory, name), size, str(checksum)


def _size(path: str) -> int:
    """Size of a regular file, -1 where there is none."""
    return os.path.getsize(path) if os.path.isfile(path) else -1
