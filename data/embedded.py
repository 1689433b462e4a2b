"""Build the default corpus from the English that every CPython carries: its help pages and docstrings.

    python -m data.embedded --output runs/embedded [--vocab_size 4096]

writes corpus/train-*.txt, corpus/eval.txt (held-out documents), vocab.txt and corpus.json.
"""

from __future__ import annotations

import ast
import glob
import hashlib
import json
import os
import re
import shutil
import sys
import sysconfig
import tempfile
import warnings
from collections import deque
from typing import Any, Iterator, Sequence

from base.command_line import OptionParser, path_name, whole
from base.errors import InputError
from base.files import replacing
from base.json_files import read_json_object
from data.store.entropy import entropy, token_counts
from data.store.tokens import cached_store
from data.text.corpus import expand_inputs
from data.tokenizing.tokenizer import TokenizerSettings
from data.tokenizing.vocab import MAX_VOCAB_SIZE, load_vocab
from data.train_vocab import MIN_VOCAB_SIZE, TrainingText, train_wordpiece

MIN_WORDS = 3
MIN_LETTERS = 0.72  # share of letters and spaces in a sentence; below it is code, a table or a signature
MAX_CHARACTERS = 800

# A sentence ends at . ! or ? (and closing quotes or brackets) before white space and the beginning of
# another.
_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[A-Z0-9]|[\"'(\[`*]+\w)")
_ABBREVIATION = re.compile(r"(?:\b(?:e\.g|i\.e|etc|vs|cf|Mr|Mrs|Dr|St|No|Fig|Eq|resp|approx|incl|[A-Z])\.)$")
_WORD = re.compile(r"[A-Za-z]{2,}|\b[aAI]\b")
_CODE = re.compile(
    r"::=|==|->|\w = |[{};]"
    r"|^(?:if|elif|else|for|while|def|class|import|from|return|try|except|with|print)\b.*[:(=]"
)
_RULE = re.compile(r"^[\s=~^*+|#\-_.]{3,}$")
_FIELD = re.compile(r"^\s*(?::\w[^:]*:|@\w+|\.\. )")
_BULLET = re.compile(r"^(?:[*\-+o\u2022]|\d+[.)])\s+")
_MARKUP = re.compile(r":[a-z:]+:`~?([^`]*)`|``([^`]*)``|\*\*([^*\n]+)\*\*|(?<!\w)\*([^*\n]+)\*(?!\w)")


def prose_sentences(text: str) -> Iterator[str]:
    """The sentences of the running text in `text`, one line each.

    Dropped: doctest blocks, blocks indented more than the paragraph before them that announced code by ending
    in ':', rules, field lists, and sentences that look like code, are short, very long or mostly not letters.
    """
    for paragraph in _paragraphs(text):
        for sentence in _split(_plain(paragraph)):
            if _is_prose(sentence):
                yield sentence


def _paragraphs(text: str) -> Iterator[str]:
    """Paragraphs as single lines: runs of lines between blank lines, and list items, without code blocks."""
    code_indent = -1  # blocks indented more than this are code
    for block in re.split(r"\n\s*\n", text.expandtabs()):
        lines = [line for line in block.split("\n") if line.strip()]
        if not lines:
            continue
        indent = len(lines[0]) - len(lines[0].lstrip())
        if 0 <= code_indent < indent and not _BULLET.match(lines[0].lstrip()):
            continue
        code_indent = -1
        if any(line.lstrip().startswith((">>>", "...", "$ ")) for line in lines[:2]):
            continue
        lines = [line for line in lines if not _RULE.match(line) and not _FIELD.match(line)]
        if lines and lines[-1].rstrip().endswith(":"):
            code_indent = indent
        gathered: list[str] = []
        for line in (line.strip() for line in lines):
            item = _BULLET.sub("", line)
            if item != line and gathered:
                yield " ".join(gathered)
                gathered = []
            gathered.append(item)
        if gathered:
            yield " ".join(gathered)


def _plain(paragraph: str) -> str:
    """Without the marks of reStructuredText, with single spaces."""
    text = _MARKUP.sub(lambda match: next(group for group in match.groups() if group is not None), paragraph)
    return " ".join(text.split())


def _split(paragraph: str) -> Iterator[str]:
    start = 0
    for match in _END.finditer(paragraph):
        if _ABBREVIATION.search(paragraph[start : match.start()]):
            continue
        yield paragraph[start : match.end()].strip()
        start = match.end()
    yield paragraph[start:].strip()


def _is_prose(sentence: str) -> bool:
    if len(sentence) > MAX_CHARACTERS or len(_WORD.findall(sentence)) < MIN_WORDS:
        return False
    if _CODE.search(sentence) or "\0" in sentence:  # a docstring of Python 3.14 has one
        return False
    letters = sum(character.isalpha() or character == " " for character in sentence)
    return letters >= MIN_LETTERS * len(sentence)


VERSION = 1  # raise when the same Python would give other files
TRAIN_FILES = 8
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
    report = os.path.join(output, "corpus.json")
    done = _finished(output, report, settings)
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
    corpus = os.path.join(output, "corpus")
    os.makedirs(corpus, exist_ok=True)
    for stale in glob.glob(os.path.join(corpus, "train-*.txt")):
        os.unlink(stale)
    kept, held_out = _held_out(documents)
    for index in range(TRAIN_FILES):
        _write_documents(os.path.join(corpus, f"train-{index}.txt"), kept[index::TRAIN_FILES])
    _write_documents(os.path.join(corpus, "eval.txt"), held_out)
    paths = expand_inputs(os.path.join(corpus, "train-*.txt"), "--output")
    train_wordpiece(TrainingText(paths), os.path.join(output, "vocab.txt"), vocab_size)
    result = {"settings": settings, "bytes": size, **_statistics(paths, output)}
    result["eval_documents"] = len(held_out)
    result["eval_sentences"] = sum(len(document) for document in held_out)
    result["files"] = {name: os.path.getsize(os.path.join(output, name)) for name in _files()}
    with replacing(report) as handle:
        handle.write(json.dumps(result, indent=1).encode("utf-8"))
    return result


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


def _held_out(documents: list[list[str]]) -> tuple[list[list[str]], list[list[str]]]:
    """Training and held-out documents, each in their order.

    Documents are taken in the order of a hash of their text until they make up the share; one that is a large
    part of it by itself is passed over, so that several subjects are held out.
    """
    sizes = [sum(len(sentence) for sentence in document) for document in documents]
    wanted = EVAL_SHARE * sum(sizes)
    hashes = [hashlib.sha256("\n".join(document).encode("utf-8")).digest() for document in documents]
    held_out = set()
    for index in sorted(range(len(documents)), key=hashes.__getitem__):
        if wanted > 0 and sizes[index] < EVAL_SHARE * sum(sizes) / 8:
            held_out.add(index)
            wanted -= sizes[index]
    kept = [document for index, document in enumerate(documents) if index not in held_out]
    return kept, [document for index, document in enumerate(documents) if index in held_out]


def _write_documents(path: str, documents: list[list[str]]) -> None:
    with replacing(path) as handle:
        handle.write("\n".join("\n".join(document) + "\n" for document in documents).encode("utf-8"))


def _statistics(paths: list[str], output: str) -> dict[str, Any]:
    vocab = load_vocab(os.path.join(output, "vocab.txt"))
    scratch = tempfile.mkdtemp(dir=output)
    try:
        store = cached_store(paths, TokenizerSettings(vocab), scratch)
        return {
            "documents": store.num_documents,
            "sentences": store.num_sentences,
            "tokens": store.num_tokens,
            "vocab_size": len(vocab),
            "unigram_entropy": entropy(token_counts(store)),
        }
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _files() -> list[str]:
    return [*(f"corpus/train-{index}.txt" for index in range(TRAIN_FILES)), "corpus/eval.txt", "vocab.txt"]


def _finished(output: str, report: str, settings: dict[str, Any]) -> dict[str, Any] | None:
    """Content of `report` if it is of the same settings and the files are still there, else None."""
    try:
        result: dict[str, Any] = read_json_object(report)
        if result["settings"] != settings:
            return None
        sizes = {name: os.path.getsize(os.path.join(output, name)) for name in _files()}
        return result if result["files"] == sizes else None
    except (InputError, OSError, KeyError, TypeError):
        return None


if __name__ == "__main__":
    sys.exit(main())
