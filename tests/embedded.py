"""The embedded corpus, made once a run of the tests, also where pytest-xdist's processes share them."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest


def built_once(tmp_path_factory: pytest.TempPathFactory, vocab_size: int) -> Path:
    """Its directory, with a vocabulary of `vocab_size` tokens. Tests only read it."""
    from data.embedded import build

    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # the run's; each process has a folder in it
    directory = base / f"embedded-{vocab_size}"
    with open(base / f"embedded-{vocab_size}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed
        directory.mkdir(exist_ok=True)
        build(str(directory), vocab_size=vocab_size)  # does nothing where it is whole
    return directory


def sentencepiece_model(text: str, folder: Path) -> Path:
    """A model of 600 pieces of a text, with BERT's special tokens."""
    import sentencepiece

    sentencepiece.SentencePieceTrainer.train(
        input=text, model_prefix=str(folder / "sp"), vocab_size=600, minloglevel=2,
        user_defined_symbols=["[CLS]", "[SEP]", "[MASK]"], pad_id=3, pad_piece="[PAD]", unk_piece="[UNK]",
    )  # fmt: skip
    return folder / "sp.model"
