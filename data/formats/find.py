"""Which of the files that a command names hold instances: all but the manifest of data.prepare's folders."""

from __future__ import annotations

import os

from data.store.identify import check_no_stores
from data.store.journal import MANIFEST, read_json
from data.text.corpus import expand_inputs

EXPORT_FORMAT = "instance-files-1"  # of the manifest that data.formats.export writes beside the files


def expand_instances(patterns: str, flag: str) -> list[str]:
    """As data.text.corpus.expand_inputs, without the manifest that data.prepare writes beside its files.

    Raises InputError as expand_inputs, and for files of a store, whole or damaged.
    """
    paths = [path for path in expand_inputs(patterns, flag) if not _is_manifest(path)]
    check_no_stores(paths, flag)
    return paths


def _is_manifest(path: str) -> bool:
    return os.path.basename(path) == MANIFEST and read_json(path).get("format") == EXPORT_FORMAT
