"""Fingerprints of data: whether two hosts have the same, without reading all of it.

A store has the checksums of its columns in its manifest: its fingerprint is exact. Of other files sizes and
samples count; those that training reads are compared exactly by the store that they become in the cache.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any, Mapping

from base.errors import InputError
from data.opening import INSTANCE_STORE, TOKEN_STORE, DataFiles
from data.store.manifest import MANIFEST, read_json

DIGITS = 16
SAMPLE = 4096  # bytes, of each file's beginning, middle and end


def fingerprint(data: DataFiles) -> str:
    """A short text: the kind, and what tells this data from other data of its kind.

    Raises:
        InputError: a file that cannot be read.
    """
    if data.kind in (TOKEN_STORE, INSTANCE_STORE):
        manifest = read_json(os.path.join(data.paths[0], MANIFEST))
        return f"{data.kind} {fingerprint_of_store(manifest)}"
    digest, total = hashlib.sha256(), 0
    for path in data.paths:
        size, samples = _sampled(path)
        total += size
        digest.update(f"{size} ".encode("ascii") + samples)
    return f"{data.kind}, {len(data.paths)} files of {total} bytes, {digest.hexdigest()[:DIGITS]}"


def fingerprint_of_store(manifest: Mapping[str, Any]) -> str:
    """The digest of all of a store's columns, from the checksums in its manifest."""
    columns = json.dumps(manifest.get("columns"), sort_keys=True)
    return hashlib.sha256(columns.encode()).hexdigest()[:DIGITS]


def _sampled(path: str) -> tuple[int, bytes]:
    """The size of a file, and its beginning, middle and end."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            samples = b""
            for place in (0, size // 2, max(0, size - SAMPLE)):
                file.seek(place)
                samples += file.read(SAMPLE)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    return size, samples
