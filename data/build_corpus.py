"""Build a corpus of some million words from English text that a Debian machine has by package name.

    python -m data.build_corpus --output runs/corpus
    python -m data.build_corpus --output runs/own --text 'own/*.txt'

writes corpus/train-*.txt, corpus/eval.txt (held-out documents), vocab.txt, corpus.json and licences/. The
second makes the same of text of your own.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import sys
import sysconfig
import tempfile
import zlib
from typing import Any, Iterable, Iterator, Sequence

from base.command_line import OptionParser, code_of, path_name, path_names, whole
from base.errors import InputError
from base.progress import Printed
from data.debian import SOURCES, Package, Source, fetch_package, has_package
from data.embedded import (
    TRAIN_FILES,
    Document,
    finished,
    held_out,
    python_documents,
    save_report,
    write_corpus,
)
from data.text.corpus import documents as text_documents
from data.text.corpus import expand_inputs
from data.text.prose import plain_punctuation, whole_sentence
from data.text.sentences import split_sentences
from data.tokenizing.vocab import MAX_VOCAB_SIZE
from data.train_vocab import check_size

VERSION = 3  # raise when the same packages would give other files
EVAL_SHARE = 0.01  # of each source, held out as whole documents
FEWEST_SENTENCES = 8  # of a document: there must be something for the next sentence to be learned from
PART_SENTENCES = 40  # documents of more than two such parts are cut into them
DEFAULT_VOCAB_SIZE = 8192
PACKAGES = tuple(source.package for source in SOURCES)


class Collected:
    """Documents of all sources, without sentences that occurred before."""

    def __init__(self) -> None:
        self.kept: list[Document] = []
        self.aside: list[Document] = []
        self.sources: list[dict[str, Any]] = []
        self._seen: set[str] = set()

    def add(
        self, name: str, version: str, licence: str, about: str, documents: Iterable[Iterable[str | None]]
    ) -> None:
        """Add a source and print a line about it. Documents have None for a sentence that is no whole one."""
        not_whole = duplicates = 0
        unique: list[Document] = []
        for document in documents:
            unique.append([])
            for sentence in document:
                if sentence is None:
                    not_whole += 1
                elif sentence in self._seen:
                    duplicates += 1
                else:
                    self._seen.add(sentence)
                    unique[-1].append(sentence)
        kept, aside = held_out(list(regrouped(unique)), EVAL_SHARE, math.inf)
        sentences = [sentence for document in (*kept, *aside) for sentence in document]
        words = sum(len(sentence.split()) for sentence in sentences)
        self.kept += kept
        self.aside += aside
        source = {"name": name, "version": version, "licence": licence, "about": about, "words": words}
        counts = {"sentences": len(sentences), "documents": len(kept), "eval_documents": len(aside)}
        # Sentences that `whole_sentence` rejects, and those that stood before in this corpus
        self.sources.append({**source, **counts, "not_whole": not_whole, "duplicates": duplicates})
        print(
            f"{name} {version} ({licence}): {words:,} words, {len(sentences):,} sentences; left out "
            f"{not_whole:,} that are not whole, {duplicates:,} duplicates",
            flush=True,
        )


def regrouped(documents: Iterable[Document]) -> Iterator[Document]:
    """Documents of FEWEST_SENTENCES or more: short ones are joined with the next, long ones cut into parts.

    A last one that remains too short is dropped.
    """
    gathered: Document = []
    for document in documents:
        gathered = gathered + document
        while len(gathered) > 2 * PART_SENTENCES:
            yield gathered[:PART_SENTENCES]
            gathered = gathered[PART_SENTENCES:]
        if len(gathered) >= FEWEST_SENTENCES:
            yield gathered
            gathered = []


def build(
    output: str,
    packages: Sequence[str] = PACKAGES,
    text: str | None = None,
    vocab_size: int = DEFAULT_VOCAB_SIZE,
) -> dict[str, Any]:
    """Write the corpus and its vocabulary under `output`; returns what corpus.json says.

    Its text is that of the packages and of this Python, or of the files that `text` names. Does nothing when
    `output` already holds the result of the same settings.

    Raises:
        InputError: a package that cannot be had, bad text, or too little of it.
    """
    check_size(vocab_size)
    settings: dict[str, Any] = {"version": VERSION, "vocab_size": vocab_size}
    if text is None:
        settings.update(packages=list(packages), python=sys.version)
    else:
        files = expand_inputs(text, "--text")
        corpus = os.path.realpath(os.path.join(output, "corpus"))
        replaced = [path for path in files if os.path.dirname(os.path.realpath(path)) == corpus]
        if replaced:
            raise InputError(f"--text: {replaced[0]} would be replaced; name another --output")
        settings.update(text=[[path, os.path.getsize(path), os.stat(path).st_mtime_ns] for path in files])
    done = finished(output, settings)
    if done is not None:
        return done
    os.makedirs(output, exist_ok=True)
    collected = Collected()
    if text is None:
        _add_packages(collected, packages, output)
    else:
        collected.add("text", "", "your own", "text of your own", text_documents(files))
    if len(collected.kept) < TRAIN_FILES or not collected.aside:
        flag = "--packages" if text is None else "--text"
        raise InputError(f"{flag}: too little text to hold a part of it out; give more")
    figures = write_corpus(output, collected.kept, collected.aside, vocab_size, Printed())
    return save_report(output, {"settings": settings, **figures, "sources": collected.sources})


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    try:
        options = _parser().parse_args(arguments)
        packages = tuple(name.strip() for name in options.packages.split(","))
        for name in packages:
            if name not in PACKAGES:
                raise InputError(f"--packages: {name!r} is none of {', '.join(PACKAGES)}")
        result = build(options.output, packages, options.text, options.vocab_size)
    except (InputError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    words, sentences = (sum(each[name] for each in result["sources"]) for name in ("words", "sentences"))
    print(
        f"{options.output}: {words:,} words in {sentences:,} sentences; to train on {result['tokens']:,} "
        f"tokens of {result['documents']:,} documents, vocabulary {result['vocab_size']:,}, unigram entropy "
        f"{result['unigram_entropy']:.3f} nats; {result['eval_documents']:,} documents held out"
    )
    return 0


def _add_packages(collected: Collected, packages: Sequence[str], output: str) -> None:
    for source in (each for each in SOURCES if each.package in packages):
        if not source.everywhere and not has_package(source.package):
            print(f"{source.package}: left out, for this release has no such package", flush=True)
            continue
        with tempfile.TemporaryDirectory(prefix="corpus-") as scratch:
            package = fetch_package(source.package, os.path.join(scratch, "package"))
            documents = _whole_sentences(source, package)
            collected.add(package.name, package.version, source.licence, source.about, documents)
            stated = os.path.join(package.folder, "usr/share/doc", package.name, "copyright")
            os.makedirs(os.path.join(output, "licences"), exist_ok=True)
            shutil.copyfile(stated, os.path.join(output, "licences", f"{package.name}.txt"))
    collected.add(
        *("cpython", sys.version.split()[0], "PSF-2", "this Python's help pages and docstrings"),
        (
            map(whole_sentence, map(plain_punctuation, sentences))
            for _, sentences in python_documents(sysconfig.get_paths()["stdlib"])
        ),
    )


def _whole_sentences(source: Source, package: Package) -> Iterator[Iterator[str | None]]:
    empty = True
    try:
        for paragraphs in source.documents(package.folder):
            empty = False
            plain = map(plain_punctuation, paragraphs)
            yield (whole_sentence(sentence) for paragraph in plain for sentence in split_sentences(paragraph))
    except (FileNotFoundError, zlib.error):
        empty = True
    if empty:
        raise InputError(
            f"Debian package {package.name} {package.version} has no text in its usual place and form; leave "
            f"{source.package} out of --packages"
        )


def _parser() -> argparse.ArgumentParser:
    parser = OptionParser(
        description="Build a corpus from the English of Debian packages, or from your own text."
    )
    add = parser.add_argument
    add("--output", type=path_name, required=True, help="folder for corpus/, vocab.txt and corpus.json")
    add("--packages", default=",".join(PACKAGES), help="those to take, with commas (default: %(default)s)")
    add("--text", type=path_names, metavar="FILES", help="your own text instead, a sentence a line")
    add(
        "--vocab_size",
        type=whole(1, MAX_VOCAB_SIZE),
        default=DEFAULT_VOCAB_SIZE,
        help="(default: %(default)s)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(code_of(main))
