"""Files with masks that a command names: all but manifests of data.prepare's folders; parts of stores are
errors."""

from __future__ import annotations

import os
from typing import Sequence

from base.errors import InputError
from data.store.instances import instance_columns, is_instance_store
from data.store.manifest import MANIFEST, read_json
from data.store.parts import has_journal
from data.store.tokens import is_store, token_columns
from data.text.corpus import expand_inputs

EXPORT_FORMAT = "instance-files-1"  # of the manifest that data.export writes beside the files
# A store whose manifest cannot be read has two first shards or more, one of them not of the other kind.
_TOKEN_NAMES = {f"{column.name}-00000.bin" for column in token_columns(1)}
_INSTANCE_NAMES = {f"{column.name}-00000.bin" for column in instance_columns(1)}


def expand_instances(patterns: str, flag: str) -> list[str]:
    """As data.text.corpus.expand_inputs, without the manifest that data.prepare writes beside its files.

    Raises InputError as expand_inputs, and for files of a store, whole or damaged.
    """
    paths = [path for path in expand_inputs(patterns, flag) if not _is_manifest(path)]
    check_no_stores(paths, flag)
    return paths


def _is_manifest(path: str) -> bool:
    return os.path.basename(path) == MANIFEST and read_json(path).get("format") == EXPORT_FORMAT


def check_no_stores(paths: Sequence[str], flag: str) -> None:
    """Raises InputError if one of the files is a part of a store, saying what to name or to do instead.

    A store whose manifest.json is missing or damaged, or that is unfinished, is identified by its other
    files. `flag` is what messages call the source of the paths.
    """
    for directory in dict.fromkeys(os.path.dirname(path) or "." for path in paths):
        part = next(path for path in paths if (os.path.dirname(path) or ".") == directory)
        if is_store(directory):
            raise InputError(
                f"{flag}: {part} is a part of a token store; name the folder {directory}, and nothing beside "
                "it"
            )
        if is_instance_store(directory):
            raise InputError(
                f"{flag}: {part} is a part of an instance store, which a cache holds; name the files that it "
                f"was made from (data.inspect {directory} lists them)"
            )
        kind = _kind_by_files(directory)
        if kind:
            raise InputError(f"{flag}: {directory} is {_fault(directory, kind)}")


def _kind_by_files(directory: str) -> str:
    """The kind of store that the files of a directory make up, "" for none."""
    names = set(os.listdir(directory))
    for kind, own, other in (
        ("token store", _TOKEN_NAMES, _INSTANCE_NAMES),
        ("instance store", _INSTANCE_NAMES, _TOKEN_NAMES),
    ):
        if names & (own - other) and len(names & own) > 1:
            return kind
    return ""


def _fault(directory: str, kind: str) -> str:
    again = (
        "prepare the text again with data.prepare"
        if kind == "token store"
        else "name the files that it was made from"
    )
    if has_journal(directory):
        return f"an unfinished {kind}: {again}; a build that is given the same way goes on where it was"
    manifest = os.path.join(directory, MANIFEST)
    if not os.path.exists(manifest):
        fault = f"without its {MANIFEST}"
    elif not read_json(manifest):
        fault = f"whose {MANIFEST} is damaged"
    else:
        fault = f"whose {MANIFEST} is damaged or of another version"
    article = "an" if kind[0] in "aeiou" else "a"
    return (
        f"{article} {kind} {fault}: copy that file anew if there is a copy, or delete the folder and {again}"
    )
