"""Parts: what a worker makes of one unit, as files that the building process appends and removes."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import IO, Any, Callable, Mapping, Protocol, Sequence

import numpy as np

_PARTS = "parts"
_BUFFER = 1 << 18


@dataclass(frozen=True)
class Column:
    """A column of a build.

    With `ends_of` the column holds offsets into that other column: values count from the start of the part,
    the builder adds what was there before, and the column begins with an extra 0. With `drop_repeated` an
    offset equal to the last one is left out.
    """

    name: str
    dtype: str
    ends_of: str | None = None
    drop_repeated: bool = False


class Part(Protocol):
    """Where `work` puts the numbers of its unit; `number` is the unit's place among all units."""

    number: int

    def append(self, name: str, values: np.ndarray) -> None:
        """Append to the column `name`. Raises ValueError for integers that its dtype cannot hold."""
        ...


@dataclass(frozen=True)
class PartJob:
    """One unit to work on; `partial` is the directory of the build."""

    unit: Any
    number: int
    partial: str
    columns: tuple[Column, ...]

    @property
    def name(self) -> str:
        return str(self.unit.name)


@dataclass(frozen=True)
class PartResult:
    """What came of a unit: a file for each column that something was appended to, and the counts."""

    files: Mapping[str, str]
    counts: Mapping[str, int]
    messages: Sequence[str]


@dataclass(frozen=True)
class PartFiles:
    """Calls `work` with a part that writes files. Picklable if `work` is."""

    work: Callable[[Any, Part], Mapping[str, Any]]

    def __call__(self, job: PartJob) -> PartResult:
        with _PartWriter(job) as part:
            result = self.work(job.unit, part)
        return PartResult(part.paths(), dict(result.get("counts", {})), list(result.get("messages", [])))


class _PartWriter:
    """A part in files, opened as they are needed."""

    def __init__(self, job: PartJob) -> None:
        self.number = job.number
        self._directory = os.path.join(job.partial, _PARTS)
        self._dtypes = {column.name: np.dtype(column.dtype) for column in job.columns}
        self._files: dict[str, IO[bytes]] = {}

    def append(self, name: str, values: np.ndarray) -> None:
        dtype = self._dtypes[name]
        array = np.asarray(values)
        if len(array) == 0:
            return
        if dtype.kind in "iu" and array.dtype != dtype:
            bounds = np.iinfo(dtype)
            if array.dtype.kind not in "iub" or array.min() < bounds.min or array.max() > bounds.max:
                raise ValueError(f"column {name}: values that {dtype} cannot hold")
        if name not in self._files:
            os.makedirs(self._directory, exist_ok=True)
            self._files[name] = open(self._path(name), "wb", buffering=_BUFFER)  # noqa: SIM115
        self._files[name].write(np.ascontiguousarray(array, dtype=dtype).data.cast("B"))

    def paths(self) -> dict[str, str]:
        return {name: self._path(name) for name in self._files}

    def __enter__(self) -> _PartWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for handle in self._files.values():
            try:
                handle.close()
            except OSError:
                if kind is None:
                    raise

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, f"{self.number}-{name}.bin")


def remove_parts(partial: str) -> None:
    """Remove all files of parts: of workers that were stopped, or of an earlier build."""
    shutil.rmtree(os.path.join(partial, _PARTS), ignore_errors=True)
