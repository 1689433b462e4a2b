from __future__ import annotations

import json
import multiprocessing
import os

import numpy as np
import pytest

from data.errors import InputError
from data.statistics import token_counts, unigram_entropy
from data.text import documents
from data.tokenizer import WordPieceTokenizer
from data.tokens import TokenStore, build_store, cached_store
from data.vocab import vocabulary_from_tokens


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("One two.\nThree!\n\n\u200b\n\nFour five six.\n\u200b\nSeven.\n", encoding="utf-8")
    return str(path)


def stored_documents(store):
    return [
        [
            store.ids[store.sentences[index] : store.sentences[index + 1]].tolist()
            for index in range(store.documents[document], store.documents[document + 1])
        ]
        for document in range(store.num_documents)
    ]


def test_a_store_holds_what_the_tokenizer_says_of_each_sentence(embedded, vocab, tmp_path):
    paths = [str(embedded / "corpus" / name) for name in ("train-2.txt", "train-3.txt", "eval.txt")]
    tokenizer = WordPieceTokenizer(vocab)
    build_store(paths, tokenizer, vocab, str(tmp_path / "store"))
    store = TokenStore.open(str(tmp_path / "store"))
    expected = [tokenizer.encode_batch(document) for document in documents(paths)]
    assert store.num_sentences > 4096, "fewer lines than one batch"
    assert store.ids.dtype == np.uint16
    assert stored_documents(store) == expected


def test_sentences_and_documents_without_tokens_are_left_out(text, vocab, tmp_path):
    store = cached_store([text], WordPieceTokenizer(vocab), vocab, str(tmp_path))
    assert (store.num_documents, store.num_sentences) == (2, 4)


def test_large_vocabularies_take_four_bytes(text, tmp_path):
    tokens = (
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + [f"x{index}" for index in range(1 << 16)] + ["one"]
    )
    vocab = vocabulary_from_tokens(tokens)
    store = cached_store([text], WordPieceTokenizer(vocab), vocab, str(tmp_path))
    assert store.ids.dtype == np.uint32 and store.ids[0] == len(tokens) - 1


def test_the_cache_is_found_again_by_content_and_not_by_name(text, vocab, tmp_path):
    cache = str(tmp_path / "cache")
    tokenizer = WordPieceTokenizer(vocab)
    cached_store([text], tokenizer, vocab, cache)
    (name,) = os.listdir(cache)
    built = os.stat(os.path.join(cache, name, "manifest.json")).st_mtime_ns
    os.rename(text, text + ".moved")
    cached_store([text + ".moved"], tokenizer, vocab, cache)
    assert os.listdir(cache) == [name]
    assert os.stat(os.path.join(cache, name, "manifest.json")).st_mtime_ns == built
    cached_store([text + ".moved"], WordPieceTokenizer(vocab, cased=True), vocab, cache)
    with open(text + ".moved", "a", encoding="utf-8") as handle:
        handle.write("More.\n")
    cached_store([text + ".moved"], tokenizer, vocab, cache)
    assert len(os.listdir(cache)) == 3


@pytest.mark.parametrize("name", ["ids.bin", "sentences.bin", "documents.bin", "manifest.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "empty"])
def test_damage_is_named_and_the_cache_rebuilds(text, vocab, tmp_path, name, damage):
    cache = str(tmp_path / "cache")
    tokenizer = WordPieceTokenizer(vocab)
    intact = stored_documents(cached_store([text], tokenizer, vocab, cache))
    (key,) = os.listdir(cache)
    directory = os.path.join(cache, key)
    path = os.path.join(directory, name)
    with open(path, "rb") as handle:
        content = bytearray(handle.read())
    content[len(content) // 2] ^= 1
    os.unlink(path)
    if damage != "remove":
        with open(path, "wb") as handle:
            handle.write({"flip": content, "cut": content[:-9], "empty": b""}[damage])
    if not (name == "manifest.json" and damage == "flip"):  # a digit of a source's hash may be what flipped
        with pytest.raises(InputError, match="token store") as caught:
            TokenStore.open(directory)
        assert directory in str(caught.value) and "\n" not in str(caught.value)
    assert stored_documents(cached_store([text], tokenizer, vocab, cache)) == intact
    assert os.listdir(cache) == [key]


def test_a_manifest_that_lies_is_found_out(text, vocab, tmp_path):
    directory = str(tmp_path / "store")
    build_store([text], WordPieceTokenizer(vocab), vocab, directory)
    path = os.path.join(directory, "manifest.json")
    with open(path, encoding="utf-8") as handle:
        honest = json.load(handle)
    swapped = dict(honest["files"])
    swapped["documents.bin"], swapped["sentences.bin"] = swapped["sentences.bin"], swapped["documents.bin"]
    for change in (
        {"vocabulary_size": 7},
        {"vocabulary_size": "x"},
        {"files": {}},
        {"files": swapped},
        {"format": "x"},
    ):
        with open(path, "w", encoding="utf-8") as handle:
            json.dump({**honest, **change}, handle)
        with pytest.raises(InputError, match="token store"):
            TokenStore.open(directory)


def test_bad_text_leaves_nothing_behind(tmp_path, vocab):
    path = tmp_path / "bad.txt"
    path.write_bytes(b"good\n" * 10_000 + b"\xff\n")
    with pytest.raises(InputError, match=r"bad\.txt, line 10001"):
        cached_store([str(path)], WordPieceTokenizer(vocab), vocab, str(tmp_path / "cache"))
    assert os.listdir(tmp_path / "cache") == []


def test_text_without_a_sentence_is_an_input_error(tmp_path, vocab):
    path = tmp_path / "blank.txt"
    path.write_bytes(b"\n \n")
    with pytest.raises(InputError, match=r"no sentence in .*blank\.txt"):
        cached_store([str(path)], WordPieceTokenizer(vocab), vocab, str(tmp_path / "cache"))


class TooLarge:
    fingerprint = "too large"

    def encode_batch(self, lines):
        return [[1_000_000] for _ in lines]


def test_ids_outside_the_vocabulary_are_refused(text, vocab, tmp_path):
    with pytest.raises(InputError, match="outside the vocabulary of 2000"):
        build_store([text], TooLarge(), vocab, str(tmp_path / "store"))


def _build_one(arguments):
    paths, vocab_tokens, cache = arguments
    vocab = vocabulary_from_tokens(vocab_tokens)
    return cached_store(paths, WordPieceTokenizer(vocab), vocab, cache).num_tokens


def test_processes_that_build_at_once_end_with_one_store(embedded, vocab, tmp_path):
    paths = [str(embedded / "corpus" / "eval.txt")]
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        counts = pool.map_async(_build_one, [(paths, vocab.tokens, str(tmp_path))] * 3).get(timeout=60)
    assert len(set(counts)) == 1 and len(os.listdir(tmp_path)) == 1


def test_progress_reports_all_lines(text, vocab, tmp_path):
    reports = []
    tokenizer = WordPieceTokenizer(vocab)
    build_store(
        [text], tokenizer, vocab, str(tmp_path / "s"), progress=lambda *report: reports.append(report)
    )
    assert reports[-1] == (6, TokenStore.open(str(tmp_path / "s")).num_tokens)


def test_unigram_entropy_by_hand(text, tmp_path):
    vocab = vocabulary_from_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "."])
    store = cached_store([text], WordPieceTokenizer(vocab), vocab, str(tmp_path))
    counts = token_counts(store, vocab)  # seven words and "!" are unknown, and there are three full stops
    assert counts.tolist() == [0, 8, 0, 0, 0, 3]
    assert unigram_entropy(store, vocab) == pytest.approx(8 / 11 * np.log(11 / 8) + 3 / 11 * np.log(11 / 3))
