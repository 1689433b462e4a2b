"""Questions made of text."""

from __future__ import annotations

import json

import numpy as np
import pytest

from base.errors import InputError
from data.questions import cloze
from data.questions.cloze import ClozeSettings, make_questions, split_documents
from data.questions.squad_files import TRAIN, read_questions
from data.questions.windows import WindowSettings, make_windows
from data.tokenizing.tokenizer import TokenizerSettings


@pytest.fixture(scope="module")
def made(embedded, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cloze")
    words = ["--input", str(embedded / "corpus" / "train-0.txt"), "--output", str(folder / "out")]
    words += ["--dev_input", str(embedded / "corpus" / "eval.txt"), "--train_questions", "600"]
    assert cloze.main(words) == 0
    return folder / "out", words


def test_files_are_squads(made, vocab):
    folder, _ = made
    train = read_questions(str(folder / "train.json"), "--train_file", TRAIN)
    dev = read_questions(str(folder / "dev.json"), "--dev_file")
    assert train.version_2 and len(train) == 600 and len(dev) > 200 and train.misplaced == ()
    assert not set(train.contexts) & set(dev.contexts)
    assert 0.25 < np.mean(~train.answerable) < 0.41
    windows = make_windows(train, TokenizerSettings(vocab), WindowSettings(128, 64, 60), training=True)
    assert len(train) <= len(windows) < 1.03 * len(train), "nearly all fit into 128 tokens"
    answered = np.bincount(windows.question, weights=windows.starts > 0, minlength=len(train)) > 0
    assert (answered == train.answerable).all() and not windows.without_tokens.size


def test_a_question_is_its_sentence_without_the_answer(made):
    folder, _ = made
    content = json.loads((folder / "train.json").read_text())
    contexts = {part["context"] for article in content["data"] for part in article["paragraphs"]}
    impossible = 0
    for article in content["data"]:
        for part in article["paragraphs"]:
            for each in part["qas"]:
                before, after = each["question"].split("what", 1)
                if each["is_impossible"]:
                    impossible += 1
                    assert not (before in part["context"] and after in part["context"] and len(before) > 25)
                    continue
                ((text, start),) = ((answer["text"], answer["answer_start"]) for answer in each["answers"])
                assert part["context"][start - len(before) :].startswith(before + text + after)
                assert len(part["context"].split()) <= 40 < 60 and len(each["question"].split()) <= 16
                assert part["context"].lower().count(text.lower()) == 1 and len(text.split()) <= 2
    assert impossible and len(contexts) > 100


def test_the_same_again_and_never_over_others(made, capsys):
    folder, words = made
    before = (folder / "train.json").stat().st_mtime_ns
    assert cloze.main(words) == 0 and (folder / "train.json").stat().st_mtime_ns == before
    assert cloze.main([*words, "--seed", "1"]) == 2
    assert "train.json has other questions" in capsys.readouterr().err
    assert (folder / "train.json").stat().st_mtime_ns == before


DOCUMENTS = [
    [f"Document {name} holds the word {name}{line}z in line {line}." for line in range(6)]
    for name in ("xa", "yb", "zc")
]


def test_seeds_and_versions():
    rule = ClozeSettings(unanswerable=0.0)
    content = make_questions(DOCUMENTS, 5, rule, "train")
    assert content["version"] == "1.1" and content == make_questions(DOCUMENTS, 5, rule, "train")
    assert content != make_questions(DOCUMENTS, 5, ClozeSettings(unanswerable=0.0, seed=1), "train")
    entries = [each for article in content["data"] for part in article["paragraphs"] for each in part["qas"]]
    assert len(entries) == 5 and not any("is_impossible" in each for each in entries)
    everything = make_questions(DOCUMENTS, 10_000, ClozeSettings(unanswerable=1.0), "train")
    entries = [
        each for article in everything["data"] for part in article["paragraphs"] for each in part["qas"]
    ]
    assert everything["version"] == "v2.0" and all(each["is_impossible"] for each in entries)


def test_several_questions_of_a_sentence_and_contexts_of_one():
    texts = [
        ["One sentence alone carries seven different answers."],
        ["Another one stands here without a second."],
    ]
    assert ClozeSettings().sentences == 2
    with pytest.raises(InputError, match="no sentence"):
        make_questions(texts, 99, ClozeSettings(unanswerable=0.0), "train")
    rule = ClozeSettings(sentences=1, answer_words=1, per_sentence=4, unanswerable=0.0)
    content = make_questions(texts, 99, rule, "train")
    for article, (sentence,) in zip(content["data"], texts):
        (part,) = article["paragraphs"]
        answers = [each["answers"][0]["text"] for each in part["qas"]]
        assert part["context"] == sentence and len(set(answers)) == len(answers) == 4
        for each, answer in zip(part["qas"], answers):
            assert each["question"] == sentence.replace(answer, "what", 1)


def test_division_by_document():
    kept, held_out = split_documents(DOCUMENTS, 0.1, 0)
    assert len(held_out) == 1 and sorted(kept + held_out) == DOCUMENTS
    assert len(split_documents(DOCUMENTS, 0.99, 0)[0]) == 1


@pytest.mark.parametrize(
    "text, words, message",
    [
        ("Too short.\nAlso.\n", [], "one document cannot be divided"),
        ("Too short.\nAlso.\n\nShort.\nHere.\n", [], "no sentence of 6 to 16 words"),
        ("x\n", ["--dev_input", "INPUT"], "1 of its documents are those of --input too"),
        ("x\n", ["--dev_share", "1"], "dev_share"),
        ("x\n", ["--unanswerable", "2"], "unanswerable"),
    ],
)
def test_bad_input_is_one_line(tmp_path, capsys, text, words, message):
    path = tmp_path / "text.txt"
    path.write_text(text)
    words = [str(path) if each == "INPUT" else each for each in words]
    assert cloze.main(["--input", str(path), "--output", str(tmp_path / "out"), *words]) == 2
    error = capsys.readouterr().err
    assert message in error and error.startswith("error: ") and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_unanswerable_questions_need_another_document():
    with pytest.raises(InputError, match="another document; there is one only"):
        make_questions(DOCUMENTS[:1], 5, ClozeSettings(), "train")
