"""Build a directory of columns from many units of input: parallel, in order, resumable.

Worker processes turn units (byte ranges of text, files of instances) into parts; this process appends the
parts to the columns in the order of the units, so the result is the same for any number of workers. All of it
happens in `<directory>.partial`, with a journal from which a build that was killed, or whose disk was full,
goes on. `directory` itself appears by a rename when it is complete.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
import uuid
from dataclasses import dataclass, replace
from typing import Any, Callable, Generator, Mapping, Optional, Protocol, Sequence

from base.errors import InputError
from base.files import sync_directory
from base.locks import locked
from base.progress import Progress, Silent
from base.workers import WorkerCrash, in_order
from data.store.columns import SHARD_BYTES
from data.store.manifest import MANIFEST, as_json, read_json, write_json
from data.store.parts import (
    BuildState,
    Column,
    Part,
    PartFiles,
    PartJob,
    Table,
    has_journal,
    remove_parts,
    units_digest,
    units_done,
)

SECONDS_PER_JOURNAL = 5.0
IN_PROCESS_BYTES = 1 << 20  # less input than this is not worth half a second for starting a worker
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Unit(Protocol):
    """A piece of input: `name` is for messages, `size` (bytes) for progress. It is pickled."""

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int: ...


Work = Callable[[Any, Part], Mapping[str, Any]]
Check = Callable[[Mapping[str, int], Mapping[str, int]], Optional[Mapping[str, int]]]


@dataclass(frozen=True)
class BuildPlan:
    """Columns to build: `work(unit, part)` is called for every unit, and appends to `part`.

    `work` is pickled. It returns "counts" (numbers, which are added up) and may return "messages" (lines
    about records that it skipped; the first few are kept). Its result and parts depend on the unit alone.
    `identity` (JSON) decides what is built: a partial build of the same identity is continued, one of another
    is thrown away. `manifest` (JSON) is written into manifest.json beside identity, counts, messages and
    columns; nothing in it may depend on the machine or the time. `check(counts, lengths of the columns)`
    may reject the result by raising InputError, or return more counts.
    """

    columns: Sequence[Column]
    units: Sequence[Unit]
    work: Work
    identity: Mapping[str, Any]
    manifest: Mapping[str, Any]
    check: Check | None = None
    what: str = "reading"  # for the progress
    isolate: bool = False  # work in other processes, however small the input
    memory_limit: int | None = None  # bytes of each worker's address space
    shard_bytes: int = SHARD_BYTES
    journal_seconds: float = SECONDS_PER_JOURNAL  # work of so long is lost by a kill


def build_columns(
    directory: str, plan: BuildPlan, num_workers: int, progress: Progress | None = None
) -> None:
    """Builds the columns of `plan` in `directory`, with `num_workers` processes (in this one if the input is
    small).

    Other processes that build the same directory meanwhile wait here, then find it. Returns at once if
    `directory` is there with this identity.
    Raises InputError for bad input (nothing is left), for a crashed worker or a full disk (the partial build
    is left, and continued by the next call), or if `directory` holds something else.
    """
    directory = os.path.abspath(directory)
    plan = replace(plan, identity=as_json(plan.identity))
    reporter = progress if progress is not None else Silent()
    try:
        if is_built(directory, plan.identity):
            return
        os.makedirs(os.path.dirname(directory), exist_ok=True)
        with locked(
            f"{directory}.lock", lambda: reporter.note(f"waiting for another process to build {directory}")
        ) as alone:
            if is_built(directory, plan.identity):
                return
            # Without locks on this file system each builds privately, and the first rename wins.
            partial = f"{directory}.partial" if alone else f"{directory}.partial-{uuid.uuid4().hex[:12]}"
            if not _is_complete(partial, plan.identity):
                builder = _Builder(partial, plan, reporter, alone)
                in_process = not plan.isolate and sum(unit.size for unit in plan.units) < IN_PROCESS_BYTES
                builder.run(0 if in_process else num_workers)
                builder.finish()
            _rename(partial, directory, plan.identity)
            sync_directory(os.path.dirname(directory))
    except OSError as error:
        if error.errno in _FULL:
            raise _disk_full(f"{directory}.partial", plan.units, error) from error
        where = f" ({error.filename})" if error.filename else ""
        raise InputError(f"cannot build {directory}: {error.strerror or error}{where}") from error


def is_built(directory: str, identity: Mapping[str, Any]) -> bool:
    """True if `directory` was built with this identity. Raises InputError if it holds anything else."""
    if not os.path.lexists(directory):
        return False
    if not os.path.isdir(directory):
        raise InputError(f"{directory} is a file; give another name for the output, or remove it")
    if not os.listdir(directory):
        return False
    manifest = read_json(os.path.join(directory, MANIFEST))
    if manifest.get("identity") == as_json(identity):
        return True
    raise InputError(
        f"{directory} is there already, with other content or made with other settings; "
        "give another name for the output, or remove it"
    )


class _Builder:
    """One build in its partial directory, from the journal if there is one."""

    def __init__(self, partial: str, plan: BuildPlan, progress: Progress, keep: bool) -> None:
        self._partial, self._plan, self._progress, self._keep = partial, plan, progress, keep
        columns, shard_bytes = plan.columns, plan.shard_bytes
        key = {"identity": plan.identity, "units": units_digest(plan.units), "shard_bytes": shard_bytes}
        self._state = BuildState.resume(partial, key, columns)
        remove_parts(partial)
        try:
            if self._state.next > len(plan.units):
                raise ValueError(f"{partial} has more units than the input")
            self._table = Table(partial, columns, self._state, shard_bytes)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            # The files are not those that the journal speaks of, or it speaks nonsense.
            progress.note(f"{error}; starting again")
            self._state = BuildState.fresh(partial, key, columns)
            self._table = Table(partial, columns, self._state, shard_bytes)

    def run(self, num_workers: int) -> None:
        """Build all units that are missing; `num_workers` 0 works in this process."""
        plan, first = self._plan, self._state.next
        total = sum(unit.size for unit in plan.units)
        done = sum(unit.size for unit in plan.units[:first])
        self._progress.begin(plan.what, total)
        try:
            if first:
                self._progress.note(f"going on with the unfinished {self._partial}")
            self._progress.update(done, self._state.counts)
            jobs = [
                PartJob(unit, number, self._partial, tuple(plan.columns))
                for number, unit in enumerate(plan.units[first:], first)
            ]
            saved = time.monotonic()
            made = _results(PartFiles(plan.work), jobs, num_workers, plan.memory_limit)
            with contextlib.closing(made) as results:
                for unit, result in zip(plan.units[first:], results):
                    self._state = self._table.append_part(self._state, result)
                    done += unit.size
                    self._progress.update(done, self._state.counts)
                    if time.monotonic() - saved >= plan.journal_seconds:
                        self._table.save(self._state)
                        saved = time.monotonic()
        except BaseException as error:
            self._stop(error)
            raise
        finally:
            self._progress.end()

    def finish(self) -> None:
        """Closes the columns and writes the manifest."""
        plan = self._plan
        try:
            lengths = {column.name: self._table.length(column.name) for column in plan.columns}
            more = plan.check(self._state.counts, lengths) if plan.check is not None else None
            self._table.save(self._state)
            described = self._table.close()
            write_json(
                os.path.join(self._partial, MANIFEST),
                {
                    **plan.manifest,
                    "identity": plan.identity,
                    "counts": {**self._state.counts, **(more or {})},
                    "messages": self._state.messages,
                    "columns": described,
                },
            )
            remove_parts(self._partial)
            self._state.remove(self._partial)
            sync_directory(self._partial)
        except BaseException as error:
            self._stop(error)
            raise

    def _stop(self, error: BaseException) -> None:
        """Leave a partial build that can go on, or nothing where it would stop at the same place again."""
        remove_parts(self._partial)
        if not self._keep or (isinstance(error, InputError) and not isinstance(error, WorkerCrash)):
            self._table.abandon()
            shutil.rmtree(self._partial, ignore_errors=True)
            return
        with contextlib.suppress(OSError):  # on a full disk the journal as it was is good
            self._table.save(self._state)
        self._table.abandon()


def _results(
    call: PartFiles, jobs: Sequence[PartJob], num_workers: int, memory_limit: int | None
) -> Generator[Any, None, None]:
    if not num_workers:
        return (call(job) for job in jobs)
    return in_order(call, jobs, num_workers, memory_limit)


def _rename(partial: str, directory: str, identity: Mapping[str, Any]) -> None:
    try:
        os.rename(partial, directory)
    except OSError:
        if not is_built(directory, identity):
            raise
        shutil.rmtree(partial, ignore_errors=True)  # another process was first; its result is the same


def _is_complete(partial: str, identity: Mapping[str, Any]) -> bool:
    """True if an earlier build was killed just before its rename."""
    manifest = read_json(os.path.join(partial, MANIFEST))
    return manifest.get("identity") == identity and not has_journal(partial)


def _disk_full(partial: str, units: Sequence[Unit], error: OSError) -> InputError:
    done = sum(unit.size for unit in units[: units_done(partial)])
    total = sum(unit.size for unit in units)
    written = sum(entry.stat().st_size for entry in os.scandir(partial)) if os.path.isdir(partial) else 0
    wanted = written / done * (total - done) if done else total  # about a byte of store for a byte of text
    free = shutil.disk_usage(os.path.dirname(partial)).free
    return InputError(
        f"{partial}: {error.strerror} ({free / 1e6:.0f} MB free, about {max(wanted / 1e6, 1):.0f} MB more "
        "needed); free some space and give the same command again: it goes on where it stopped"
    )
