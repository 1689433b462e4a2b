from __future__ import annotations

import json

import numpy as np
import pytest

from base.errors import InputError
from data.tokenizing.vocab import (
    load_vocab,
    save_vocabulary,
    vocabulary_from_pieces,
    vocabulary_from_saved,
    vocabulary_from_tokens,
)

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
