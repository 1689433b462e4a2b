"""Looking into token stores and the directories that cache them."""

from __future__ import annotations

import os


def stored_documents(store):
    """The ids of each sentence of each document."""
    return [
        [
            store.ids[store.sentences[index] : store.sentences[index + 1]].tolist()
            for index in range(store.documents[document], store.documents[document + 1])
        ]
        for document in range(store.num_documents)
    ]


def stores_in(cache):
    """The directories of a cache; hashes.json beside them remembers checksums."""
    return sorted(name for name in os.listdir(cache) if name != "hashes.json")
