"""Files mapped side by side in the address space, and the truth about them when one becomes shorter.

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
import itertools
import mmap
import os
import signal
import weakref
from typing import Sequence

from base.errors import InputError

# Linux' values, the same on every processor that Python's wheels exist for.
_PROT_NONE, _PROT_READ = 0, 1
_MAP_SHARED, _MAP_PRIVATE, _MAP_FIXED, _MAP_ANONYMOUS, _MAP_NORESERVE = 1, 2, 0x10, 0x20, 0x4000
_SA_SIGINFO = 4
_ADDRESS_IN_SIGINFO = 16  # si_addr, after three integers and padding


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
            if number in self._lost:
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


@functools.cache
def _bus_errors() -> _BusErrors:
    return _BusErrors()


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
