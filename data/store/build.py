"""Build a directory from many units of input: parallel, in order, resumable.

Everything happens in `<directory>.partial`, which becomes `directory` by a rename when it is complete. What
is needed only on the way lies in its folder `unfinished`. Worker processes turn units (byte ranges of text,
files of instances) into folders there, each renamed when it is whole; this process appends them to the
columns in the order of the units, so the result is the same for any number of workers. A build that was
killed, or whose disk was full, goes on by making only the folders that are not there.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import os
import shutil
import uuid
from collections import Counter
from dataclasses import dataclass
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Optional, Sequence, TypeVar

import numpy as np

from base.errors import InputError
from base.files import is_temporary, sync_directory
from base.locks import locked
from base.progress import SILENT, Progress
from base.workers import WorkerCrash, in_order
from data.store.columns import SHARD_BYTES, Column, ColumnWriter, check_sums
from data.store.manifest import MANIFEST, as_json, read_json, sealed, write_json

UNFINISHED = "unfinished"  # the folder of what is not part of the result
MESSAGES_KEPT = 20  # of records that were left out, in a manifest
IN_PROCESS_BYTES = 1 << 20  # less input than this is not worth half a second for starting a worker
_LABEL = "identity.json"  # in the folder: what is being built
_RESULT = "result.json"  # of a unit: its counts, messages, and its columns as in a manifest
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_BLOCK = 1 << 20  # numbers


class Interrupted(InputError):
    """A full disk, or another error of the system: what is unfinished stays, and the next call goes on."""


class Skipped:
    """Records that `work` leaves out, to be called for each: their number and the first messages."""

    def __init__(self) -> None:
        self.count, self.messages = 0, []  # type: int, list[str]

    def __call__(self, message: str, number: int = 1) -> None:
        self.count += number
        if len(self.messages) < MESSAGES_KEPT:
            self.messages.append(message)


Opened = TypeVar("Opened")
Writers = Mapping[str, ColumnWriter]
Work = Callable[[Any, int, Writers], Mapping[str, Any]]
Check = Callable[[Mapping[str, int], Mapping[str, int]], Optional[Mapping[str, int]]]


@dataclass(frozen=True)
class BuildPlan:
    """Columns to build: `work(unit, number, writers)` is called for each of `units()`, with its place among
    all, and appends to the `writers` of a unit's columns.

    `units` is called only where something is to be built; it may read the input. A unit is a piece of it,
    with a `name` for messages and a `size` in bytes for progress. It is pickled, as is `work`, which
    returns "counts" (numbers, which are added up) and may return "messages" (lines about records that it
    skipped; the first few are kept). The result depends on the unit and its place alone. `identity` (JSON)
    decides what is built: a partial build of the same identity is continued, one of another is thrown away.
    `manifest` (JSON) is written into manifest.json beside identity, counts, messages and columns; nothing in
    it may depend on the machine or the time. `check(counts, lengths of the columns)` may reject the result by
    raising InputError, or return more counts.
    """

    columns: Sequence[Column]
    units: Callable[[], Sequence[Any]]
    work: Work
    identity: Mapping[str, Any]
    manifest: Mapping[str, Any]
    check: Check | None = None
    what: str = "reading"  # for the progress
    isolate: bool = False  # work in other processes, however small the input
    memory_limit: int | None = None  # bytes of each worker's address space
    shard_bytes: int = SHARD_BYTES


def build_columns(directory: str, plan: BuildPlan, num_workers: int, progress: Progress = SILENT) -> None:
    """Builds the columns of `plan` in `directory`, with `num_workers` processes (in this one if the input is
    small). On the way it takes twice the disk space of the result. Waits, returns and raises as
    `new_directory`; a crashed worker leaves what is unfinished, too."""
    # Folders of units have numbers, so it must be the same division of the input.
    division = hashlib.sha256()
    units = plan.units()
    for unit in units:
        division.update(f"{unit.size} {os.path.basename(unit.name)}\n".encode("utf-8", "surrogateescape"))
    identity = as_json(plan.identity)
    label = {"identity": identity, "units": division.hexdigest(), "shard_bytes": plan.shard_bytes}

    with new_directory(directory, identity, progress, label) as partial:
        if partial is None:
            return
        writers = {each.name: ColumnWriter(partial, each, plan.shard_bytes) for each in plan.columns}
        try:
            for column in plan.columns:
                if column.ends_of is not None:
                    writers[column.name].append(np.zeros(1, dtype=np.int64))
            counts, messages = _append_units(writers, partial, plan, units, num_workers, progress)
            more = plan.check(counts, _rows(plan, writers)) if plan.check is not None else None
            content = {
                **plan.manifest,
                "identity": identity,
                "counts": {**counts, **(more or {})},
                "messages": messages,
                "columns": {name: writer.close() for name, writer in writers.items()},
            }
            write_json(os.path.join(partial, MANIFEST), content)
        except BaseException as error:
            # It may be there already, if only its folder's sync failed, and must not outlive the columns.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(partial, MANIFEST))
            for writer in writers.values():  # made again from the units' folders, which may need the space
                writer.remove()
            if isinstance(error, OSError) and error.errno in _FULL:
                raise _disk_full(partial, units, error) from error
            raise


def open_or_build(
    cache_dir: str,
    prefix: str,
    plan: BuildPlan,
    opens: Callable[[str], Opened],
    num_workers: int,
    progress: Progress = SILENT,
) -> Opened:
    """Result of `opens` for the directory of this plan's identity, built where that is missing or damaged.

    `opens` raises InputError for damage. Any number of processes and hosts may call this at once: one builds,
    the others wait.
    """
    key = hashlib.sha256(json.dumps(plan.identity, sort_keys=True).encode("utf-8")).hexdigest()
    directory = os.path.join(cache_dir, f"{prefix}-{key[:32]}")
    if os.path.isdir(directory):
        with contextlib.suppress(InputError):
            return opens(directory)
        # Alone, so that what is removed is not a good one that another process has put there meanwhile.
        with locked(f"{directory}.repair", lambda: progress.note(f"waiting for the repair of {directory}")):
            try:
                return opens(directory)
            except InputError:
                aside = f"{directory}.damaged-{uuid.uuid4().hex[:8]}"
                # It may be gone; and where there are no locks, another may have been first.
                with contextlib.suppress(FileNotFoundError):
                    os.rename(directory, aside)
                shutil.rmtree(aside, ignore_errors=True)
    build_columns(directory, plan, num_workers, progress)
    return opens(directory)


@contextlib.contextmanager
def new_directory(
    directory: str, identity: Mapping[str, Any], progress: Progress, label: Mapping[str, Any] | None = None
) -> Iterator[str | None]:
    """A partial directory, to be filled within, its manifest last; it then becomes `directory`. None where
    nothing is to be done: `directory` is there with this identity.

    The partial one holds what an interrupted call with the same `label` (without one: identity) has left, of
    files only whole ones; in its folder UNFINISHED is kept what is not part of the result. Other processes
    that make the same directory meanwhile wait here, then find it.
    Raises InputError for one that is raised within (nothing is left), or if `directory` holds something else;
    Interrupted.
    """
    directory, identity = os.path.abspath(directory), as_json(identity)
    partial = f"{directory}.partial"
    try:
        if is_built(directory, identity):
            yield None
            return
        os.makedirs(os.path.dirname(directory), exist_ok=True)
        with locked(
            f"{directory}.lock", lambda: progress.note(f"waiting for another process to build {directory}")
        ) as alone:
            if is_built(directory, identity):
                yield None
                return
            if not alone:  # no locks on this file system: each builds privately, and the first rename wins
                partial += f"-{uuid.uuid4().hex[:12]}"
            with _continued(partial, identity, as_json(label or identity), alone) as unfinished:
                yield unfinished
            try:
                os.rename(partial, directory)
            except OSError:
                if not is_built(directory, identity):
                    raise
                shutil.rmtree(partial, ignore_errors=True)  # another process was first, with the same result
            sync_directory(os.path.dirname(directory))
    except OSError as error:
        if error.errno in _FULL:
            raise Interrupted(
                f"{partial}: {error.strerror}; free some space and give the same command again: it goes on "
                "where it stopped"
            ) from error
        where = f" ({error.filename})" if error.filename else ""
        raise Interrupted(f"cannot build {directory}: {error.strerror or error}{where}") from error


@contextlib.contextmanager
def _continued(
    partial: str, identity: Mapping[str, Any], label: Mapping[str, Any], alone: bool
) -> Iterator[str | None]:
    """Gives `partial`, emptied if it has another label; None if it is complete, with this identity. After the
    work within it has nothing unfinished; where that fails, it is left if the next call can go on with it."""
    unfinished = os.path.join(partial, UNFINISHED)
    try:
        if read_json(os.path.join(partial, MANIFEST)).get("identity") == identity:
            yield None
        else:
            if read_json(os.path.join(unfinished, _LABEL)).get("label") != label:
                shutil.rmtree(partial, ignore_errors=True)
                os.makedirs(unfinished)
                write_json(os.path.join(unfinished, _LABEL), {"label": label})
            for name in filter(is_temporary, os.listdir(partial)):  # of a process that was killed
                os.unlink(os.path.join(partial, name))
            yield partial
        shutil.rmtree(unfinished, ignore_errors=True)
        sync_directory(partial)
    except BaseException as error:
        # Bad input would stop the next call at the same place.
        goes_on = not isinstance(error, InputError) or isinstance(error, (WorkerCrash, Interrupted))
        if not alone or not goes_on:
            shutil.rmtree(partial, ignore_errors=True)
        raise


def is_built(directory: str, identity: Mapping[str, Any]) -> bool:
    """True if `directory` was built with this identity. Raises InputError if it holds anything else."""
    if not os.path.lexists(directory):
        return False
    if not os.path.isdir(directory):
        raise InputError(f"{directory} is a file; give another name for the output, or remove it")
    if not os.listdir(directory):
        if os.path.islink(directory) or os.path.ismount(directory):
            raise InputError(
                f"{directory} is a link or a mount, which nothing can replace; name a folder in it"
            )
        return False
    manifest = read_json(os.path.join(directory, MANIFEST))
    if manifest.get("identity") == as_json(identity):
        return True
    raise InputError(
        f"{directory} is there already, with other content or made with other settings; "
        "give another name for the output, or remove it"
    )


def check_free(directory: str, known: Mapping[str, Any]) -> None:
    """Raises InputError, as `is_built`, if `directory` holds what does not have this part of an identity: to
    be called before the work that tells the rest."""
    held = read_json(os.path.join(directory, MANIFEST)).get("identity")
    is_built(directory, {**(held if isinstance(held, dict) else {}), **known})


def unfinished_build(folder: str) -> tuple[str, str]:
    """The unfinished directory that the files of a folder belong to, and what it would become, such as "token
    store"; ("", "") for others."""
    for directory in (folder, os.path.dirname(folder), os.path.dirname(os.path.dirname(folder))):
        label = read_json(os.path.join(directory, UNFINISHED, _LABEL)).get("label")
        if isinstance(label, dict):
            form = str(label.get("identity", label).get("format", ""))
            return directory, "token store" if form.startswith("token-store") else "instance store"
    return "", ""


def _append_units(
    writers: Writers,
    partial: str,
    plan: BuildPlan,
    units: Sequence[Any],
    num_workers: int,
    progress: Progress,
) -> tuple[dict[str, int], list[str]]:
    """Makes the units' folders that are missing and appends all in order; returns counts and messages."""
    unfinished = os.path.join(partial, UNFINISHED)
    found = {number: kept for number in range(len(units)) if (kept := _whole(unfinished, number))}
    for name in os.listdir(unfinished):  # damaged, or of a worker that was stopped
        if name != _LABEL and not (name.isdecimal() and int(name) in found):
            shutil.rmtree(os.path.join(unfinished, name))
    jobs = [_Job(number, unit, unit.name) for number, unit in enumerate(units) if number not in found]
    total = sum(unit.size for unit in units)
    done = sum(units[number].size for number in found)
    counts: Counter[str] = Counter()
    messages: list[str] = []
    progress.begin(plan.what, total)
    try:
        if found:
            progress.note(f"going on with the unfinished {partial}")
        progress.update(done, {})
        work = functools.partial(_make_folder, plan.work, tuple(plan.columns), plan.shard_bytes, unfinished)
        in_process = not num_workers or (not plan.isolate and total < IN_PROCESS_BYTES)
        made = (
            (work(job) for job in jobs)
            if in_process
            else in_order(work, jobs, num_workers, plan.memory_limit)
        )
        with contextlib.closing(made):
            for number, unit in enumerate(units):
                result = found.get(number)
                if result is None:
                    result = next(made)
                    done += unit.size
                _append_folder(writers, plan, os.path.join(unfinished, str(number)), result["columns"])
                counts.update(result["counts"])
                messages = [*messages, *result["messages"]][:MESSAGES_KEPT]
                progress.update(done, counts)
    finally:
        progress.end()
    return counts, messages


class _Job(NamedTuple):
    """A unit to work on, its number and its name."""

    number: int
    unit: Any
    name: str


def _make_folder(
    work: Work, columns: Sequence[Column], shard_bytes: int, unfinished: str, job: _Job
) -> dict[str, Any]:
    """Calls `work` and makes the folder of a unit, which has a unit's columns and its result."""
    folder = os.path.join(unfinished, str(job.number))
    temporary = f"{folder}.tmp-{os.getpid()}"
    os.mkdir(temporary)
    # Nothing is synced: what a lost machine leaves damaged does not have its checksum.
    writers = {column.name: ColumnWriter(temporary, column, shard_bytes, sync=False) for column in columns}
    try:
        result = work(job.unit, job.number, writers)
        content = {
            "counts": {name: int(number) for name, number in result.get("counts", {}).items()},
            "messages": list(result.get("messages", [])),
            "columns": {name: writer.close() for name, writer in writers.items()},
        }
        with open(os.path.join(temporary, _RESULT), "wb") as handle:
            handle.write(sealed(content))
        os.rename(temporary, folder)
    except BaseException:
        for writer in writers.values():
            writer.remove()
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return content


def _whole(unfinished: str, number: int) -> dict[str, Any] | None:
    """The result of a unit if its folder is there and holds what the result says."""
    folder = os.path.join(unfinished, str(number))
    result = read_json(os.path.join(folder, _RESULT))
    try:
        check_sums(folder, result["columns"])
    except (KeyError, InputError):
        return None
    return result


def _append_folder(writers: Writers, plan: BuildPlan, folder: str, described: Mapping[str, Any]) -> None:
    """Appends the columns of a unit to those of the build, block by block."""
    before = _rows(plan, writers)
    for column in plan.columns:
        writer = writers[column.name]
        for shard in described[column.name]["shards"]:
            with open(os.path.join(folder, shard["file"]), "rb") as handle:
                while len(values := np.fromfile(handle, dtype=column.dtype, count=_BLOCK)):
                    if column.ends_of is not None:
                        values += before[column.ends_of]
                    if column.drop_repeated:
                        values = values[np.diff(values, prepend=writer.last) != 0]
                    writer.append(values)


def _rows(plan: BuildPlan, writers: Writers) -> dict[str, int]:
    """Elements of each column; of a column of offsets without the 0 that it begins with."""
    return {each.name: writers[each.name].length - (each.ends_of is not None) for each in plan.columns}


def _disk_full(partial: str, units: Sequence[Any], error: OSError) -> Interrupted:
    total = sum(unit.size for unit in units)
    done = written = 0
    for name in os.listdir(os.path.join(partial, UNFINISHED)):
        if name.isdecimal():
            done += units[int(name)].size
            folder = os.path.join(partial, UNFINISHED, name)
            written += sum(entry.stat().st_size for entry in os.scandir(folder))
    # About a byte of store for a byte of text; once for the units that are missing, and all once more.
    wanted = (written / done if done else 1) * (total - done + total)
    free = shutil.disk_usage(os.path.dirname(partial)).free
    return Interrupted(
        f"{partial}: {error.strerror} ({free / 1e6:.0f} MB free, about {max(wanted / 1e6, 1):.0f} MB more "
        "needed); free some space and give the same command again: it goes on where it stopped"
    )
