"""Vocabularies, and training them."""

from __future__ import annotations

import hashlib
import json
import os
import random

import numpy as np
import pytest

from base.errors import InputError
from data.options import TextConfig
from data.text.sentences import UNKNOWN
from data.tokenizing.tokenizer import TokenizerSettings, WordPieceTokenizer, lists_of, load_sentencepiece
from data.tokenizing.vocab import (
    SPECIAL_TOKENS,
    load_vocab,
    save_vocabulary,
    vocabulary_from_pieces,
    vocabulary_from_saved,
    vocabulary_from_tokens,
)
from data.train_vocab import MODEL_TYPES, TrainingText, main, train_sentencepiece, train_wordpiece

TOKENS = ["[PAD]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "##s", "##"]


def write(tmp_path, content):
    path = tmp_path / "vocab.txt"
    path.write_bytes(content)
    return str(path)


def test_ids_are_line_numbers_and_special_tokens_are_found(tmp_path):
    vocab = load_vocab(write(tmp_path, ("\n".join(TOKENS) + "\n").encode()))
    assert vocab.tokens == tuple(TOKENS) and len(vocab) == 9
    assert vocab.special_ids == (0, 2, 3, 4, 5)
    assert np.flatnonzero(vocab.is_continuation).tolist() == [7, 8]
    assert vocab.ids()["the"] == 6


def test_the_hash_is_of_tokens_and_order_not_of_line_ends(tmp_path):
    unix = load_vocab(write(tmp_path, "\n".join(TOKENS).encode()))
    windows = load_vocab(write(tmp_path, b"\xef\xbb\xbf" + ("\r\n".join(TOKENS) + "\r\n").encode()))
    assert unix.sha256 == windows.sha256 == vocabulary_from_tokens(TOKENS).sha256
    assert vocabulary_from_tokens(TOKENS[:6] + TOKENS[:5:-1]).sha256 != unix.sha256


def test_a_vocabulary_cannot_be_changed():
    vocab = vocabulary_from_tokens(TOKENS)
    with pytest.raises(ValueError):
        vocab.is_continuation[0] = True
    with pytest.raises(AttributeError):
        vocab.mask_id = 0


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "is empty"),
        (b"\n", "line 1: an empty line"),
        (b"[PAD]\n\n[UNK]\n", "line 2: an empty line"),
        (b"[PAD]\n\xff\n", "line 2: not valid UTF-8"),
        (b"[PAD]\nthe\nthe\n", "'the' twice, as ids 1 and 2"),
        (b"[PAD]\nt\0he\n", "line 2: a NUL"),
        ("[PAD]\n[UNK]\n".encode("utf-16"), "line 1: not valid UTF-8"),
        ("[PAD]\n[UNK]\n".encode("utf-16-le"), "line 1: a NUL"),
    ],
)
def test_bad_files_are_named_with_their_line(tmp_path, content, message):
    with pytest.raises(InputError, match=message) as caught:
        load_vocab(write(tmp_path, content))
    assert "vocab.txt" in str(caught.value) and "\n" not in str(caught.value)


def test_no_file_and_a_directory_are_input_errors(tmp_path):
    for path in (tmp_path / "none.txt", tmp_path):
        with pytest.raises(InputError, match="the vocabulary .*: cannot be read"):
            load_vocab(str(path))


def test_pieces_continue_a_word_unless_they_start_with_the_space_mark():
    pieces = ["<unk>", "<pad>", "[CLS]", "[SEP]", "[MASK]", "\u2581the", "s", "\u2581"]
    vocab = vocabulary_from_pieces(pieces, unk_id=0, pad_id=1, source="m.model")
    assert vocab.special_ids == (1, 0, 2, 3, 4)
    assert np.flatnonzero(vocab.is_continuation).tolist() == [6]


def test_pieces_without_padding_or_mask_are_refused_with_the_remedy():
    with pytest.raises(InputError, match=r"m\.model lacks \[MASK\], a padding piece; .*user_defined_symbols"):
        vocabulary_from_pieces(["<unk>", "[CLS]", "[SEP]"], unk_id=0, pad_id=-1, source="m.model")


def test_a_saved_vocabulary_comes_back_the_same():
    pieces = ["<unk>", "<pad>", "[CLS]", "[SEP]", "[MASK]", "\u2581the", "s", "\u2581", "a\nb"]
    for vocab in (
        vocabulary_from_tokens(TOKENS),
        vocabulary_from_pieces(pieces, unk_id=0, pad_id=1, source="m.model"),
    ):
        back = vocabulary_from_saved(json.loads(json.dumps(save_vocabulary(vocab))), "store")
        for name in ("tokens", "special_ids", "kind", "sha256"):
            assert getattr(back, name) == getattr(vocab, name), name
        assert np.array_equal(back.is_continuation, vocab.is_continuation)


CHANGES = {
    "kind": ("other", ["wordpiece"]),
    "tokens": (None, [], [1, 2], TOKENS[:-1], [*TOKENS[:-1], "the"], [*TOKENS[:-1], "\ud800"]),
    "special_ids": (None, [0, 2, 3, 4], *([0, 2, 3, 4, last] for last in (9, -1, True, 4)), [0, 2, 3, 5, 4]),
    "sha256": (None, "0" * 64),
}


@pytest.mark.parametrize("name, value", [(name, value) for name in CHANGES for value in CHANGES[name]])
def test_a_saved_vocabulary_that_was_changed_is_refused(name, value):
    saved = json.loads(json.dumps({**save_vocabulary(vocabulary_from_tokens(TOKENS)), name: value}))
    with pytest.raises(InputError, match="^store/manifest.json") as caught:
        vocabulary_from_saved(saved, "store/manifest.json")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("saved", [None, "text", {}])
def test_what_is_no_saved_vocabulary_is_refused(saved):
    with pytest.raises(InputError, match=r"^m\.json: the saved vocabulary is damaged"):
        vocabulary_from_saved(saved, "m.json")


def test_a_file_of_100_mb_is_refused_without_reading_it_all(tmp_path):
    path = tmp_path / "vocab.txt"
    with open(path, "wb") as handle:
        handle.truncate(100 << 20)
    with pytest.raises(InputError, match=r"vocab\.txt: more than 64 MiB"):
        load_vocab(str(path))


SYLLABLES = ["ka", "lo", "mi", "ter", "son", "ra", "\u00e9l", "bu"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Two files of 400 sentences in all, of 200 distinct words that are made of few syllables."""
    directory = tmp_path_factory.mktemp("corpus")
    generator = random.Random(7)
    words = ["".join(generator.choices(SYLLABLES, k=generator.randrange(1, 5))) for _ in range(200)]
    for name in ("a.txt", "b.txt"):
        lines = [" ".join(generator.choices(words, k=9)).capitalize() + "." for _ in range(200)]
        text = "\n".join(line + ("\n" if index % 10 == 9 else "") for index, line in enumerate(lines))
        (directory / name).write_text(text + "\n", "utf-8")
    return directory


def text_of(corpus, **options):
    return TrainingText([str(corpus / "a.txt"), str(corpus / "b.txt")], **options)


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_drawn_sentences_are_the_same_at_every_pass_and_in_order(corpus):
    whole = text_of(corpus)
    everything = list(whole.passes("one"))
    assert len(everything) == whole.sentences == 400
    assert list(whole.passes("two")) == everything
    text = text_of(corpus, max_sentences=37, seed=1)
    drawn = list(text.passes("one"))
    assert len(drawn) == 37 and text.sentences == 400
    assert drawn == list(text.passes("two")) == list(text_of(corpus, max_sentences=37, seed=1).passes("x"))
    assert drawn != list(text_of(corpus, max_sentences=37, seed=2).passes("x"))
    places = [everything.index(sentence) for sentence in drawn]
    assert places == sorted(places)
    assert list(text_of(corpus, max_sentences=400).passes("x")) == everything


def test_every_sentence_is_drawn_equally_often(tmp_path):
    path = tmp_path / "ten.txt"
    path.write_text("\n".join("abcdefghij"), "utf-8")
    counts = dict.fromkeys("abcdefghij", 0)
    for seed in range(500):
        for sentence in TrainingText([str(path)], max_sentences=3, seed=seed).passes("x"):
            counts[sentence] += 1
    # 150 each on average; chi-square with 9 degrees of freedom stays below 27.9 in 999 of 1000 cases
    assert sum((count - 150) ** 2 / 150 for count in counts.values()) < 27.9


def test_words_that_were_taken_out_are_not_learned(tmp_path):
    path = tmp_path / "wiki.txt"
    path.write_text(" = Title = \n\n <unk> walks to the <unk> and walks on . \n" * 40, "utf-8")
    text = TrainingText([str(path)], TextConfig("wikitext"))
    assert not any(UNKNOWN in line for line in text.passes("x"))
    train_wordpiece(text, str(tmp_path / "vocab.txt"), 120)
    tokens = load_vocab(str(tmp_path / "vocab.txt")).tokens
    assert "walks" in tokens and not any("unk" in token or UNKNOWN in token for token in tokens[5:])


def test_wordpiece_training_is_repeatable_and_its_vocabulary_covers_the_text(corpus, tmp_path):
    for name in ("one", "two"):
        size = train_wordpiece(text_of(corpus), str(tmp_path / name), 300)
    vocab = load_vocab(str(tmp_path / "one"))
    assert digest(tmp_path / "one") == digest(tmp_path / "two")
    assert 100 < size == len(vocab) <= 300 and vocab.tokens[:5] == SPECIAL_TOKENS
    assert all(token == token.lower() for token in vocab.tokens[5:])
    train_wordpiece(text_of(corpus), str(tmp_path / "cased"), 300, cased=True)
    assert any(token[0].isupper() for token in load_vocab(str(tmp_path / "cased")).tokens)
    encoded = lists_of(*WordPieceTokenizer(vocab).encode(list(text_of(corpus).passes("x"))))
    assert not any(vocab.unk_id in ids for ids in encoded)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
@pytest.mark.parametrize("cased", [False, True])
def test_sentencepiece_training_is_repeatable_and_its_model_spells_the_text(
    corpus, tmp_path, model_type, cased
):
    pytest.importorskip("sentencepiece")
    for name in ("one.model", "two.model"):
        size = train_sentencepiece(text_of(corpus), str(tmp_path / name), 110, cased, model_type)
    assert digest(tmp_path / "one.model") == digest(tmp_path / "two.model")
    vocab = load_sentencepiece(str(tmp_path / "one.model"))
    assert size == len(vocab) == 110
    assert vocab.tokens[:5] == SPECIAL_TOKENS and vocab.special_ids == (0, 1, 2, 3, 4)
    tokenizer = TokenizerSettings(vocab, str(tmp_path / "one.model"), cased).build()
    lines = list(text_of(corpus).passes("x"))
    encoded = lists_of(*tokenizer.encode(lines))
    assert not any(vocab.unk_id in ids for ids in encoded)
    spelled = "".join(vocab.tokens[index] for index in encoded[0]).replace("\u2581", " ").strip()
    assert spelled.replace(" .", ".") == (lines[0] if cased else lines[0].lower().replace("\u00e9", "e"))


def test_gluonnlp_takes_a_trained_model(corpus, tmp_path):
    gluonnlp = pytest.importorskip("gluonnlp")
    pytest.importorskip("sentencepiece")
    path = str(tmp_path / "m.model")
    train_sentencepiece(text_of(corpus), path, 110)
    theirs = gluonnlp.vocab.BERTVocab.from_sentencepiece(path)
    assert theirs.idx_to_token == list(load_sentencepiece(path).tokens)
    assert (theirs.padding_token, theirs.unknown_token, theirs.mask_token) == ("[PAD]", "[UNK]", "[MASK]")


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_a_vocabulary_size_that_does_not_fit_the_text(corpus, tmp_path, model_type):
    pytest.importorskip("sentencepiece")
    for vocab_size, message in ((5000, r"too large .* at most \d+ pieces"), (8, "too small .* alone are")):
        with pytest.raises(InputError, match=f"--vocab_size {vocab_size}: {message}") as caught:
            train_sentencepiece(text_of(corpus), str(tmp_path / "m"), vocab_size, model_type=model_type)
        assert "\n" not in str(caught.value) and os.listdir(tmp_path) == []


def test_bad_text_is_the_same_error_for_both_kinds(tmp_path):
    pytest.importorskip("sentencepiece")
    (tmp_path / "bad.txt").write_bytes(b"good line\n" * 50 + b"bad \xff line\n")
    (tmp_path / "blank.txt").write_bytes(b" \n\n")
    for train in (train_wordpiece, train_sentencepiece):
        for name, message in (("bad", r"bad\.txt.*line 51"), ("blank", "--input: no text to train")):
            with pytest.raises(InputError, match=message):
                train(TrainingText([str(tmp_path / f"{name}.txt")]), str(tmp_path / "out"), 150)
    assert sorted(os.listdir(tmp_path)) == ["bad.txt", "blank.txt"]


def test_the_command_writes_either_kind(corpus, tmp_path, capsys):
    pytest.importorskip("sentencepiece")
    output = tmp_path / "vocab.txt"
    assert main(["--input", str(corpus), "--output", str(output), "--vocab_size", "3000"]) == 0
    said = capsys.readouterr().out
    assert f"wrote {output}: {len(load_vocab(str(output)))} tokens, fewer than --vocab_size 3000" in said
    model = tmp_path / "m.model"
    arguments = ["--type", "sentencepiece", "--sp_model_type", "bpe", "--input", str(corpus / "*.txt")]
    arguments += ["--output", str(model), "--vocab_size", "140", "--max_sentences", "100", "--cased"]
    assert main(arguments) == 0
    said = capsys.readouterr()
    assert "training on 100 of 400 sentences" in said.err and f"wrote {model}: 140 tokens\n" == said.out
    assert len(load_sentencepiece(str(model))) == 140


def test_the_command_counts_bad_records_that_it_was_told_to_skip(tmp_path, capsys):
    (tmp_path / "t.txt").write_bytes(b"some good words here\n" * 50 + b"bad \xff line\n")
    arguments = ["--input", str(tmp_path / "t.txt"), "--output", str(tmp_path / "v"), "--vocab_size", "100"]
    assert main(arguments) == 2
    assert main([*arguments[:-1], "99"]) == 2
    assert capsys.readouterr().err.endswith("--vocab_size 99: must be at least 100\n"), (
        "the text was read first"
    )
    assert main([*arguments, "--skip_bad_records"]) == 0
    said = capsys.readouterr().err
    assert "t.txt" in said and "line 51" in said and "skipped 1 bad record" in said


def test_outputs_that_cannot_be_or_are_there(corpus, tmp_path, capsys):
    output = tmp_path / "vocab.txt"
    output.write_text("precious")
    for path, message in ((tmp_path / "no" / "v.txt", "no such directory"), (output, "is there already")):
        assert main(["--input", str(corpus), "--output", str(path), "--vocab_size", "200"]) == 2
        line = capsys.readouterr().err
        assert line.startswith("error: --output: ") and message in line and line.count("\n") == 1
    assert output.read_text() == "precious" and os.listdir(tmp_path) == ["vocab.txt"]
