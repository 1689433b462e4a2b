"""Turn GluonNLP's npz files, whose rows are pickled objects, into padded arrays.

    python -m data.convert_npz --input 'pretrain/*.npz' --output padded/

Nothing in the file is run: the pickle is read with inert stand-ins for the four names that NumPy's own
pickles use, and any other name in it is an error.
"""

from __future__ import annotations

import os
import pickle
import sys
import zipfile
import zlib
from typing import IO, Any, Sequence

import numpy as np

from base.command_line import OptionParser, code_of, path_name, path_names
from base.errors import InputError
from data.formats.files import write_instances
from data.formats.npz import BoundedFile, read_header
from data.formats.records import (
    BLOCK_INSTANCES,
    PretrainingArrays,
    RawBlock,
    check_expansion,
    check_shapes,
    check_type,
    checked,
)
from data.options import MAX_POSITIONS
from data.text.corpus import expand_inputs

_NUMBER_TYPES = {"i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8"}
_ANY_VOCABULARY = 1 << 31  # ids are checked against the vocabulary where the file is used


def convert(source: str, target: str) -> int:
    """Write the instances of `source` to `target` as padded arrays; returns their number.

    Memory: all of `source`, since a pickle holds a whole array. Raises InputError for a file that is not of
    GluonNLP's form, whose pickles hold anything but arrays of numbers, or whose instances are not sound (ids
    may be of any vocabulary).
    """
    columns = {}
    try:
        with BoundedFile(source) as handle, zipfile.ZipFile(handle) as archive:
            handle.limit = stored = os.fstat(handle.fileno()).st_size
            check_expansion(source, sum(info.file_size for info in archive.infolist()), stored)
            for name in PretrainingArrays._fields:
                try:
                    member = archive.open(name + ".npy")
                except KeyError as error:
                    raise InputError(f"{source} lacks the array {name}") from error
                with member:
                    columns[name] = _read_column(member, source, name)
    except OSError as error:
        raise InputError(f"cannot read {source}: {error.strerror or error}") from error
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, ValueError) as error:
        raise InputError(f"{source} is not an npz file, or is damaged") from error
    check_shapes(source, {name: column.shape for name, column in columns.items()})
    for name, column in columns.items():
        check_type(source, name, column.dtype)

    def reject(message: str, _: int) -> None:
        raise InputError(message)

    blocks = []
    for first in range(0, len(columns["valid_lengths"]), BLOCK_INSTANCES):
        block = {name: column[first : first + BLOCK_INSTANCES] for name, column in columns.items()}
        indices = np.arange(first, first + len(block["valid_lengths"]))
        blocks.append(checked(source, RawBlock(indices, block), _ANY_VOCABULARY, reject))
    return write_instances(target, "npz", PretrainingArrays(*map(np.concatenate, zip(*blocks))))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = OptionParser(description="Turn GluonNLP's npz files into padded arrays.")
    parser.add_argument(
        "--input", type=path_names, required=True, help="npz files: globs and folders, comma-separated"
    )
    parser.add_argument(
        "--output",
        type=path_name,
        required=True,
        help="directory for the converted files, which keep their names",
    )
    try:
        options = parser.parse_args(arguments)
        paths = expand_inputs(options.input, "--input")
        targets = [os.path.join(options.output, os.path.basename(path)) for path in paths]
        if len(set(targets)) < len(targets):
            raise InputError("--input: two files have the same name")
        taken = [target for target in targets if os.path.exists(target)]
        if taken:
            raise InputError(f"--output: {taken[0]} exists already")
        os.makedirs(options.output, exist_ok=True)
        for path, target in zip(paths, targets):
            print(f"{target}: {convert(path, target)} instances")
    except (InputError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


class _StandInDtype:
    """Remembers what numpy.dtype would have been made from."""

    def __init__(self, code: str = "", *_: object) -> None:
        self.code, self.order = code, "<"

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = ">" if state[1] == ">" else "<"


class _StandInArray:
    """Remembers the state that numpy.ndarray would have been given."""

    shape: tuple[int, ...] = ()
    dtype: Any = None
    content: Any = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, self.shape, self.dtype, self.fortran, self.content = state


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        stand_ins = {
            ("multiarray", "_reconstruct"): lambda *_: _StandInArray(),
            ("numpy", "ndarray"): _StandInArray,
            ("numpy", "dtype"): _StandInDtype,
            ("_codecs", "encode"): lambda text, *_: text.encode("latin1"),  # pickle protocol 2's bytes
        }
        short = "multiarray" if module in ("numpy.core.multiarray", "numpy._core.multiarray") else module
        if (short, name) not in stand_ins:
            raise InputError(f"it wants to run {module}.{name}, which no array of numbers needs")
        return stand_ins[short, name]


def _read_column(member: IO[bytes], source: str, name: str) -> np.ndarray:
    """One array of the archive; rows of numbers come padded with 0."""
    try:
        shape, fortran, dtype, _ = read_header(member)
        if dtype.hasobject:
            column = _rows(_ArrayUnpickler(member).load())
        else:
            count = int(np.prod(shape, dtype=np.int64))
            content = np.frombuffer(member.read(count * dtype.itemsize), dtype=dtype, count=count)
            column = content.reshape(shape, order="F" if fortran else "C")
    except (zipfile.BadZipFile, zlib.error):
        raise
    except InputError as error:
        raise InputError(f"{source}: {name} is rejected: {error}") from error
    except Exception as error:  # a damaged pickle can fail in any way
        raise InputError(f"{source}: {name} is not an array of rows of numbers") from error
    return column


def _rows(loaded: Any) -> np.ndarray:
    shape = loaded.shape
    if loaded.dtype.code not in ("O", "O8") or loaded.fortran or len(loaded.content) != int(np.prod(shape)):
        raise ValueError("not an array of objects")
    if len(shape) == 2:  # rows of equal lengths: NumPy stored their numbers one by one
        numbers = loaded.content
        if not all(type(number) in (int, float) for number in numbers):
            raise ValueError("not numbers")
        return np.array(numbers).reshape(shape)
    rows = [_numbers(row) for row in loaded.content]
    widest = max(len(row) for row in rows)
    if widest > MAX_POSITIONS:
        raise InputError(f"a row has {widest} numbers, above {MAX_POSITIONS}")
    padded = np.zeros((len(rows), widest), np.result_type(*{row.dtype for row in rows}))
    for index, row in enumerate(rows):
        padded[index, : len(row)] = row
    return padded


def _numbers(row: _StandInArray) -> np.ndarray:
    if row.dtype.code not in _NUMBER_TYPES or len(row.shape) != 1:
        raise ValueError("not a row of numbers")
    numbers = np.frombuffer(row.content, dtype=np.dtype(row.dtype.order + row.dtype.code))
    if len(numbers) != row.shape[0]:
        raise ValueError("a row has another length than it says")
    return numbers


if __name__ == "__main__":
    sys.exit(code_of(main))
