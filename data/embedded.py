"""Build the default corpus from the English that every CPython carries: its help pages and docstrings.

    python -m data.embedded --output runs/embedded [--vocab_size 4096]

writes corpus/train-*.txt, corpus/eval.txt (held-out documents), vocab.txt and corpus.json, which has the
settings and the sizes of the others: what is not whole is built again. data.build_corpus writes the same.
"""

from __future__ import annotations

import ast
import glob
import hashlib
import json
import os
import sys
import sysconfig
import warnings
from collections import deque
from typing import Any, Iterator, List, Mapping, Sequence

import numpy as np

from base.command_line import OptionParser, code_of, path_name, whole
from base.errors import InputError
from base.files import replacing
from base.json_files import read_json_object
from base.progress import SILENT, Progress
from data.store.tokens import entropy
from data.text.corpus import expand_inputs
from data.text.prose import prose_sentences
from data.tokenizing.tokenizer import WordPieceTokenizer
from data.tokenizing.vocab import MAX_VOCAB_SIZE, load_vocab
from data.train_vocab import TrainingText, check_size, train_wordpiece

VERSION = 1  # raise when the same Python would give other files
EVAL_SHARE = 0.03  # of the text, held out as whole documents
MIN_SENTENCES = 4  # shorter documents give no sentence pair worth having
MIN_BYTES = 500_000
DEFAULT_VOCAB_SIZE = 4096
# Fields of statements that are lists of statements, in the order of ast.walk (of expressions none is).
_BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")
_SKIPPED = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "lib-dynload"}


def python_documents(library: str) -> Iterator[tuple[str, list[str]]]:
    """Name and sentences of each document under the standard library's directory, in a fixed order.

    A help topic is a document, and so are all docstrings of a module. Sources are parsed, never imported; one
    that is missing or does not parse is left out.
    """
    topics = os.path.join(library, "pydoc_data", "topics.py")
    tree = _parse(topics)
    for statement in tree.body if tree is not None else []:
        if isinstance(statement, (ast.Assign, ast.AnnAssign)) and isinstance(statement.value, ast.Dict):
            for name, text in sorted(ast.literal_eval(statement.value).items()):
                yield f"topic {name}", list(dict.fromkeys(prose_sentences(text)))
    for path in _sources(library):
        if path != topics:
            sentences = dict.fromkeys(
                sentence for docstring in _docstrings(path) for sentence in prose_sentences(docstring)
            )
            yield os.path.relpath(path, library), list(sentences)


def build(output: str, vocab_size: int = DEFAULT_VOCAB_SIZE, library: str | None = None) -> dict[str, Any]:
    """Write the corpus and its vocabulary under `output`; returns what corpus.json says.

    Does nothing when `output` already holds the result of the same settings. `library` is the standard
    library's directory, this Python's by default. Raises InputError when there is too little text.
    """
    library = library or sysconfig.get_paths()["stdlib"]
    settings = {"version": VERSION, "python": sys.version, "library": library, "vocab_size": vocab_size}
    done = finished(output, settings)
    if done is not None:
        return done
    check_size(vocab_size)
    documents = [sentences for _, sentences in python_documents(library) if len(sentences) >= MIN_SENTENCES]
    size = sum(len(sentence.encode("utf-8")) + 1 for sentences in documents for sentence in sentences)
    if size < MIN_BYTES:
        raise InputError(
            f"only {size / 1e6:.2f} MB of English in {library}, too little to train on: install the standard "
            "library's sources and help pages (Debian: libpython3-stdlib), or train on your own text"
        )
    kept, aside = held_out(documents, EVAL_SHARE)
    figures = write_corpus(output, kept, aside, vocab_size)
    return save_report(output, {"settings": settings, "bytes": size, **figures})


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = OptionParser(description="Build the default corpus from this Python's own documentation.")
    parser.add_argument(
        "--output", type=path_name, required=True, help="directory for corpus/, vocab.txt and corpus.json"
    )
    parser.add_argument("--vocab_size", type=whole(1, MAX_VOCAB_SIZE), default=DEFAULT_VOCAB_SIZE)
    try:
        options = parser.parse_args(arguments)
        result = build(options.output, options.vocab_size)
    except (InputError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(
        f"{options.output}: {result['documents']} documents, {result['sentences']} sentences, "
        f"{result['tokens']} tokens to train on; {result['eval_documents']} documents held out; "
        f"vocabulary {result['vocab_size']}; unigram entropy {result['unigram_entropy']:.3f} nats"
    )
    return 0


def _sources(library: str) -> Iterator[str]:
    for directory, subdirectories, names in os.walk(library):
        subdirectories[:] = sorted(
            name for name in subdirectories if name not in _SKIPPED and not name.startswith("config-")
        )
        for name in sorted(names):
            if name.endswith(".py"):
                yield os.path.join(directory, name)


def _docstrings(path: str) -> Iterator[str]:
    tree = _parse(path)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    todo: deque[ast.AST] = deque([tree] if tree is not None else [])
    while todo:  # ast.walk's order, without what holds no statement: most of a tree is expressions
        node = todo.popleft()
        for name in _BLOCKS:
            todo.extend(getattr(node, name, ()))
        if isinstance(node, documented):
            docstring = ast.get_docstring(node)
            if docstring:
                yield docstring


def _parse(path: str) -> ast.Module | None:
    try:
        with open(path, "rb") as handle, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the library's own escapes
            return ast.parse(handle.read())
    except (OSError, SyntaxError, ValueError):
        return None


TRAIN_FILES = 8
_REPORT = "corpus.json"
_FILES = (*(f"corpus/train-{index}.txt" for index in range(TRAIN_FILES)), "corpus/eval.txt", "vocab.txt")
Document = List[str]  # noqa: UP006 (Python 3.9 evaluates it); its sentences


def held_out(
    documents: list[Document], share: float, largest: float = 1 / 8
) -> tuple[list[Document], list[Document]]:
    """Training and held-out documents, each in their order.

    Documents are taken in the order of a hash of their text until they make up the share; one that is the
    part `largest` of it by itself, or more, is passed over, so that several subjects are held out.
    """
    sizes = [sum(len(sentence) for sentence in document) for document in documents]
    wanted = share * sum(sizes)
    hashes = [hashlib.sha256("\n".join(document).encode("utf-8")).digest() for document in documents]
    chosen = set()
    for index in sorted(range(len(documents)), key=hashes.__getitem__):
        if wanted > 0 and sizes[index] < largest * share * sum(sizes):
            chosen.add(index)
            wanted -= sizes[index]
    kept = [document for index, document in enumerate(documents) if index not in chosen]
    return kept, [document for index, document in enumerate(documents) if index in chosen]


def write_corpus(
    output: str,
    kept: list[Document],
    aside: list[Document],
    vocab_size: int,
    progress: Progress = SILENT,
) -> dict[str, Any]:
    """Write training files, held-out file and a vocabulary of the training text; returns their figures."""
    corpus = os.path.join(output, "corpus")
    os.makedirs(corpus, exist_ok=True)
    for stale in glob.glob(os.path.join(glob.escape(corpus), "train-*.txt")):
        os.unlink(stale)
    for index in range(TRAIN_FILES):
        _write_documents(os.path.join(corpus, f"train-{index}.txt"), kept[index::TRAIN_FILES])
    _write_documents(os.path.join(corpus, "eval.txt"), aside)
    paths = expand_inputs(os.path.join(corpus, "train-*.txt"), "--output")
    train_wordpiece(TrainingText(paths, progress=progress), os.path.join(output, "vocab.txt"), vocab_size)
    vocab = load_vocab(os.path.join(output, "vocab.txt"))
    ids, ends = WordPieceTokenizer(vocab).encode([sentence for document in kept for sentence in document])
    return {
        "documents": len(kept),
        "sentences": int(
            np.count_nonzero(np.diff(ends, prepend=0))
        ),  # a store leaves out those without tokens
        "tokens": len(ids),
        "vocab_size": len(vocab),
        "unigram_entropy": entropy(np.bincount(ids)),
        "eval_documents": len(aside),
        "eval_sentences": sum(len(document) for document in aside),
    }


def save_report(output: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """Write corpus.json, with the files' sizes; returns its content. `result` has the "settings"."""
    content = {**result, "files": {name: os.path.getsize(os.path.join(output, name)) for name in _FILES}}
    with replacing(os.path.join(output, _REPORT)) as handle:
        handle.write(json.dumps(content, indent=1).encode("utf-8"))
    return content


def finished(output: str, settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """Content of corpus.json if it is of the same settings and the files are still there, else None."""
    try:
        result: dict[str, Any] = read_json_object(os.path.join(output, _REPORT))
        if result["settings"] != settings:
            return None
        sizes = {name: os.path.getsize(os.path.join(output, name)) for name in _FILES}
        return result if result["files"] == sizes else None
    except (InputError, OSError, KeyError, TypeError):
        return None


def _write_documents(path: str, documents: list[Document]) -> None:
    with replacing(path) as handle:
        handle.write("\n".join("\n".join(document) + "\n" for document in documents).encode("utf-8"))


if __name__ == "__main__":
    sys.exit(code_of(main))
