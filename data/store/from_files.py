"""Instance stores made from files of any format: converted in parallel, in bounded memory, cached."""

from __future__ import annotations

import faulthandler
import os
from dataclasses import dataclass
from typing import Any, Mapping, Sequence

from base.errors import InputError
from base.progress import Progress
from data.formats.read import read_instances
from data.store.build import Part, build_columns
from data.store.cache import cached_directory, describe_sources, open_or_build
from data.store.instances import FORMAT, InstanceStore, RowWriter, instance_columns, store_manifest
from data.store.journal import MESSAGES_KEPT

__all__ = ["InstanceFile", "InstanceStore", "build_instances", "cached_instances"]

# Address space of a worker, against what a damaged file may ask for. Good files need 0.2 GiB (measured).
WORKER_BYTES = 2 << 30
SECONDS_PER_BLOCK = 300.0  # for up to 1024 instances: even a slow disk needs a hundredth of it


@dataclass(frozen=True)
class InstanceFile:
    """One source file as a unit of data.store.build."""

    name: str
    path: str
    size: int


@dataclass(frozen=True)
class ConvertFile:
    """Reads and checks one file in a worker process and appends its instances to a part."""

    vocab_size: int
    skip_bad_records: bool

    def __call__(self, unit: InstanceFile, part: Part) -> dict[str, Any]:
        skipped = 0
        messages: list[str] = []

        def on_bad(message: str, number: int) -> None:
            nonlocal skipped
            skipped += number
            if len(messages) < MESSAGES_KEPT:
                messages.append(message)

        rows = RowWriter(part)
        blocks = read_instances(unit.path, self.vocab_size, on_bad if self.skip_bad_records else None)
        with open(os.devnull, "w") as nowhere:
            try:
                while True:
                    # On a damaged file the HDF5 library can loop for ever, where no exception reaches it.
                    faulthandler.dump_traceback_later(SECONDS_PER_BLOCK, exit=True, file=nowhere)
                    block = next(blocks, None)
                    if block is None:
                        break
                    rows.write(block)
            finally:
                faulthandler.cancel_dump_traceback_later()
        counts = rows.finish()
        return {"counts": {**counts, "skipped": skipped}, "messages": messages}


def build_instances(
    paths: Sequence[str],
    vocab_size: int,
    directory: str,
    num_workers: int = 1,
    skip_bad_records: bool = False,
    progress: Progress | None = None,
    sources: Sequence[Mapping[str, Any]] | None = None,
) -> None:
    """Convert files of instances, of any formats, into a store at `directory`.

    Every value is checked once, here. The files are read in worker processes, one file each at a time, in
    bounded memory; a library that crashes on a damaged file takes only its worker along. `sources` is
    `describe_sources(paths)` if it is known. With `skip_bad_records` bad instances are counted and left out.
    Raises InputError naming the file and the instance, or as data.store.build.build_columns.
    """
    if sources is None:
        sources = describe_sources(paths, progress=progress)
    units = [
        InstanceFile(path, os.path.abspath(path), int(source["size"])) for path, source in zip(paths, sources)
    ]

    def check(counts: Mapping[str, int], lengths: Mapping[str, int]) -> None:
        if not counts.get("instances"):
            raise InputError(
                f"{_files(paths)}: no instance is good; {counts.get('skipped', 0)} bad ones were skipped"
            )

    build_columns(
        directory,
        instance_columns(vocab_size),
        units,
        ConvertFile(vocab_size, skip_bad_records),
        _identity(vocab_size, skip_bad_records, sources),
        store_manifest(vocab_size, sources),
        num_workers,
        progress,
        what="converting",
        isolate=True,
        memory_limit=WORKER_BYTES,
        check=check,
    )


def cached_instances(
    paths: Sequence[str],
    vocab_size: int,
    cache_dir: str,
    num_workers: int = 1,
    skip_bad_records: bool = False,
    progress: Progress | None = None,
) -> InstanceStore:
    """The store of these files under `cache_dir`, built if it is not there; a damaged one is built again.

    Its name is a hash of the files' content, so that moved files find it and changed ones do not. Several
    processes may ask at once: one converts, the others wait for it. Raises InputError as `build_instances`.
    """
    cache = os.path.expanduser(cache_dir)
    sources = describe_sources(paths, cache, progress)
    directory = cached_directory(cache, "instances", _identity(vocab_size, skip_bad_records, sources))

    def build() -> None:
        build_instances(paths, vocab_size, directory, num_workers, skip_bad_records, progress, sources)

    return open_or_build(directory, lambda: InstanceStore.open(directory), build, progress)


def _identity(
    vocab_size: int, skip_bad_records: bool, sources: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "vocab_size": vocab_size,
        "skip_bad_records": skip_bad_records,
        "sources": [source["sha256"] for source in sources],
    }


def _files(paths: Sequence[str]) -> str:
    return paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} other files"
