"""Checksums of source files, and checks of stores, that are remembered."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any, Callable, Mapping, NamedTuple, Sequence

from base.errors import InputError
from base.files import sha256_of_all
from base.progress import SILENT, Progress
from data.store.columns import MappedFiles, check_sums
from data.store.manifest import MANIFEST, read_json, write_json

_HASHES = "hashes.json"
_VERIFIED = "verified.json"
_HASHES_KEPT = 100_000
# A file that was changed so recently may be changed again without its time showing it.
_SETTLED_NS = 2_000_000_000


class SourceFile(NamedTuple):
    """A file that a store is made from, as it was before it was read. It may be a unit of a build."""

    name: str  # its path
    facts: list[int]
    sha256: str

    @property
    def size(self) -> int:
        """In bytes."""
        return self.facts[0]

    @property
    def described(self) -> dict[str, Any]:
        """Name, size and SHA-256, for a manifest: nothing that depends on the machine."""
        return {"name": os.path.basename(self.name), "size": self.size, "sha256": self.sha256}


def describe_sources(
    paths: Sequence[str], cache_dir: str | None = None, progress: Progress = SILENT
) -> list[SourceFile]:
    """The files with their sizes and checksums.

    With `cache_dir`, checksums are remembered there (hashes.json) by path, size, time and inode, so that the
    next start need not read a corpus again. Raises InputError for a file that cannot be read.
    """
    memo_path = os.path.join(cache_dir, _HASHES) if cache_dir is not None else None
    memo = read_json(memo_path) if memo_path is not None else {}
    try:
        facts = [_facts(path) for path in paths]
        keys = [os.path.realpath(path) for path in paths]
        known: list[str | None] = []
        for key, fact in zip(keys, facts):
            entry: Any = memo.get(key)
            fits = isinstance(entry, list) and len(entry) == 4 and entry[:3] == fact
            known.append(entry[3] if fits and isinstance(entry[3], str) else None)
        missing = [index for index, checksum in enumerate(known) if checksum is None]
        if missing:
            total = sum(facts[index][0] for index in missing)
            progress.begin("computing checksums", total)
            try:
                done = 0
                for index, checksum in zip(missing, sha256_of_all([paths[index] for index in missing])):
                    known[index] = checksum
                    done += facts[index][0]
                    progress.update(done, {})
            finally:
                progress.end()
        fresh = {
            keys[index]: [*facts[index], known[index]]
            for index in missing
            if _facts(paths[index]) == facts[index] and time.time_ns() - facts[index][1] > _SETTLED_NS
        }
    except OSError as error:
        raise InputError(f"cannot read {error.filename}: {error.strerror}") from error
    if memo_path is not None and fresh:
        # Losing some to another process that writes costs a reading, no more.
        entries = list({**read_json(memo_path), **fresh}.items())[-_HASHES_KEPT:]
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(memo_path), exist_ok=True)
            write_json(memo_path, dict(entries))
    return [SourceFile(path, fact, str(checksum)) for path, fact, checksum in zip(paths, facts, known)]


def check_unchanged(sources: Sequence[SourceFile], done: str) -> None:
    """Raises InputError for the first file that is not as it was before `describe_sources` read it and what
    was `done`."""
    for source in sources:
        try:
            changed = _facts(source.name) != source.facts
        except OSError as error:
            raise InputError(f"cannot read {error.filename}: {error.strerror}") from error
        if changed:
            raise InputError(f"{source.name} changed while it was {done}; leave it alone and start again")


def verify_once(
    directory: str, described: Mapping[str, Any], files: MappedFiles, check: Callable[[], None]
) -> None:
    """Checks a store's columns, by their checksums and then by `check`, unless that was done for the manifest
    and the files as they are now: by size, time of change and inode, so that later damage to the disk itself
    is not seen.

    It is remembered beside the store (verified.json), where that can be written to. Raises InputError.
    """
    note, paths = os.path.join(directory, _VERIFIED), [os.path.join(directory, MANIFEST), *files.paths]

    def facts() -> dict[str, list[int]]:
        return {os.path.basename(path): _facts(path) for path in paths}

    with contextlib.suppress(OSError):
        if read_json(note).get("files") == facts():
            return
    check_sums(directory, described)
    check()
    files.check()
    with contextlib.suppress(OSError):
        write_json(note, {"files": facts()})


def _facts(path: str) -> list[int]:
    """Size, time of change (ns) and inode of a file."""
    facts = os.stat(path)
    return [facts.st_size, facts.st_mtime_ns, facts.st_ino]
