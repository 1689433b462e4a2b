from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Corpus:
    """The embedded corpus with a small vocabulary."""

    train: str  # a glob
    held_out: str
    vocab: str


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Corpus:
    from data.embedded import build

    directory = tmp_path_factory.mktemp("embedded")
    build(str(directory), vocab_size=1024)
    texts = Path(directory) / "corpus"
    return Corpus(str(texts / "train-*.txt"), str(texts / "eval.txt"), str(directory / "vocab.txt"))
