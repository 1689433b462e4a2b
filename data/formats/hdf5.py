"""NVIDIA's HDF5 files (DeepLearningExamples, BERT), read row block by row block.

The valid length is the number of ones in input_mask. There are no weights: [CLS] at position 0 is never
masked, so the first masked_lm_position that is 0 ends an instance's predictions (NVIDIA's run_pretraining.py,
pretraining_dataset.__getitem__).

The HDF5 library can be made to open other files, to run filters from shared libraries and to allocate what a
damaged file says, so everything but plain and gzip-compressed numbers is rejected before anything is read.
The library can also crash on a damaged file: read files of strangers in a process of its own.
"""

from __future__ import annotations

import functools
import io
import math
import os
from contextlib import ExitStack
from typing import IO, Any, Mapping

import h5py
import numpy as np

from base.errors import InputError
from data.formats.records import (
    BLOCK_INSTANCES,
    LostRows,
    PretrainingArrays,
    ReadRows,
    check_expansion,
    check_shapes,
    check_type,
    in_blocks,
    one_line,
)

FIELDS = (
    "input_ids",
    "input_mask",
    "segment_ids",
    "masked_lm_positions",
    "masked_lm_ids",
    "next_sentence_labels",
)
_CHUNK_LIMIT = 64 << 20  # bytes unpacked; h5py's own choice of chunks stays below 1 MiB
_ENTRY_BYTES = 8  # no chunk takes less of a file, its entry in the dataset's index included
_COMPRESSORS = {h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_LZF}
_FILTERS = _COMPRESSORS | {h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32}
_WRITTEN_TYPES = {"segment_ids": "i1", "input_mask": "i1", "next_sentence_labels": "i1"}  # as NVIDIA's script


def check_expressible(path: str, rows: PretrainingArrays) -> None:
    """Raises InputError for a prediction at position 0 and for a weight other than 0 and 1."""
    first = 0
    for positions, weights in zip(in_blocks(rows.masked_lm_positions), in_blocks(rows.masked_lm_weights)):
        real = weights > 0
        holds = np.logical_and.accumulate(positions != 0, axis=1)
        wrong = ((real & (weights != 1)) | (real != holds)).any(axis=1)
        if wrong.any():
            raise InputError(
                f"{path}: instance {first + int(np.argmax(wrong))} does not fit HDF5, which has no weights "
                "and no predictions at position 0; write another format"
            )
        first += len(positions)


class _Sink(io.FileIO):
    """A file that hides errors from HDF5, which crashes after one. Nothing is written after the first."""

    error: OSError | None = None

    def write(self, content: Any) -> int:
        left = memoryview(content).cast("B")
        try:
            while left and self.error is None:
                left = left[super().write(left) :]
        except OSError as error:
            self.error = error
        return len(content)

    def truncate(self, size: int | None = None) -> int:
        try:
            return super().truncate(size)
        except OSError as error:
            self.error = self.error or error
            return 0

    def check(self) -> None:
        """Raises the first error."""
        if self.error is not None:
            raise self.error


def write(handle: IO[bytes], rows: PretrainingArrays, compress: bool = True) -> None:
    """Write the datasets as NVIDIA's script does, int32 and int8, to the file of `handle`, which is empty."""
    with _Sink(handle.name, "r+") as sink:
        with h5py.File(sink, "w", locking=False) as file:
            places = np.arange(rows.input_ids.shape[1])
            for name in FIELDS:
                shape = getattr(rows, "input_ids" if name == "input_mask" else name).shape
                dataset = file.create_dataset(
                    name,
                    shape,
                    dtype=_WRITTEN_TYPES.get(name, "i4"),
                    compression="gzip" if compress else None,
                    chunks=(min(BLOCK_INSTANCES, shape[0]), *shape[1:]) if compress else None,
                    track_times=False,  # the same bytes each time
                )
                row = 0
                for block in in_blocks(getattr(rows, "valid_lengths" if name == "input_mask" else name)):
                    values = places < block[:, None] if name == "input_mask" else block
                    dataset[row : row + len(block)] = values
                    row += len(block)
                    sink.check()
        sink.check()


def open_columns(path: str, stack: ExitStack) -> tuple[Mapping[str, ReadRows], tuple[int, int, int]]:
    """Readers of the six datasets, as long as the `stack` is open, and `check_shapes` of them.

    Raises InputError naming the file and the dataset: no HDF5 file, a missing dataset, links and storage
    outside the file, unusual filters, absurd chunks or sizes, wrong types or shapes.
    """
    name = "the file's header"
    try:
        size = os.stat(path).st_size
        file = stack.enter_context(
            # A whole row of chunks must stay in the cache, or each block of rows would unpack it again.
            h5py.File(path, "r", locking=False, rdcc_nbytes=_CHUNK_LIMIT, rdcc_nslots=10_007, rdcc_w0=1.0)
        )
        columns = {}
        missing = [field for field in FIELDS if not file.id.links.exists(field.encode())]
        if missing:
            raise InputError(
                f"{path} lacks the dataset{'s' if len(missing) > 1 else ''} {', '.join(missing)}"
            )
        for name in FIELDS:
            columns[name] = _open_column(path, name, file, size)
        shape = check_shapes(path, {name: column.shape for name, column in columns.items()})
        check_expansion(path, sum(_unpacked_size(column) for column in columns.values()), size)
    except InputError:
        raise
    except Exception as error:  # h5py turns the library's errors into many kinds
        raise InputError(f"{path}: {name} is damaged or cannot be read ({one_line(error)})") from error
    return {name: functools.partial(_read_rows, name, column) for name, column in columns.items()}, shape


def _read_rows(name: str, column: h5py.Dataset, first: int, stop: int) -> np.ndarray:
    try:
        rows = np.zeros((stop - first, *column.shape[1:]), column.dtype)
        column.read_direct(rows, np.s_[first:stop])
    except Exception as error:  # as above
        raise LostRows(f"{name} cannot be read ({one_line(error)})") from error
    return rows


def _open_column(path: str, name: str, file: h5py.File, stored: int) -> h5py.Dataset:
    if file.id.links.get_info(name.encode()).type != h5py.h5l.TYPE_HARD:
        raise InputError(f"{path}: {name} is a link, which may lead to another file; it is not followed")
    column = file[name]
    if not isinstance(column, h5py.Dataset) or column.shape is None:
        raise InputError(f"{path}: {name} is not a dataset of numbers")
    check_type(path, name, column.dtype)
    # Numbers narrower or wider than their bytes make the library read beyond its buffers.
    if column.id.get_type() != h5py.h5t.py_create(column.dtype):
        raise InputError(f"{path}: {name} has an unusual type of numbers")
    properties = column.id.get_create_plist()
    layout = properties.get_layout()
    if layout == h5py.h5d.VIRTUAL or (layout == h5py.h5d.CONTIGUOUS and properties.get_external_count()):
        raise InputError(f"{path}: {name} has its numbers in another file, which is not opened")
    filters = [properties.get_filter(index)[0] for index in range(properties.get_nfilters())]
    if not set(filters) <= _FILTERS or sum(code in _COMPRESSORS for code in filters) > 1:
        raise InputError(f"{path}: {name} is compressed otherwise than by gzip or lzf, once")
    if layout == h5py.h5d.CHUNKED:
        _check_chunks(path, name, column, stored)
    elif column.id.get_storage_size() != _unpacked_size(column):
        raise InputError(f"{path}: {name} is not complete")
    return column


def _check_chunks(path: str, name: str, column: h5py.Dataset, stored: int) -> None:
    size = math.prod(column.chunks) * column.dtype.itemsize
    if size > _CHUNK_LIMIT:
        raise InputError(f"{path}: {name} has chunks of {size} bytes, above {_CHUNK_LIMIT}; make it anew")
    # The library visits every chunk that a read touches: for days, where a damaged header tells of 2**60.
    number = math.prod(-(-extent // max(chunk, 1)) for extent, chunk in zip(column.shape, column.chunks))
    if len(column.chunks) != len(column.shape) or not all(column.chunks) or number * _ENTRY_BYTES > stored:
        raise InputError(f"{path}: {name} is damaged: chunks of {column.chunks} for shape {column.shape}")
    # What was never written reads as zeros, or as whatever was in memory.
    if column.id.get_num_chunks() != number:
        raise InputError(f"{path}: {name} is not complete: {number} chunks expected")


def _unpacked_size(column: h5py.Dataset) -> int:
    return math.prod(column.shape) * column.dtype.itemsize
