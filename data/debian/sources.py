"""The packages that a corpus is made of."""

from __future__ import annotations

from typing import Callable, Iterator, NamedTuple

from data.debian.books import (
    anarchism_documents,
    austen_documents,
    bible_documents,
    endless_sky_documents,
    python_documents,
)
from data.debian.dictionaries import gcide_documents, wordnet_documents


class Source(NamedTuple):
    """A Debian package with English text.

    package: its name, as `data.debian.packages.fetch_package` takes it. documents: from the folder where it
    is unpacked, documents as lists of paragraphs of running text. licence: of the text, as its copyright file
    says; that file goes beside the corpus.
    """

    package: str
    documents: Callable[[str], Iterator[list[str]]]
    licence: str
    about: str


SOURCES = (
    Source("dict-gcide", gcide_documents, "GPL-2+", "definitions and quotations of a dictionary"),
    Source("wordnet-base", wordnet_documents, "WordNet 3.0 (free)", "examples of the use of words"),
    Source("bible-kjv-text", bible_documents, "public domain", "the Bible of 1611"),
    Source("r-cran-janeaustenr", austen_documents, "public domain", "Jane Austen's six novels"),
    Source("python3-doc*", python_documents, "PSF-2", "the documentation of Python"),
    Source("anarchism", anarchism_documents, "GPL-2", "a book of questions and answers on politics"),
    Source("endless-sky-data", endless_sky_documents, "GPL-3+", "conversations of a game"),
)
