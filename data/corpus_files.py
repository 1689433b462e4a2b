"""The files of a corpus that a command has built: corpus/train-*.txt, corpus/eval.txt, vocab.txt.

The last is corpus.json, with the settings and the sizes of the others: what is not whole is built again.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import shutil
import tempfile
from typing import Any, List, Mapping

from base.errors import InputError
from base.files import replacing
from base.json_files import read_json_object
from base.progress import SILENT, Progress
from data.store.entropy import entropy, token_counts
from data.store.tokens import cached_store
from data.text.corpus import expand_inputs
from data.tokenizing.tokenizer import TokenizerSettings
from data.tokenizing.vocab import load_vocab
from data.train_vocab import TrainingText, train_wordpiece

TRAIN_FILES = 8
_REPORT = "corpus.json"
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
    result = _statistics(paths, output)
    result["eval_documents"] = len(aside)
    result["eval_sentences"] = sum(len(document) for document in aside)
    return result


def save_report(output: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """Write corpus.json, with the files' sizes; returns its content. `result` has the "settings"."""
    content = {**result, "files": {name: os.path.getsize(os.path.join(output, name)) for name in _files()}}
    with replacing(os.path.join(output, _REPORT)) as handle:
        handle.write(json.dumps(content, indent=1).encode("utf-8"))
    return content


def finished(output: str, settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """Content of corpus.json if it is of the same settings and the files are still there, else None."""
    try:
        result: dict[str, Any] = read_json_object(os.path.join(output, _REPORT))
        if result["settings"] != settings:
            return None
        sizes = {name: os.path.getsize(os.path.join(output, name)) for name in _files()}
        return result if result["files"] == sizes else None
    except (InputError, OSError, KeyError, TypeError):
        return None


def _write_documents(path: str, documents: list[Document]) -> None:
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
