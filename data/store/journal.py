"""How far a build has come: its journal, and the columns that the journal speaks of."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass, field
from typing import Any, Mapping, Sequence

import numpy as np

from base.files import is_temporary, replacing
from data.store.columns import ColumnWriter
from data.store.parts import Column, PartResult

MANIFEST = "manifest.json"
_JOURNAL = "journal.json"
_VERSION = 1
_BLOCK = 1 << 20  # numbers
MESSAGES_KEPT = 20


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
        if journal.get("version") == _VERSION and journal.get("key") == key:
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
                state.columns[column.name]["shards"],
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
            name: {"length": writer.length, "shards": writer.shards, "last": lasts[name]}
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
    """Whether the partial build has a journal; a complete one has none."""
    return os.path.exists(os.path.join(partial, _JOURNAL))


def units_done(partial: str) -> int:
    """How many units the journal counts."""
    return int(read_json(os.path.join(partial, _JOURNAL)).get("next", 0))


def read_json(path: str) -> dict[str, Any]:
    """The JSON object in a file; empty for a file that is missing, damaged or something else."""
    try:
        with open(path, encoding="utf-8") as handle:
            content = json.load(handle)
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def write_json(path: str, content: Mapping[str, Any]) -> None:
    """Write a JSON object; the file appears whole."""
    with replacing(path) as handle:
        handle.write((json.dumps(content, indent=1) + "\n").encode("utf-8"))


def as_json(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content as it will be read back, so that the two can be compared: tuples become lists."""
    read: dict[str, Any] = json.loads(json.dumps(content))
    return read
