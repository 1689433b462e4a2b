"""JSON files beside the columns of a store: its manifest, results of its units, figures about it.

Each ends with the checksum of what is before it.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import contextmanager
from typing import Any, Iterator, Mapping

from base.errors import InputError
from base.files import replacing
from base.json_files import read_json_object

MANIFEST = "manifest.json"
EXPORT_FORMAT = "instance-files-1"  # of the manifest that data.export writes beside the files
_CHECKSUM = "sha256"
_OF_MANIFESTS = {
    *("format", "vocabulary_sha256", "tokenizer", "text", "sources", "vocabulary", "vocab_size"),
    *("identity", "counts", "messages", "columns", "files"),
}


def read_json(path: str) -> dict[str, Any]:
    """The JSON object in a file, without its checksum; empty for a file that is missing, damaged or something
    else. Earlier versions wrote no checksum: a manifest without one is taken if its names are known."""
    try:
        content = read_json_object(path)
    except InputError:
        return {}
    checksum = content.pop(_CHECKSUM, None)
    if checksum is None:
        return content if set(content) <= _OF_MANIFESTS else {}
    return content if checksum == checksum_of(content) else {}


def checksum_of(content: Mapping[str, Any]) -> str:
    """The checksum that a file of this content ends with."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def check_figures(manifest: Mapping[str, Any]) -> None:
    """Raises KeyError, TypeError or ValueError where a store's manifest has no counts, messages and sources
    of the right types."""
    counts, messages, sources = (manifest[name] for name in ("counts", "messages", "sources"))
    good = (
        isinstance(counts, dict)
        and isinstance(messages, list)
        and isinstance(sources, list)
        and all(type(each) is int and each >= 0 for each in counts.values())
        and all(isinstance(each, str) for each in messages)
        and all(isinstance(each["name"], str) and isinstance(each["size"], int) for each in sources)
    )
    if not good:
        raise ValueError("counts, messages or sources of other types")


@contextmanager
def naming_damage(store: str, remedy: str) -> Iterator[None]:
    """Whatever is wrong with a manifest, or with the files that it describes, is an InputError that names the
    store and says how to mend it."""
    try:
        yield
    except (InputError, KeyError, TypeError, ValueError) as error:
        fault = str(error) if isinstance(error, InputError) else "its manifest is incomplete"
        raise InputError(f"{store} is damaged: {fault}; {remedy}") from error


def write_json(path: str, content: Mapping[str, Any]) -> None:
    """Write a JSON object; the file appears whole."""
    with replacing(path) as handle:
        handle.write(sealed(content))


def sealed(content: Mapping[str, Any]) -> bytes:
    """A file's content: a JSON object that ends with its checksum."""
    whole = {**content, _CHECKSUM: checksum_of(as_json(content))}
    return (json.dumps(whole, indent=1) + "\n").encode("utf-8")


def as_json(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content as it will be read back, so that the two can be compared: tuples become lists."""
    read: dict[str, Any] = json.loads(json.dumps(content))
    return read
