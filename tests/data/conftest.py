"""Text that every test of the data path can use, made once a run."""

from __future__ import annotations

import random

import pytest

from data.store.tokens import TokenStore
from data.tokenizing.tokenizer import TokenizerSettings
from data.tokenizing.vocab import load_vocab
from tests.data.token_stores import build_store
from tests.data.wikitext import SHARED_WIKITEXT, TEXTS, write_wikitext
from tests.embedded import built_once, sentencepiece_model


@pytest.fixture(scope="session")
def embedded(tmp_path_factory):
    """Directory of the embedded corpus with a vocabulary of 2000 tokens."""
    return built_once(tmp_path_factory, vocab_size=2000)


@pytest.fixture(scope="session")
def sp_model(embedded, tmp_path_factory):
    """The path of a SentencePiece model of the corpus."""
    text = str(embedded / "corpus" / "train-0.txt")
    return str(sentencepiece_model(text, tmp_path_factory.mktemp("sentencepiece")))


@pytest.fixture(scope="session")
def vocab(embedded):
    return load_vocab(str(embedded / "vocab.txt"))


@pytest.fixture(scope="session")
def settings(vocab):
    return TokenizerSettings(vocab)


@pytest.fixture
def text(tmp_path):
    """The path of two documents, of two sentences each, with lines and a document without tokens."""
    path = tmp_path / "text.txt"
    path.write_text("One two.\nThree!\n\n\u200b\n\nFour five six.\n\u200b\nSeven.\n", encoding="utf-8")
    return str(path)


@pytest.fixture(scope="session")
def store(embedded, vocab, tmp_path_factory):
    """The token store of one training file: 50 documents or more."""
    directory = tmp_path_factory.mktemp("store") / "store"
    build_store([str(embedded / "corpus" / "train-0.txt")], TokenizerSettings(vocab), str(directory))
    return TokenStore.open(str(directory))


@pytest.fixture(scope="session", params=TEXTS)
def wikitext(request, embedded, tmp_path_factory):
    """The path of a text in WikiText's form (see tests.data.wikitext), as a string."""
    if request.param == "shared":
        return str(SHARED_WIKITEXT)
    path = tmp_path_factory.mktemp("wikitext") / "wiki.valid.tokens"
    write_wikitext(path, sorted((embedded / "corpus").glob("train-*.txt")))
    return str(path)


@pytest.fixture(scope="session")
def real_lines(embedded):
    """Sentences of the embedded corpus, of WikiText if it lies beside the project, and some odd ones."""
    lines = [line for line in (embedded / "corpus" / "train-1.txt").read_text("utf-8").splitlines() if line]
    if SHARED_WIKITEXT.exists():
        lines += [line.strip() for line in SHARED_WIKITEXT.read_text("utf-8").splitlines() if line.strip()]
    generator = random.Random(5)
    odd = "aeiouABC \u00e9\u00c5\u0130\u4e2d\u6587\u200b\u00ad\t.,[]'-\u2013\u201c\u20ac1\u00bd#_\u0301"
    lines += ["".join(generator.choice(odd) for _ in range(40)) for _ in range(500)]
    return [
        *lines,
        "x" * 199,
        "y" * 201,
        "[MASK] [CLS] ##ing",
        "na\u00efve caf\u00e9 \u0395\u03bb\u03bb\u03ac\u03b4\u03b1",
    ]
