"""JSON files beside the columns of a store: its manifest, the journal of its building, figures about it."""

from __future__ import annotations

import json
from typing import Any, Mapping

from base.files import replacing

MANIFEST = "manifest.json"
MESSAGES_KEPT = 20  # of records that were left out, in a manifest


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
