"""Build the default corpus from the English that every CPython carries: its help pages and docstrings.

    python -m data.embedded --output runs/embedded [--vocab_size 4096]

writes corpus/train-*.txt, corpus/eval.txt (held-out documents), vocab.txt and corpus.json.
"""

from __future__ import annotations

import ast
import os
import sys
import sysconfig
import warnings
from collections import deque
from typing import Any, Iterator, Sequence

from base.command_line import OptionParser, path_name, whole
from base.errors import InputError
from data.corpus_files import finished, held_out, save_report, write_corpus
from data.text.prose import prose_sentences
from data.tokenizing.vocab import MAX_VOCAB_SIZE
from data.train_vocab import MIN_VOCAB_SIZE

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
    for name, text in _help_topics(topics):
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
    if vocab_size < MIN_VOCAB_SIZE:
        raise InputError(f"--vocab_size {vocab_size}: must be at least {MIN_VOCAB_SIZE}")
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


def _help_topics(path: str) -> Iterator[tuple[str, str]]:
    tree = _parse(path)
    for statement in tree.body if tree is not None else []:
        if isinstance(statement, (ast.Assign, ast.AnnAssign)) and isinstance(statement.value, ast.Dict):
            yield from sorted(ast.literal_eval(statement.value).items())


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


if __name__ == "__main__":
    sys.exit(main())
