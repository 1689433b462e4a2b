"""Parts: the files that a worker makes of one unit, the columns that they are appended to, and the journal of
how far a build has come."""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass, field
from typing import IO, Any, Callable, Mapping, Protocol, Sequence

import numpy as np

from base.files import is_temporary
from data.store.columns import ColumnWriter
from data.store.manifest import MESSAGES_KEPT, read_json, write_json

_PARTS = "parts"
_BUFFER = 1 << 18
_JOURNAL = "journal.json"
_VERSION = 1
_BLOCK = 1 << 20  # numbers


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
    """Receives the numbers of a unit from `work`; `number` is the unit's place among all units."""

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
    """Result of a unit: a file for each column that something was appended to, and the counts."""

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


@dataclass
class BuildState:
    """State after the first `next` units; only whole units count.

    `columns` has for each column its elements, its full shards and its last offset.
    """

    key: Mapping[str, Any]
    next: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    columns: dict[str, dict[str, Any]] = field(default_factory=dict)

    @staticmethod
    def resume(partial: str, key: Mapping[str, Any], columns: Sequence[Column]) -> BuildState:
        """The state of the partial build of the same key, else a fresh one in an empty directory."""
        journal = read_json(os.path.join(partial, _JOURNAL))
        done, told = journal.get("next"), journal.get("columns")
        good = (
            journal.get("version") == _VERSION
            and isinstance(done, int)
            and done >= 0
            and isinstance(journal.get("counts"), dict)
            and isinstance(journal.get("messages"), list)
            and isinstance(told, dict)
            and set(told) == {column.name for column in columns}
        )
        if good and journal.get("key") == key:
            for name in os.listdir(partial):  # of a process that was killed while it wrote the journal
                if is_temporary(name):
                    os.unlink(os.path.join(partial, name))
            return BuildState(
                key, journal["next"], journal["counts"], journal["messages"], journal["columns"]
            )
        return BuildState.fresh(partial, key, columns)

    @staticmethod
    def fresh(partial: str, key: Mapping[str, Any], columns: Sequence[Column]) -> BuildState:
        """The state before the first unit; whatever was in the directory is removed."""
        shutil.rmtree(partial, ignore_errors=True)
        os.mkdir(partial)
        start = {column.name: {"length": 0, "shards": [], "last": 0} for column in columns}
        return BuildState(key, columns=start)

    def save(self, partial: str) -> None:
        """Write the journal. What it speaks of must be on the disk already."""
        content = {
            "version": _VERSION,
            "key": self.key,
            "next": self.next,
            "counts": self.counts,
            "messages": self.messages,
            "columns": self.columns,
        }
        write_json(os.path.join(partial, _JOURNAL), content)

    def remove(self, partial: str) -> None:
        """Remove the journal: the build is complete."""
        os.unlink(os.path.join(partial, _JOURNAL))


class Table:
    """The columns of a build, opened where `state` says."""

    def __init__(self, partial: str, columns: Sequence[Column], state: BuildState, shard_bytes: int) -> None:
        self._partial, self._columns = partial, columns
        self._writers = {
            column.name: ColumnWriter(
                partial,
                column.name,
                column.dtype,
                shard_bytes,
                state.columns[column.name]["length"],
                state.columns[column.name],
            )
            for column in columns
        }
        for column in columns:
            if column.ends_of is not None and not self._writers[column.name].length:
                self._writers[column.name].append(np.zeros(1, dtype=np.int64))
        state.columns = self._described({name: state.columns[name]["last"] for name in self._writers})

    def length(self, name: str) -> int:
        """Elements of a column; for a column of offsets without the 0 that it begins with."""
        return self._length(next(column for column in self._columns if column.name == name))

    def append_part(self, state: BuildState, part: PartResult) -> BuildState:
        """Append the files of a part and remove them; returns the state after it.

        If this is interrupted, or the disk is full, `state` is still that of the last whole part.
        """
        before = {column.name: self._length(column) for column in self._columns}
        lasts = {}
        for column in self._columns:
            lasts[column.name] = state.columns[column.name]["last"]
            if column.name in part.files:
                base = 0 if column.ends_of is None else before[column.ends_of]
                lasts[column.name] = self._append_file(
                    column, part.files[column.name], base, lasts[column.name]
                )
        for path in part.files.values():
            os.unlink(path)
        counts = dict(state.counts)
        for name, number in part.counts.items():
            counts[name] = counts.get(name, 0) + int(number)
        messages = [*state.messages, *part.messages][:MESSAGES_KEPT]
        return BuildState(state.key, state.next + 1, counts, messages, self._described(lasts))

    def save(self, state: BuildState) -> None:
        """Sync the columns, then write the journal."""
        for writer in self._writers.values():
            writer.sync()
        state.save(self._partial)

    def close(self) -> dict[str, Any]:
        """Sync and close all columns; returns what the manifest says of them."""
        return {
            column.name: {
                "dtype": np.dtype(column.dtype).str,
                "length": self._writers[column.name].length,
                "shards": self._writers[column.name].close(),
            }
            for column in self._columns
        }

    def abandon(self) -> None:
        """Close the files as they are."""
        for writer in self._writers.values():
            writer.abandon()

    def _length(self, column: Column) -> int:
        return self._writers[column.name].length - (column.ends_of is not None)

    def _described(self, lasts: Mapping[str, int]) -> dict[str, dict[str, Any]]:
        return {
            name: {
                "length": writer.length,
                "shards": writer.shards,
                "tail": writer.tail,
                "last": lasts[name],
            }
            for name, writer in self._writers.items()
        }

    def _append_file(self, column: Column, path: str, base: int, last: int) -> int:
        """Append the numbers in a file, block by block; returns the last offset of a column of offsets."""
        with open(path, "rb") as handle:
            while True:
                values = np.fromfile(handle, dtype=column.dtype, count=_BLOCK)
                if not len(values):
                    return last
                if column.ends_of is not None:
                    values += base
                    if column.drop_repeated:
                        values = values[np.diff(values, prepend=last) != 0]
                    last = int(values[-1]) if len(values) else last
                self._writers[column.name].append(values)


def units_digest(units: Sequence[Any]) -> str:
    """A hash of how the input is divided; a journal counts units, so it must be the same division."""
    digest = hashlib.sha256()
    for unit in units:
        digest.update(f"{unit.size} {os.path.basename(unit.name)}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def has_journal(partial: str) -> bool:
    """True if the partial build has a journal; a complete one has none."""
    return os.path.exists(os.path.join(partial, _JOURNAL))


def units_done(partial: str) -> int:
    """Number of units that the journal counts."""
    done = read_json(os.path.join(partial, _JOURNAL)).get("next")
    return done if isinstance(done, int) else 0
