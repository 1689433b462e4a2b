from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from base.errors import InputError
from base.files import sha256_of
from data.options import TextConfig
from data.store.cache import describe_sources
from data.store.tokens import TokenStore, cached_store
from data.tokenizing.tokenizer import TokenizerSettings
from tests.data.token_stores import build_store, stored_documents, stores_in
from tests.processes import start_command, until


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("One two.\nThree!\n\nFour five six.\nSeven.\n", encoding="utf-8")
    return str(path)


@pytest.fixture
def settings(vocab):
    return TokenizerSettings(vocab)


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
