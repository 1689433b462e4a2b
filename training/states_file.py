"""The file of a checkpoint's optimizer states: an archive of plain arrays, looked at before it is believed.

What an array's header claims is compared with the bytes that the file has, before memory is taken; nothing is
ever unpickled, and nothing decompressed: states are stored as they are.
"""

from __future__ import annotations

import contextlib
import math
import os
import zipfile
from typing import IO, Any, Iterator, Mapping

import numpy as np

from base.errors import InputError
from base.json_files import open_regular
from bert.weights.tensors import to_numpy

_SUFFIX = ".npy"
_BLOCK = 1 << 20  # bytes written at once
_MOST_ARRAYS = 1 << 20
# All that zipfile and NumPy raise for damaged files (a header is Python's syntax for a dictionary).
_DAMAGE = (
    OSError,
    ValueError,
    EOFError,
    KeyError,
    TypeError,
    SyntaxError,
    MemoryError,
    RecursionError,
    RuntimeError,  # NotImplementedError too: another compression, or a password
    OverflowError,
    zipfile.BadZipFile,
)


def write_states(file: Any, states: Mapping[str, Any]) -> None:
    """Writes an uncompressed .npz, array by array (np.savez would need all of them in memory at once). `file`
    need not seek. ValueError for an array of objects."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, source in states.items():
            array = np.asarray(to_numpy(source), order="C")
            if array.dtype.hasobject:
                raise ValueError(f"{name}: objects cannot be saved")
            # ZipInfo's constant date makes equal states equal files.
            with archive.open(zipfile.ZipInfo(name + _SUFFIX), "w", force_zip64=True) as entry:
                np.lib.format.write_array_header_1_0(entry, np.lib.format.header_data_from_array_1_0(array))
                elements = array.reshape(-1).view(np.uint8).data
                for start in range(0, len(elements), _BLOCK):
                    entry.write(elements[start : start + _BLOCK])


class States(Mapping[str, np.ndarray]):
    """The arrays of an open archive by name, each loaded when it is asked for."""

    def __init__(self, file: IO[bytes]):
        """Raises one of the exceptions of damaged files, before any array is read."""
        self._archive = zipfile.ZipFile(file)
        whole = os.fstat(file.fileno()).st_size
        entries = self._archive.infolist()
        if len(entries) > _MOST_ARRAYS:
            raise ValueError(f"{len(entries):,} arrays")
        self._entries = {each.filename[: -len(_SUFFIX)]: each for each in entries}
        if len(self._entries) < len(entries):
            raise ValueError("two arrays have one name")
        for name, entry in self._entries.items():
            if not entry.filename.endswith(_SUFFIX):
                raise ValueError(f"{entry.filename} is no array")
            if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > whole:
                raise ValueError(f"{name} is compressed, or longer than the file")
            self._check_header(name, entry)

    def _check_header(self, name: str, entry: zipfile.ZipInfo) -> None:
        with self._archive.open(entry) as stream:
            version = np.lib.format.read_magic(stream)
            if version != (1, 0):
                raise ValueError(f"{name} has a header of version {version}")
            shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
            if dtype.hasobject or dtype.itemsize == 0 or any(size < 0 for size in shape):
                raise ValueError(f"{name} is no array of numbers")
            claimed, there = math.prod(shape) * dtype.itemsize, entry.file_size - stream.tell()
        if claimed != there:
            raise ValueError(f"{name} claims {claimed:,} bytes and has {there:,}")

    def __getitem__(self, name: str) -> np.ndarray:
        with self._archive.open(self._entries[name]) as stream:
            return np.lib.format.read_array(stream, allow_pickle=False)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


@contextlib.contextmanager
def open_states(path: str) -> Iterator[States]:
    """The states in a file, after a look at the headers of all arrays, not at their numbers.

    Raises:
        InputError: it cannot be read or is damaged, also where that shows only while an array is loaded.
    """
    with open_regular(path) as file:
        try:
            states = States(file)
        except _DAMAGE as error:
            raise _damaged(path, error) from error
        try:
            yield states
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise _damaged(path, error) from error


def _damaged(path: str, error: BaseException) -> InputError:
    return InputError(f"{path} does not hold optimizer states as plain arrays: {error}")
