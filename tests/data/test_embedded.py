from __future__ import annotations

import json

import pytest

from base.errors import InputError
from data.embedded import build, finished, main, prose_sentences
from data.text.corpus import documents
from data.tokenizing.vocab import SPECIAL_TOKENS, load_vocab

PROSE = """Return the answer, e.g. a number. It may be negative! A sentence with a \0 in it is none of prose.

    >>> answer()
    42

Arguments:

    x = compute(1) + 2

A list follows here:

* the first thing that matters
* the second thing that matters
  goes on in a second line

====================
if x == 1: return None
spam(eggs, ham=1)[0] <= {}

"Quoted sentences end." Then comes another one.
"""


def test_prose_is_split_and_code_is_dropped():
    assert list(prose_sentences(PROSE)) == [
        "Return the answer, e.g. a number.",
        "It may be negative!",
        "A list follows here:",
        "the first thing that matters",
        "the second thing that matters goes on in a second line",
        '"Quoted sentences end."',
        "Then comes another one.",
    ]


def test_the_corpus_is_english_of_the_right_size(embedded):
    with open(embedded / "corpus.json", encoding="utf-8") as handle:
        report = json.load(handle)
    train = list(documents([str(embedded / "corpus" / f"train-{index}.txt") for index in range(8)]))
    held_out = list(documents([str(embedded / "corpus" / "eval.txt")]))
    assert report["bytes"] > 1_000_000 and report["documents"] == len(train) > 200
    assert 10 <= report["eval_documents"] == len(held_out)
    size = sum(len(line) for document in train for line in document)
    share = sum(len(line) for document in held_out for line in document) / size
    assert 0.02 < share < 0.04
    assert {tuple(document) for document in train}.isdisjoint(tuple(document) for document in held_out)
    words = " ".join(line for document in train for line in document).lower().split()
    assert words.count("the") > 0.04 * len(words)
    assert 4.0 < report["unigram_entropy"] < 7.5


def test_the_vocabulary_is_whole_and_without_unknown_english(embedded, vocab, store):
    assert vocab.tokens[:5] == SPECIAL_TOKENS and len(vocab) == 2000
    assert (store.ids == vocab.unk_id).mean() < 0.001


def test_the_command_says_what_there_is(embedded, capsys):
    assert main(["--output", str(embedded), "--vocab_size", "2000"]) == 0
    assert "unigram entropy" in capsys.readouterr().out


def test_building_again_does_nothing_until_something_is_missing(tmp_path, library):
    """And tests and broken sources are left out."""

    def stamps():
        return {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}

    build(str(tmp_path), 300, library)
    assert not any("ylophone" in path.read_text("utf-8") for path in tmp_path.glob("corpus/*"))
    before = stamps()
    build(str(tmp_path), 300, library)
    assert stamps() == before
    report = build(str(tmp_path), 310, library)
    assert len(load_vocab(str(tmp_path / "vocab.txt"))) == report["vocab_size"] == 310
    assert finished(str(tmp_path), report["settings"]) == report
    (tmp_path / "vocab.txt").unlink()
    assert finished(str(tmp_path), report["settings"]) is None


@pytest.fixture
def library(tmp_path_factory):
    """A small standard library: enough words, a test directory, a broken file and no help pages."""
    root = tmp_path_factory.mktemp("library")
    text = "the quick brown fox jumps over lazy dogs while many good people watch it from their houses"
    words = text.split(" ")
    for module in range(40):
        sentences = ""
        for line in range(180):
            number = "".join(chr(97 + each) for each in (module % 26, line % 26, line // 26))
            chosen = (words[(line * 7 + place * (module + 1)) % len(words)] for place in range(12))
            sentences += f"{' '.join(chosen).capitalize()} number {number}.\n"
        (root / f"module{module}.py").write_text(f'"""{sentences}"""\n', encoding="utf-8")
    (root / "broken.py").write_text("def (:\n", encoding="utf-8")
    (root / "test").mkdir()
    (root / "test" / "test_x.py").write_text('"""Xylophone xylophone xylophone."""\n', encoding="utf-8")
    return str(root)


def test_too_little_text_says_what_to_install(tmp_path):
    (tmp_path / "lib").mkdir()
    with pytest.raises(InputError, match="only 0.00 MB of English .* install"):
        build(str(tmp_path / "out"), 300, str(tmp_path / "lib"))
    assert not (tmp_path / "out").exists()


def test_the_command_reports_bad_input_in_one_line(tmp_path, capsys):
    assert main(["--output", str(tmp_path / "out"), "--vocab_size", "5"]) == 2
    assert capsys.readouterr().err == "error: --vocab_size 5: must be at least 100\n"
