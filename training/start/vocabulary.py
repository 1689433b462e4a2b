"""The vocabulary that a run leaves beside its checkpoints, so that nothing else is needed to use them.

    vocab.txt            WordPiece: a token a line, in the order of the ids
    sentencepiece.model  a copy of the SentencePiece model

Written once, whole or not at all. The manifests of the checkpoints have it as "vocabulary": its file, kind,
size, sha256 (of the file) and whether upper case is kept; "vocab_sha256" is of the tokens. MXNet is not
imported.
"""

from __future__ import annotations

import os
import shutil
from typing import Any, Mapping

from base.errors import InputError, TrainingError
from base.files import replacing, sha256_of
from data.options import TokenizerConfig
from data.tokenizing.tokenizer import load_sentencepiece
from data.tokenizing.vocab import SENTENCEPIECE, WORDPIECE, Vocabulary, load_vocab

FILES = {WORDPIECE: "vocab.txt", SENTENCEPIECE: "sentencepiece.model"}


def check_room(ckpt_dir: str, vocabulary: Vocabulary | None, config: TokenizerConfig) -> None:
    """Raises InputError where `ckpt_dir` has another vocabulary under the name of the one to be written."""
    path = _path(ckpt_dir, vocabulary, config)
    if vocabulary is not None and path is not None and os.path.exists(path):
        _check_same(path, vocabulary)


def write_vocabulary(
    ckpt_dir: str, vocabulary: Vocabulary | None, config: TokenizerConfig
) -> dict[str, Any] | None:
    """Writes the vocabulary into `ckpt_dir` unless it is there; one rank does it.

    Returns:
        the entry of manifests; None without a vocabulary, and for a token store of a SentencePiece model that
        --sentencepiece does not name.

    Raises:
        InputError: another vocabulary is there.
        TrainingError: it cannot be written.
    """
    path = _path(ckpt_dir, vocabulary, config)
    if vocabulary is None or path is None:
        return None
    if os.path.exists(path):
        _check_same(path, vocabulary)
    else:
        try:
            with replacing(path) as file:
                if vocabulary.kind == WORDPIECE:
                    file.write("".join(f"{token}\n" for token in vocabulary.tokens).encode())
                else:
                    with open(os.path.expanduser(config.sentencepiece or ""), "rb") as model:
                        shutil.copyfileobj(model, file)
        except OSError as error:
            raise TrainingError(f"cannot write the vocabulary {path}: {error.strerror or error}") from error
    return {
        "file": os.path.basename(path),
        "kind": vocabulary.kind,
        "size": len(vocabulary),
        "sha256": sha256_of(path),
        "cased": config.cased,
    }


def saved_vocabulary(ckpt_dir: str, manifest: Mapping[str, Any]) -> Vocabulary | None:
    """The vocabulary of a checkpoint, from the file beside it; None where the run had none or an older
    version wrote none.

    Raises:
        InputError: the file is missing or is not the manifest's.
    """
    entry = manifest.get("vocabulary")
    if entry is None:
        return None
    # Of the entry's name only the kind counts: no manifest leads out of its folder.
    name = FILES.get(entry.get("kind", "")) if isinstance(entry, dict) else None
    if name is None:
        raise InputError(f"{ckpt_dir}: its manifest names a vocabulary of no known kind")
    path = os.path.join(ckpt_dir, name)
    vocabulary = load_vocab(path) if name == FILES[WORDPIECE] else load_sentencepiece(path)
    if manifest.get("vocab_sha256") != vocabulary.sha256:
        raise InputError(
            f"{path} is another vocabulary than the checkpoint's; put the run's own in its place"
        )
    return vocabulary


def _path(ckpt_dir: str, vocabulary: Vocabulary | None, config: TokenizerConfig) -> str | None:
    if vocabulary is None or (vocabulary.kind == SENTENCEPIECE and not config.sentencepiece):
        return None
    return os.path.join(ckpt_dir, FILES[vocabulary.kind])


def _check_same(path: str, vocabulary: Vocabulary) -> None:
    try:
        there = load_vocab(path) if vocabulary.kind == WORDPIECE else load_sentencepiece(path)
    except InputError as error:
        raise InputError(
            f"--ckpt_dir: {error}; the run writes its own there: name another directory"
        ) from error
    if there.sha256 != vocabulary.sha256:
        raise InputError(
            f"--ckpt_dir: {path} is another vocabulary than this run's, which is written there; name "
            "another directory"
        )
