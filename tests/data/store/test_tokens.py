"""The token store, its cache, and figures about it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from base.errors import InputError
from base.files import sha256_of
from base.progress import Progress
from data.options import TextConfig
from data.store.build import build_columns
from data.store.cache import describe_sources
from data.store.tokens import (
    TokenStore,
    cached_store,
    entropy,
    is_store,
    loss_without_context,
    token_counts,
    token_store_plan,
)
from data.text.corpus import documents
from data.tokenizing.tokenizer import TokenizerSettings, WordPieceTokenizer, lists_of
from data.tokenizing.vocab import SPECIAL_TOKENS, vocabulary_from_tokens
from tests.data.token_stores import build_store, stored_documents, stores_in
from tests.processes import start_command, until


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
    # Exports know a store by the bytes of its manifest.
    order = (
        "format vocabulary_sha256 tokenizer text sources vocabulary identity counts messages columns sha256"
    )
    assert list(json.loads(Path(store.directory, "manifest.json").read_text())) == order.split()
    assert list(store.manifest["identity"]) == ["format", "vocabulary", "tokenizer", "text", "sources"]
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
        (["sources"], [{"name": "text.txt"}]),
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


def test_text_that_changes_while_checksums_are_computed_is_refused(text, settings, tmp_path):
    other = shutil.copy(text, tmp_path / "other.txt")

    class Change(Progress):
        def update(self, done, counts):
            shutil.copyfile(other, f"{text}.new")
            os.replace(f"{text}.new", text)

    plan = token_store_plan([text, other], settings, progress=Change())
    with pytest.raises(InputError, match=r"text\.txt changed while it was tokenized"):
        build_columns(str(tmp_path / "store"), plan, 1)


@pytest.mark.parametrize(
    "content, message", [(b"\n \n", "no sentence in"), (b"a\nb\n", "a single document in")]
)
def test_text_that_cannot_be_trained_on_is_an_input_error(tmp_path, settings, content, message):
    path = tmp_path / "blank.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=rf"{message} .*blank\.txt"):
        cached_store([str(path)], settings, str(tmp_path / "cache"))
    assert stores_in(tmp_path / "cache") == []


# Frequencies of a text's tokens, and what a model can reach that knows nothing else


@pytest.fixture
def small(text, tmp_path):
    vocab = vocabulary_from_tokens([*SPECIAL_TOKENS, "."])
    return cached_store([text], TokenizerSettings(vocab), str(tmp_path))


def test_entropy_by_hand(small):
    counts = token_counts(small)  # seven words and "!" are unknown, and there are three full stops
    assert counts.tolist() == [0, 8, 0, 0, 0, 3]
    assert entropy(counts) == pytest.approx(8 / 11 * np.log(11 / 8) + 3 / 11 * np.log(11 / 3))


@pytest.mark.parametrize("known", [None, np.array([0, 3, 7, 2, 2])])
def test_the_loss_without_context_by_enumeration(known):
    """Every token to predict with everything that may stand in its place."""
    counts = np.array([5, 0, 2, 1, 1])
    size = len(counts)

    def joint(share):
        table = np.zeros((size, size + 1))  # token, what stands there; the last is [MASK]
        table[:, size] = 0.8 * share
        table[:, :size] = 0.1 * np.diag(share) + 0.1 * share[:, None] / size
        return table

    text = joint(counts / counts.sum())
    model = text if known is None else joint((known + 1) / (known + 1).sum())
    given = model / model.sum(0, keepdims=True)
    used = text > 0
    assert text.sum() == pytest.approx(1)
    assert loss_without_context(counts, known) == pytest.approx(-(text[used] * np.log(given[used])).sum())


@pytest.fixture
def counted(small):
    """A store whose tokens were counted, its statistics.json, and the content of the file."""
    assert token_counts(small).sum() == 11
    path = Path(small.directory) / "statistics.json"
    return small, path, json.loads(path.read_text("utf-8"))


def test_tokens_are_counted_once_and_again_for_other_ids(counted, monkeypatch):
    store, path, remembered = counted
    with monkeypatch.context() as changed:
        changed.setattr("data.store.tokens.np.bincount", lambda *_, **__: 1 / 0)
        assert token_counts(store).sum() == 11, "it is read"
    earlier = {"unigram_entropy": 1.25, "ids": remembered["ids"]}
    for others in ({"counts": [1] * 6, "ids": []}, earlier):  # of other text, of an earlier version
        checksum = hashlib.sha256(json.dumps(others, sort_keys=True).encode()).hexdigest()
        path.write_text(json.dumps({**others, "sha256": checksum}), "utf-8")
        assert token_counts(store).tolist() == remembered["counts"], "it is counted"
        assert json.loads(path.read_text("utf-8")) == remembered


def test_changed_counts_are_an_error_that_names_the_file(counted):
    store, path, remembered = counted
    content = path.read_bytes()
    forged = json.dumps({**remembered, "counts": [1] * 6}).encode()
    for damaged in (forged, content.replace(b"ids", b"idz"), content[:-9], b"", b"{}", b"[1]"):
        path.write_bytes(damaged)
        with pytest.raises(InputError) as caught:
            token_counts(store)
        assert str(caught.value).startswith(f"{path} is damaged") and "delete it" in str(caught.value)


def test_the_cache_is_found_again_by_content_and_not_by_name(text, vocab, settings, tmp_path):
    cache = str(tmp_path / "cache")
    cached_store([text], settings, cache)
    (name,) = stores_in(cache)
    built = os.stat(os.path.join(cache, name, "manifest.json")).st_mtime_ns
    os.rename(text, text + ".moved")
    text += ".moved"
    cached_store([text], settings, cache)
    assert stores_in(cache) == [name]
    assert os.stat(os.path.join(cache, name, "manifest.json")).st_mtime_ns == built
    cached_store([text], TokenizerSettings(vocab, cased=True), cache)
    cached_store([text], settings, cache, text=TextConfig(split_sentences=True))
    with open(text, "a", encoding="utf-8") as handle:
        handle.write("More.\n")
    cached_store([text], settings, cache)
    assert len(stores_in(cache)) == 4


@pytest.mark.parametrize("name", ["ids-00000.bin", "manifest.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "empty"])
def test_damage_is_named_and_the_cache_rebuilds(text, settings, tmp_path, name, damage):
    cache = str(tmp_path / "cache")
    intact = stored_documents(cached_store([text], settings, cache))
    (key,) = stores_in(cache)
    directory = os.path.join(cache, key)
    path = Path(directory, name)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.unlink()
    if damage != "remove":
        path.write_bytes({"flip": content, "cut": content[:-9], "empty": b""}[damage])
    with pytest.raises(InputError, match="token store|damaged") as caught:
        TokenStore.open(directory)
    assert directory in str(caught.value) and "\n" not in str(caught.value)
    assert stored_documents(cached_store([text], settings, cache)) == intact
    assert stores_in(cache) == [key]


def test_a_check_is_not_repeated_while_the_files_are_the_same(text, settings, tmp_path, monkeypatch):
    store = str(tmp_path / "store")
    build_store([text], settings, store)
    hashed = []
    monkeypatch.setattr("base.files.sha256_of", lambda path: hashed.append(path) or sha256_of(path))
    TokenStore.open(store)
    assert len(hashed) == 3
    TokenStore.open(store)
    assert len(hashed) == 3
    shutil.copytree(store, tmp_path / "copy")  # other files, which nobody has checked
    TokenStore.open(str(tmp_path / "copy"))
    assert len(hashed) == 6
    with open(os.path.join(store, "ids-00000.bin"), "r+b") as handle:
        handle.write(b"\1")
    with pytest.raises(InputError, match="checksum"):
        TokenStore.open(store)


RANK = """
import sys
from base.progress import Progress
from data.tokenizing.tokenizer import TokenizerSettings
from data.store.tokens import cached_store
from data.tokenizing.vocab import load_vocab

class Notes(Progress):
    def begin(self, what, total): print(what)

path, vocab, cache = sys.argv[1:]
print(cached_store([path], TokenizerSettings(load_vocab(vocab)), cache, progress=Notes()).num_tokens)
"""


def test_ranks_that_come_at_once_share_one_build(embedded, tmp_path):
    """One tokenizes, also where the first is killed in the middle of it; the others wait for it."""
    text = tmp_path / "text.txt"
    text.write_text((embedded / "corpus" / "train-1.txt").read_text("utf-8") * 8, encoding="utf-8")
    cache = tmp_path / "cache"
    words = [sys.executable, "-c", RANK, str(text), str(embedded / "vocab.txt"), str(cache)]
    with start_command(words) as first:
        until(lambda: list(cache.glob("*.partial/unfinished/*.tmp-*")), first)
        with start_command(words) as second, start_command(words) as third:
            first.signal(9)
            first.wait()
            results = [run.wait().check().stdout.split("\n") for run in (second, third)]
    said = [line for result in results for line in result]
    assert said.count("tokenizing") == 1, said
    assert results[0][-2] == results[1][-2] and int(results[0][-2]) > 100_000
    assert len(stores_in(cache)) == 1


def test_checksums_are_remembered_until_a_file_changes(tmp_path, monkeypatch):
    cache = str(tmp_path / "cache")
    paths = [str(tmp_path / name) for name in ("one.txt", "two.txt")]
    for path in paths:
        with open(path, "w", encoding="utf-8") as handle:
            handle.write(path)
        os.utime(path, (1e9, 1e9))
    first = describe_sources(paths, cache)
    assert describe_sources(paths) == first
    assert [source.described["name"] for source in first] == ["one.txt", "two.txt"]
    read = []
    monkeypatch.setattr("base.files.sha256_of", lambda path: read.append(path) or sha256_of(path))
    assert describe_sources(paths, cache) == first and read == []
    os.replace(paths[0], paths[1])  # same size, same time, another inode
    moved = describe_sources(paths[1:], cache)
    assert moved[0].sha256 == first[0].sha256 and read == paths[1:]
    with open(paths[1], "w", encoding="utf-8") as handle:
        handle.write("new")
    for _ in range(2):  # too fresh to be remembered: it may change again within the clock's tick
        describe_sources(paths[1:], cache)
    assert read == paths[1:] * 3
    for damage in (b"", b"{", b"[]", b'{"a": 1}', json.dumps({paths[1]: [1, 2]}).encode()):
        with open(os.path.join(cache, "hashes.json"), "wb") as handle:
            handle.write(damage)
        assert describe_sources(paths[1:], cache)[0].size == 3
    with pytest.raises(InputError, match="gone"):
        describe_sources([str(tmp_path / "gone")], cache)
