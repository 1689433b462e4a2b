"""Columns of numbers on disk: each one array, cut into shard files, appended once and then memory-mapped.

A column `ids` lies in `ids-00000.bin`, `ids-00001.bin`, ...: little-endian numbers without a header, all
files but the last one of exactly `shard_bytes`. Readers see one flat array, whatever the number of files.

Reading a page of a mapped file that is no longer there (the file was cut, or its disk fails) raises the
signal SIGBUS, which ends a process without a word. Here a handler puts zeros in the place of what is missing
and notes it, so that the reader comes to its end; `MappedFiles.check`, which everyone calls after reading,
then raises an error that names the file. A signal at any other address goes to the handler that was there
before.
"""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import functools
import hashlib
import itertools
import mmap
import os
import signal
import weakref
from dataclasses import dataclass
from typing import Any, Iterator, Mapping, Sequence

import numpy as np

from base.errors import InputError
from base.files import sha256_of_all, sync_directory

SHARD_BYTES = 1 << 30
# Linux' values, the same on every processor that Python's wheels exist for.
_PROT_NONE, _PROT_READ = 0, 1
_MAP_SHARED, _MAP_PRIVATE, _MAP_FIXED, _MAP_ANONYMOUS, _MAP_NORESERVE = 1, 2, 0x10, 0x20, 0x4000
_SA_SIGINFO = 4
_ADDRESS_IN_SIGINFO = 16  # si_addr, after three integers and padding


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


class _SignalAction(ctypes.Structure):
    """glibc's struct sigaction."""

    _fields_ = [
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * (1024 // (8 * ctypes.sizeof(ctypes.c_ulong)))),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    ]


class MappedFiles:
    """Files that `map_files` has mapped."""

    def __init__(self, files: Sequence[tuple[str, int]], start: int, places: Sequence[int]) -> None:
        self.paths = [path for path, _ in files]
        self._sizes = [size for _, size in files]
        self._bounds = [start + place for place in places]  # addresses: of each file, and of the end
        self._identities: list[tuple[int, int]] = []
        self._lost: set[int] = set()  # numbers of files of which a page could not be read
        for path, size, address in zip(self.paths, self._sizes, self._bounds):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                facts = os.fstat(descriptor)
                self._identities.append((facts.st_dev, facts.st_ino))
                # The range is reserved, so that MAP_FIXED replaces nothing but our own reservation.
                _map(address, size, _PROT_READ, _MAP_SHARED | _MAP_FIXED, descriptor)
            finally:
                os.close(descriptor)

    def check(self) -> None:
        """Raises InputError naming the file if one was cut, or could not be read, since it was mapped.

        To be called after reading, before what was read is used: it may be zeros. Costs a system call a file.
        """
        for number, path in enumerate(self.paths):
            size, whole = self._sizes[number], self._sizes[number]
            lost = number in self._lost  # before the size: another thread may read the page after it
            # A file that was removed or replaced stays as it was where it is mapped.
            with contextlib.suppress(OSError):
                facts = os.stat(path)
                if (facts.st_dev, facts.st_ino) == self._identities[number]:
                    size = facts.st_size
            if size < whole:
                raise InputError(
                    f"{path} became shorter while it was in use: {size:,} of its {whole:,} bytes are left; "
                    "put the whole file back or make the store again, and start again"
                )
            if lost:
                raise InputError(
                    f"{path} cannot be read any more: was it cut, or does its disk fail? Make the store again"
                )

    def replace_with_zeros(self, address: int) -> bool:
        """Puts zeros in place of a file's pages from the one at `address` on, and notes their loss; False
        where the address is in none of the files."""
        if not self._bounds[0] <= address < self._bounds[-1]:
            return False
        number = bisect.bisect_right(self._bounds, address) - 1
        self._lost.add(number)
        page = address & -mmap.PAGESIZE
        flags = _MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_NORESERVE | _MAP_FIXED
        _map(page, self._bounds[number + 1] - page, _PROT_READ, flags, -1)
        return True


# A process has one handler of a signal, and it is given an address only: here it finds whose that is.
_mappings: dict[int, MappedFiles] = {}


def map_files(files: Sequence[tuple[str, int]]) -> tuple[memoryview, list[int], MappedFiles]:
    """Maps files into one range of addresses, read-only, as long as a view of it lives.

    `files` are paths and sizes in bytes, at least one. Each begins at the next page: those whose sizes are
    multiples of the page size lie without a gap before the next. Returns the range, where each file begins in
    it, and the files, to be checked after reading. Raises OSError as the system does.
    """
    places = [0, *itertools.accumulate(-(-size // mmap.PAGESIZE) * mmap.PAGESIZE for _, size in files)]
    start = _map(None, places[-1], _PROT_NONE, _MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_NORESERVE, -1)
    try:
        mapping = MappedFiles(files, start, places)
        region = (ctypes.c_ubyte * places[-1]).from_address(start)
    except BaseException:
        _libc().munmap(start, places[-1])
        raise
    _mappings[start] = mapping
    # Views keep `region` alive, and with it the mapping. Not at exit: other threads may still read then.
    weakref.finalize(region, _unmap, start, places[-1]).atexit = False
    _bus_errors().install()
    return memoryview(region).toreadonly(), places[:-1], mapping


class _BusErrors:
    """The handler of SIGBUS, and what was there before it."""

    def __init__(self) -> None:
        kind = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
        self._function = kind(self._handle)  # lives as long as it may be called
        self._own = ctypes.cast(self._function, ctypes.c_void_p).value
        self._before = _SignalAction()

    def install(self) -> None:
        """Become the handler, also where a library has set its own meanwhile."""
        current = _SignalAction()
        _libc().sigaction(signal.SIGBUS, None, ctypes.byref(current))
        if current.handler != self._own:
            self._before = current
            action = _SignalAction(handler=self._own, flags=_SA_SIGINFO)
            _libc().sigaction(signal.SIGBUS, ctypes.byref(action), None)

    def _handle(self, number: int, info: int, _: int) -> None:
        """Called at once in the thread that reads; Python's own handlers wait for the reading to end."""
        with contextlib.suppress(Exception):
            address = ctypes.c_void_p.from_address(info + _ADDRESS_IN_SIGINFO).value or 0
            if any(mapping.replace_with_zeros(address) for mapping in list(_mappings.values())):
                return
        # None of ours: after this the same address is read again, and the handler of before has its say.
        _libc().sigaction(number, ctypes.byref(self._before), None)


_bus_errors = functools.cache(_BusErrors)  # one for the process


def _unmap(start: int, total: int) -> None:
    del _mappings[start]
    _libc().munmap(start, total)


def _map(address: int | None, size: int, protection: int, flags: int, descriptor: int) -> int:
    result = _libc().mmap(address, size, protection, flags, descriptor, 0)
    if result is None or result == ctypes.c_void_p(-1).value:
        code = ctypes.get_errno()
        raise OSError(code, f"cannot map {size} bytes: {os.strerror(code)}")
    return int(result)


@functools.cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.sigaction.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    return libc
