from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from base.errors import InputError
from base.progress import Progress
from data.options import TextConfig
from data.store.tokens import TokenizeUnit, TokenStore, cached_store, is_store
from data.text.corpus import documents, text_units
from data.tokenizing.tokenizer import TokenizerSettings
from data.tokenizing.vocab import SPECIAL_TOKENS, vocabulary_from_tokens
from data.tokenizing.wordpiece import WordPieceTokenizer, lists_of
from tests.data.token_stores import build_store, stored_documents, stores_in


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("One two.\nThree!\n\n\u200b\n\nFour five six.\n\u200b\nSeven.\n", encoding="utf-8")
    return str(path)


@pytest.fixture
def settings(vocab):
    return TokenizerSettings(vocab)


def test_a_store_holds_what_the_tokenizer_says_of_each_sentence(embedded, vocab, settings, tmp_path):
    paths = [str(embedded / "corpus" / name) for name in ("train-2.txt", "train-3.txt", "eval.txt")]
    build_store(paths, settings, str(tmp_path / "store"))
    store = TokenStore.open(str(tmp_path / "store"))
    expected = [lists_of(*WordPieceTokenizer(vocab).encode(document)) for document in documents(paths)]
    assert store.num_sentences > 4096, "fewer lines than one batch"
    assert store.ids.dtype == np.uint16
    assert stored_documents(store) == expected
    assert store.manifest["counts"] == {
        "documents": len(expected),
        "sentences": sum(map(len, expected)),
        "lines": sum(map(len, expected)),
        "tokens": sum(len(ids) for document in expected for ids in document),
        "skipped": 0,
        "unknown_marks": 0,
    }
    saved = store.vocabulary
    assert saved.tokens == vocab.tokens and saved.special_ids == vocab.special_ids
    assert saved.sha256 == store.vocabulary_sha256 == vocab.sha256


@pytest.mark.parametrize("lines", [1, 3])
def test_where_batches_end_makes_no_difference(settings, tmp_path, lines, monkeypatch):
    """Documents that end within, at and after the last line of a batch, and lines without tokens anywhere."""
    generator = np.random.default_rng(3)
    pieces = ["One two three.\n", "Four.\n", "\u200b\n", "\n", "\n\n"]
    path = tmp_path / "text.txt"
    path.write_text("".join(generator.choice(pieces, 300)), encoding="utf-8")
    build_store([str(path)], settings, str(tmp_path / "large"))
    monkeypatch.setattr("data.store.tokens.LINES_PER_BATCH", lines)
    build_store([str(path)], settings, str(tmp_path / "small"))
    large, small = (TokenStore.open(str(tmp_path / name)) for name in ("large", "small"))
    assert stored_documents(large) == stored_documents(small) and large.num_documents > 20


def test_sentences_and_documents_without_tokens_are_left_out(text, settings, tmp_path):
    store = cached_store([text], settings, str(tmp_path / "cache"))
    assert (store.num_documents, store.num_sentences) == (2, 4)


def test_large_vocabularies_take_four_bytes(text, tmp_path):
    tokens = [*SPECIAL_TOKENS, *(f"x{index}" for index in range(1 << 16)), "one"]
    store = cached_store([text], TokenizerSettings(vocabulary_from_tokens(tokens)), str(tmp_path))
    assert store.ids.dtype == np.uint32 and store.ids[0] == len(tokens) - 1


@pytest.mark.parametrize(
    "place, value",
    [
        (["vocabulary"], {}),
        (["vocabulary"], None),
        (["vocabulary_sha256"], "x"),
        (["columns"], {}),
        (["format"], "x"),
        (["format"], "token-store-1"),
        (["format"], 3),
        (["columns", "ids", "dtype"], "<u4"),
        (["columns", "sentences", "shards"], []),
        (["columns", "documents", "shards"], "swapped"),
    ],
)
def test_a_manifest_that_lies_is_found_out(text, settings, tmp_path, place, value):
    directory = str(tmp_path / "store")
    build_store([text], settings, directory)
    path = Path(directory, "manifest.json")
    manifest = json.loads(path.read_text("utf-8"))
    del manifest["sha256"]
    at = manifest
    for name in place[:-1]:
        at = at[name]
    at[place[-1]] = manifest["columns"]["sentences"]["shards"] if value == "swapped" else value
    path.write_text(json.dumps(manifest), "utf-8")
    with pytest.raises(InputError, match="token store" if place == ["format"] else "damaged") as caught:
        TokenStore.open(directory)
    assert directory in str(caught.value) and "\n" not in str(caught.value)


def test_stores_are_told_from_other_directories(text, settings, tmp_path):
    build_store([text], settings, str(tmp_path / "store"))
    assert is_store(str(tmp_path / "store"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "manifest.json").write_text('{"format": "instance-store-1"}')
    for path in ("other", "none", "text.txt"):
        assert not is_store(str(tmp_path / path))
        with pytest.raises(InputError, match="not a token store"):
            TokenStore.open(str(tmp_path / path))


def test_bad_text_is_named_or_skipped_and_counted(tmp_path, settings):
    path = tmp_path / "bad.txt"
    path.write_bytes(b"good\n" * 10_000 + b"\xff\n" + b"\n\nanother\nno\0t text\n" + b"\xff\n" * 1000)
    cache = str(tmp_path / "cache")
    with pytest.raises(InputError, match=r"bad\.txt, line 10001"):
        cached_store([str(path)], settings, cache)
    assert stores_in(cache) == []
    store = cached_store([str(path)], settings, cache, text=TextConfig(skip_bad_records=True))
    assert store.num_sentences == 10_001 and store.manifest["counts"]["skipped"] == 1002
    first, second, *others = store.manifest["messages"]
    assert "bad.txt, line 10001" in first and "bad.txt, line 10005" in second
    assert len(others) == 18, "only the first messages are kept"


@pytest.mark.parametrize("change", ["append", "replace", "remove"])
def test_text_that_changes_while_it_is_read_is_refused(text, settings, tmp_path, change):
    """The store would be taken for that of the text as it was when its checksum was computed."""

    class Change(Progress):
        def update(self, done, counts):
            if done and change == "append":
                with open(text, "a", encoding="utf-8") as handle:
                    handle.write("More.\n")
            elif done and change == "replace":
                shutil.copy(text, text + ".new")
                os.replace(text + ".new", text)
            elif done:
                os.unlink(text)

    with pytest.raises(InputError, match=r"text\.txt"):
        build_store([text], settings, str(tmp_path / "store"), progress=Change())
    assert not [name for name in os.listdir(tmp_path) if name.startswith("store")]


@pytest.mark.parametrize(
    "content, message", [(b"\n \n", "no sentence in"), (b"a\nb\n", "a single document in")]
)
def test_text_that_cannot_be_trained_on_is_an_input_error(tmp_path, settings, content, message):
    path = tmp_path / "blank.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=rf"{message} .*blank\.txt"):
        cached_store([str(path)], settings, str(tmp_path / "cache"))
    assert stores_in(tmp_path / "cache") == []


def test_ids_outside_the_vocabulary_are_refused(text, vocab):
    def encode(lines, stream):
        return np.full(len(lines), 1_000_000, dtype=np.int32), np.arange(1, len(lines) + 1)

    settings = SimpleNamespace(vocabulary=vocab, build=lambda: SimpleNamespace(encode=encode))
    with pytest.raises(InputError, match="outside the vocabulary of 2000"):
        TokenizeUnit(settings, TextConfig())(text_units([text])[0], SimpleNamespace(number=0))
