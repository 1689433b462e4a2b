"""Weights of our checkpoints: the newest complete one, or FOLDER:STEP, with what their manifest says; and the
vocabulary beside them, written once, read back with nothing else."""

from __future__ import annotations

import errno
import os
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from base.errors import InputError, TrainingError
from data.options import TokenizerConfig
from data.tokenizing.vocab import load_vocab, vocabulary_from_tokens
from tests.bert.weights.building import SMALL, WORDS, arrays, write
from tests.embedded import sentencepiece_model
from training.checkpoint import save
from training.start import vocabulary as saved
from training.start.initial import find_weights
from training.start.vocabulary import write_vocabulary

CONFIG = replace(SMALL, activation="tanh")
VOCABULARY = vocabulary_from_tokens(WORDS)
FACTS = {"model": CONFIG.name, "bert": asdict(CONFIG), "options": {"cased": True}}
FACTS.update(vocab_sha256=VOCABULARY.sha256, vocabulary={"file": "vocab.txt", "kind": "wordpiece"})


@pytest.fixture
def folder(tmp_path) -> str:
    """Steps 1 and 2; the pooler's bias holds the step."""
    path = tmp_path / "run" / "ckpt"
    for step in (1, 2):
        named = {**arrays(CONFIG), "pooler.bias": np.full(64, step, np.float32)}
        save(str(path), step, named, {"state": np.ones(3)}, FACTS)
    write_vocabulary(str(path), VOCABULARY, TokenizerConfig())
    return str(path)


def step_of(weights) -> int:
    return int(weights.tensors["pooler.bias"].read()[0])


def test_the_newest_complete_one_with_its_configuration_and_vocabulary(folder):
    for given in (folder, os.path.dirname(folder), f"{folder}/0000002.params"):
        weights = find_weights(given, "--init_from")
        assert step_of(weights) == 2 and weights.config == CONFIG and not weights.notes
        assert weights.cased is True and tuple(weights.vocabulary) == VOCABULARY.tokens


def test_a_step(folder):
    assert step_of(find_weights(f"{folder}:1", "--init_from")) == 1
    assert step_of(find_weights(f"{os.path.dirname(folder)}:1", "--init_from")) == 1
    with pytest.raises(InputError, match=r"--init_from \S+ckpt:3: no checkpoint of .*; available: 1, 2"):
        find_weights(f"{folder}:3", "--init_from")


def test_what_is_damaged_is_passed_over_and_named(folder):
    os.remove(f"{folder}/0000002.states.npz")  # only the parameters are needed
    assert step_of(find_weights(folder, "--init_from")) == 2
    with open(f"{folder}/0000002.params", "r+b") as file:
        file.truncate(1000)
    weights = find_weights(folder, "--init_from")
    assert step_of(weights) == 1 and "0000002.params is damaged" in weights.notes[0]
    with pytest.raises(InputError, match=r"--init_from .*ckpt:2: .*0000002.params is damaged"):
        find_weights(f"{folder}:2", "--init_from")
    os.remove(f"{folder}/0000001.params")
    with pytest.raises(InputError, match="holds no complete checkpoint: .*0000002.params is damaged"):
        find_weights(folder, "--init_from")


def test_older_manifests_and_none(folder, tmp_path):
    named = arrays(replace(SMALL, hidden=256, positions=512, token_types=2))
    save(folder, 3, named, {"state": np.ones(3)}, {"model": "bert_2_64_4"})
    weights = find_weights(folder, "--init_from")
    assert weights.config.name == "bert_2_64_4" and weights.cased is None
    write(tmp_path / "bare" / "0000009.params", arrays())
    for given in (tmp_path / "bare", f"{tmp_path}/bare:9", tmp_path / "bare" / "0000009.params"):
        assert find_weights(str(given), "--init_from", CONFIG).config == CONFIG


def test_vocabularies_that_do_not_fit(folder):
    other = vocabulary_from_tokens([*WORDS[:-1], "z"])
    save(folder, 3, arrays(CONFIG), {"state": np.ones(3)}, {**FACTS, "vocab_sha256": other.sha256})
    weights = find_weights(folder, "--init_from")
    assert weights.vocabulary is None and "another vocabulary" in weights.notes[0]
    longer = vocabulary_from_tokens([*WORDS, "z"])
    os.remove(f"{folder}/vocab.txt")
    write_vocabulary(folder, longer, TokenizerConfig())
    save(folder, 2, arrays(CONFIG), {"state": np.ones(3)}, {**FACTS, "vocab_sha256": longer.sha256})
    with pytest.raises(InputError, match="embeddings of 20 tokens, but its vocabulary has 21"):
        find_weights(f"{folder}:2", "--init_from")


TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "wörd", "##s", "\u3000x"]
ODD_WORDS = vocabulary_from_tokens(TOKENS)
PLAIN = TokenizerConfig(vocab="elsewhere.txt")


def manifest(entry: object, sha256: str = ODD_WORDS.sha256) -> dict:
    return {"vocabulary": entry, "vocab_sha256": sha256}


def test_wordpiece_there_and_back(tmp_path):
    entry = saved.write_vocabulary(str(tmp_path), ODD_WORDS, PLAIN)
    assert load_vocab(str(tmp_path / "vocab.txt")).tokens == ODD_WORDS.tokens
    assert (entry["file"], entry["kind"], entry["size"]) == ("vocab.txt", "wordpiece", len(TOKENS))
    assert entry["cased"] is False
    assert saved.saved_vocabulary(str(tmp_path), manifest(entry)).sha256 == ODD_WORDS.sha256


def test_it_is_written_once(tmp_path):
    first = saved.write_vocabulary(str(tmp_path), ODD_WORDS, PLAIN)
    before = (tmp_path / "vocab.txt").stat().st_mtime_ns
    assert saved.write_vocabulary(str(tmp_path), ODD_WORDS, PLAIN) == first
    assert (tmp_path / "vocab.txt").stat().st_mtime_ns == before


def test_a_users_own_file_of_the_same_tokens_stays(tmp_path):
    content = "\r\n".join(TOKENS).encode()
    (tmp_path / "vocab.txt").write_bytes(content)
    entry = saved.write_vocabulary(str(tmp_path), ODD_WORDS, PLAIN)
    assert (tmp_path / "vocab.txt").read_bytes() == content
    assert saved.saved_vocabulary(str(tmp_path), manifest(entry)).tokens == ODD_WORDS.tokens


@pytest.mark.parametrize("content", ["[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nother\n", "no vocabulary"])
def test_another_file_is_never_written_over(content, tmp_path):
    (tmp_path / "vocab.txt").write_text(content)
    for act in (saved.check_room, saved.write_vocabulary):
        with pytest.raises(InputError, match="--ckpt_dir: .*vocab.txt.* name another directory"):
            act(str(tmp_path), ODD_WORDS, PLAIN)
    assert (tmp_path / "vocab.txt").read_text() == content


def test_without_a_vocabulary_nothing_is_written(tmp_path):
    assert saved.write_vocabulary(str(tmp_path), None, TokenizerConfig()) is None
    assert list(tmp_path.iterdir()) == []
    assert saved.saved_vocabulary(str(tmp_path), {}) is None
    assert saved.saved_vocabulary(str(tmp_path), manifest(None)) is None


def test_a_file_that_is_not_the_manifests(tmp_path):
    entry = saved.write_vocabulary(str(tmp_path), ODD_WORDS, PLAIN)
    with pytest.raises(InputError, match="another vocabulary than the checkpoint's"):
        saved.saved_vocabulary(str(tmp_path), manifest(entry, "0" * 64))
    with pytest.raises(InputError, match="no known kind"):
        saved.saved_vocabulary(str(tmp_path), manifest({"file": "/etc/passwd", "kind": "other"}))
    (tmp_path / "vocab.txt").unlink()
    with pytest.raises(InputError, match=r"vocab\.txt"):
        saved.saved_vocabulary(str(tmp_path), manifest(entry))


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("base.files.os.fsync", full)
    with pytest.raises(TrainingError, match="cannot write the vocabulary .*No space left"):
        saved.write_vocabulary(str(tmp_path), ODD_WORDS, PLAIN)
    assert list(tmp_path.iterdir()) == []


def test_sentencepiece_is_copied(corpus, tmp_path):
    from data.tokenizing.tokenizer import load_sentencepiece

    model = sentencepiece_model(corpus.held_out, tmp_path)
    words = load_sentencepiece(str(model))
    place = tmp_path / "run"
    place.mkdir()
    entry = saved.write_vocabulary(str(place), words, TokenizerConfig(sentencepiece=str(model), cased=True))
    assert (place / "sentencepiece.model").read_bytes() == Path(model).read_bytes()
    assert (entry["kind"], entry["cased"]) == ("sentencepiece", True)
    assert saved.saved_vocabulary(str(place), manifest(entry, words.sha256)).tokens == words.tokens
