"""Building token stores, and looking into them and the directories that cache them."""

from __future__ import annotations

import os
from pathlib import Path

from base.progress import SILENT
from data.store.build import build_columns
from data.store.tokens import token_store_plan


def build_store(paths, settings, directory, progress=SILENT):
    """A store at `directory`, not yet opened."""
    build_columns(directory, token_store_plan(paths, settings, progress=progress), 1, progress)


def stored_documents(store):
    """The ids of each sentence of each document."""
    return [
        [
            store.ids[store.sentences[index] : store.sentences[index + 1]].tolist()
            for index in range(store.documents[document], store.documents[document + 1])
        ]
        for document in range(store.num_documents)
    ]


def content(directory):
    """Names of all that is below a directory, and the bytes of files, without notes of computed checksums."""
    paths = [path for path in sorted(Path(directory).rglob("*")) if path.name != "verified.json"]
    return {str(path.relative_to(directory)): path.is_file() and path.read_bytes() for path in paths}


def stores_in(cache):
    """The directories of a cache; hashes.json beside them remembers checksums."""
    return sorted(name for name in os.listdir(cache) if name != "hashes.json")
