"""Instances kept in a temporary file while a file's number of rows and their widths are not known yet."""

from __future__ import annotations

import tempfile
from types import TracebackType
from typing import Iterator

import numpy as np

from data.formats.records import BLOCK_INSTANCES, PretrainingArrays

_TOKEN_COLUMNS = ("input_ids", "segment_ids")


class Spool:
    """Blocks of instances on disk, to be read again as often as a format needs.

    The file lies in `directory`, has no name, and is gone with the process however that ends.
    """

    def __init__(self, directory: str) -> None:
        self._handle = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 - closed by __exit__
        self._blocks: list[dict[str, tuple[int, np.dtype, tuple[int, ...]]]] = []
        self.num_instances = 0
        self.width = self.num_predictions = 1  # the widest block's, of tokens and of predictions

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handle.close()

    def append(self, arrays: PretrainingArrays) -> None:
        """Add instances. Raises ValueError for arrays whose shapes do not fit each other."""
        count, width = arrays.input_ids.shape
        predictions = arrays.masked_lm_ids.shape[1]
        if not count:
            return
        expected = [(count, width)] * 2 + [(count, predictions)] * 3 + [(count,)] * 2
        if [column.shape for column in arrays] != expected:
            raise ValueError(f"shapes {[column.shape for column in arrays]} do not fit each other")
        for first in range(0, count, BLOCK_INSTANCES):
            places = {}
            for name, column in zip(arrays._fields, arrays):
                part = np.ascontiguousarray(column[first : first + BLOCK_INSTANCES])
                places[name] = (self._handle.tell(), part.dtype, part.shape)
                self._handle.write(part.data)
            self._blocks.append(places)
        self.num_instances += count
        self.width = max(self.width, width)
        self.num_predictions = max(self.num_predictions, predictions)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a whole column, as wide as the widest block."""
        if name in ("next_sentence_labels", "valid_lengths"):
            return (self.num_instances,)
        return (self.num_instances, self.width if name in _TOKEN_COLUMNS else self.num_predictions)

    def column(self, name: str) -> Iterator[np.ndarray]:
        """A column block by block, narrower blocks padded with 0."""
        for block in range(len(self._blocks)):
            yield self._read(block, name)

    def blocks(self) -> Iterator[PretrainingArrays]:
        """The instances block by block, narrower blocks padded with 0."""
        for block in range(len(self._blocks)):
            yield PretrainingArrays(*(self._read(block, name) for name in PretrainingArrays._fields))

    def _read(self, block: int, name: str) -> np.ndarray:
        offset, dtype, shape = self._blocks[block][name]
        self._handle.seek(offset)
        content = self._handle.read(int(np.prod(shape)) * dtype.itemsize)
        stored: np.ndarray = np.frombuffer(content, dtype).reshape(shape)
        full = self.shape(name)[1:]
        if stored.shape[1:] == full:
            return stored
        padded = np.zeros((len(stored), *full), dtype)
        padded[:, : stored.shape[1]] = stored
        return padded
