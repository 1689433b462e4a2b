"""The vocabulary beside the checkpoints: written once, read back with nothing else."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from base.errors import InputError, TrainingError
from data.options import TokenizerConfig
from data.tokenizing.vocab import load_vocab, vocabulary_from_tokens
from training.start import vocabulary as saved

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "wörd", "##s", "\u3000x"]
WORDS = vocabulary_from_tokens(TOKENS)
PLAIN = TokenizerConfig(vocab="elsewhere.txt")


def manifest(entry: object, sha256: str = WORDS.sha256) -> dict:
    return {"vocabulary": entry, "vocab_sha256": sha256}


def test_wordpiece_there_and_back(tmp_path):
    entry = saved.write_vocabulary(str(tmp_path), WORDS, PLAIN)
    assert load_vocab(str(tmp_path / "vocab.txt")).tokens == WORDS.tokens
    assert (entry["file"], entry["kind"], entry["size"]) == ("vocab.txt", "wordpiece", len(TOKENS))
    assert entry["cased"] is False
    assert saved.saved_vocabulary(str(tmp_path), manifest(entry)).sha256 == WORDS.sha256


def test_it_is_written_once(tmp_path):
    first = saved.write_vocabulary(str(tmp_path), WORDS, PLAIN)
    before = (tmp_path / "vocab.txt").stat().st_mtime_ns
    assert saved.write_vocabulary(str(tmp_path), WORDS, PLAIN) == first
    assert (tmp_path / "vocab.txt").stat().st_mtime_ns == before


def test_a_users_own_file_of_the_same_tokens_stays(tmp_path):
    content = "\r\n".join(TOKENS).encode()
    (tmp_path / "vocab.txt").write_bytes(content)
    entry = saved.write_vocabulary(str(tmp_path), WORDS, PLAIN)
    assert (tmp_path / "vocab.txt").read_bytes() == content
    assert saved.saved_vocabulary(str(tmp_path), manifest(entry)).tokens == WORDS.tokens


@pytest.mark.parametrize("content", ["[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nother\n", "no vocabulary"])
def test_another_file_is_never_written_over(content, tmp_path):
    (tmp_path / "vocab.txt").write_text(content)
    for act in (saved.check_room, saved.write_vocabulary):
        with pytest.raises(InputError, match="--ckpt_dir: .*vocab.txt.* name another directory"):
            act(str(tmp_path), WORDS, PLAIN)
    assert (tmp_path / "vocab.txt").read_text() == content


def test_without_a_vocabulary_nothing_is_written(tmp_path):
    assert saved.write_vocabulary(str(tmp_path), None, TokenizerConfig()) is None
    assert list(tmp_path.iterdir()) == []
    assert saved.saved_vocabulary(str(tmp_path), {}) is None
    assert saved.saved_vocabulary(str(tmp_path), manifest(None)) is None


def test_a_file_that_is_not_the_manifests(tmp_path):
    entry = saved.write_vocabulary(str(tmp_path), WORDS, PLAIN)
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
        saved.write_vocabulary(str(tmp_path), WORDS, PLAIN)
    assert list(tmp_path.iterdir()) == []


def test_sentencepiece_is_copied(corpus, tmp_path):
    import sentencepiece

    from data.tokenizing.tokenizer import load_sentencepiece

    sentencepiece.SentencePieceTrainer.train(
        input=corpus.held_out, model_prefix=str(tmp_path / "sp"), vocab_size=600, minloglevel=2,
        user_defined_symbols=["[CLS]", "[SEP]", "[MASK]"], pad_id=3, pad_piece="[PAD]", unk_piece="[UNK]",
    )  # fmt: skip
    model = tmp_path / "sp.model"
    words = load_sentencepiece(str(model))
    place = tmp_path / "run"
    place.mkdir()
    entry = saved.write_vocabulary(str(place), words, TokenizerConfig(sentencepiece=str(model), cased=True))
    assert (place / "sentencepiece.model").read_bytes() == Path(model).read_bytes()
    assert (entry["kind"], entry["cased"]) == ("sentencepiece", True)
    assert saved.saved_vocabulary(str(place), manifest(entry, words.sha256)).tokens == words.tokens
