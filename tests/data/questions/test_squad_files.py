"""SQuAD's files: what is read, what is rejected and how; how questions are divided, and made of text."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest

from base.errors import InputError
from data.questions import cloze
from data.questions.cloze import ClozeSettings, make_questions, split_documents
from data.questions.squad_files import PREDICT, SCORE, TRAIN, check_disjoint, read_questions, split_by_article
from data.questions.windows import WindowSettings, make_windows
from data.tokenizing.tokenizer import TokenizerSettings
from tests.data.questions.squad import REASON, SHARED, about, question, squad, written

CONTEXT = "Tabs\tand  two spaces. Zoë lives in 東京 since 1999."


def test_fields_of_both_versions(tmp_path):
    first = about(CONTEXT, "Zoë", "東京")
    questions = read_questions(written(tmp_path / "1.json", first), "--train_file", TRAIN)
    assert questions.ids == ("q0", "q1") and questions.contexts == (CONTEXT,)
    assert not questions.version_2 and questions.answerable.all()
    assert [questions.answer(0), questions.answer(1)] == ["Zoë", "東京"]
    second = squad(
        (CONTEXT, [question("a", "Where?", ("東京", CONTEXT.index("東京")), impossible=False)]),
        ("Nothing here.", [question("b", "Why?", impossible=True)]),
    )
    questions = read_questions(written(tmp_path / "2.json", second), "--train_file", TRAIN)
    assert questions.version_2 and questions.answerable.tolist() == [True, False]
    assert questions.golds == (("東京",), ()) and questions.answer(1) == ""
    assert questions.article_of.tolist() == questions.context_of.tolist() == [0, 1]


def test_a_byte_order_mark_and_a_long_context(tmp_path):
    context = "word " * 25_000 + "end"
    path = tmp_path / "long.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(about(context, "end")).encode())
    questions = read_questions(str(path), "--train_file", TRAIN)
    assert len(questions.contexts[0]) > 100_000 and questions.answer(0) == "end"


def broken(change):
    """A file after `change`, which is given its one paragraph and its two questions."""
    content = about(CONTEXT, "Zoë", "東京")
    part = content["data"][0]["paragraphs"][0]
    change(part, *part["qas"])
    return content


@pytest.mark.parametrize(
    "content, message",
    [
        ('{"data": [}', "not JSON: .* at line 1, column 11"),
        ("", "not JSON: .* at line 1"),
        ("[" * 100_000, "nested too deeply"),
        ("[]", "top level: 'data' is missing or no list"),
        ({"data": {}}, "'data' is missing or no list"),
        ({"data": [3]}, r"data\[0\]: no object"),
        ({"data": []}, "no questions in it"),
        ({"data": [{"title": "x"}]}, r"data\[0\]: 'paragraphs' is missing"),
        (broken(lambda part, *_: part.pop("context")), r"data\[0\].paragraphs\[0\]: 'context' is missing"),
        (broken(lambda part, *_: part.update(context=" \n")), r"paragraphs\[0\]: its context is empty"),
        (broken(lambda part, *_: part.pop("qas")), r"paragraphs\[0\]: 'qas' is missing"),
        (broken(lambda _, one, two: two.pop("id")), r"qas\[1\]: 'id' is missing"),
        (broken(lambda _, one, two: two.update(id=None)), r"qas\[1\]: 'id' is missing"),
        (broken(lambda _, one, two: two.update(id="q0")), r"qas\[1\]: the id q0 is that of .*qas\[0\]"),
        (broken(lambda _, one, two: one.pop("question")), r"qas\[0\]: 'question' is missing"),
        (broken(lambda _, one, two: one.pop("answers")), "q0 has no answers .* is this a test file"),
        (broken(lambda _, one, two: one.update(is_impossible=True)), "impossible and has answers"),
        (broken(lambda _, one, two: one.update(is_impossible="no")), "true or false"),
        (broken(lambda _, one, two: one.update(answers=["x"])), "list of objects"),
        (broken(lambda _, one, two: one["answers"][0].pop("text")), "'text' is missing"),
        (broken(lambda _, one, two: one["answers"][0].update(answer_start="3")), "'answer_start' is"),
        (broken(lambda _, one, two: one["answers"].extend(two["answers"])), "q0 has 2 answers; .* file"),
        (
            broken(lambda _, one, two: one["answers"][0].update(answer_start=1)),
            "1 of 2 answers do not stand at their 'answer_start'.*: questions q0; ",
        ),
    ],
)
def test_bad_files_are_one_line(tmp_path, content, message):
    path = written(tmp_path / "bad.json", content)
    with pytest.raises(InputError, match=message) as raised:
        read_questions(path, "--train_file", TRAIN)
    assert str(raised.value).startswith(f"--train_file {path}: ") and "\n" not in str(raised.value)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match="--dev_file .*: cannot be read: No such file"):
        read_questions(str(tmp_path / "none.json"), "--dev_file")
    (tmp_path / "latin.json").write_bytes('{"data": "é"}'.encode("latin-1"))
    with pytest.raises(InputError, match="byte 10 is not UTF-8"):
        read_questions(str(tmp_path / "latin.json"), "--dev_file")


def misplaced(num_good: int, num_bad: int):
    context = "alpha beta gamma"
    content = about(context, *["beta"] * (num_good + num_bad))
    for entry in content["data"][0]["paragraphs"][0]["qas"][:num_bad]:
        entry["answers"][0]["answer_start"] += 1
    return content


def test_misplaced_answers_up_to_one_in_a_hundred(tmp_path):
    path = written(tmp_path / "some.json", misplaced(198, 2))
    train = read_questions(path, "--train_file", TRAIN)
    assert train.misplaced == ("q0", "q1") and len(train) == 198 and "q1" not in train.ids
    score = read_questions(path, "--dev_file", SCORE)
    assert score.misplaced == ("q0", "q1") and len(score) == 200, "official scores compare texts alone"
    path = written(tmp_path / "many.json", misplaced(197, 3))
    for purpose in (TRAIN, SCORE):
        with pytest.raises(InputError, match="3 of 200 answers .* more than 1%: questions q0, q1, q2; "):
            read_questions(path, "--train_file", purpose)
    assert len(read_questions(path, "--predict_file", PREDICT)) == 200


def test_a_context_that_all_misplaced_questions_had_is_gone(tmp_path):
    content = misplaced(199, 0)
    content["data"].append(copy.deepcopy(content["data"][0]))
    other = content["data"][1]["paragraphs"][0]
    other["context"] = "delta"
    other["qas"] = [question("lost", "?", ("elta", 0))]
    train = read_questions(written(tmp_path / "x.json", content), "--train_file", TRAIN)
    assert train.contexts == ("alpha beta gamma",) and train.misplaced == ("lost",)


def test_purposes(tmp_path):
    blind = about(CONTEXT, "Zoë")
    del blind["data"][0]["paragraphs"][0]["qas"][0]["answers"]
    path = written(tmp_path / "blind.json", blind)
    assert read_questions(path, "--predict_file", PREDICT).golds == ((),)
    with pytest.raises(InputError, match="is this a test file"):
        read_questions(path, "--dev_file", SCORE)
    several = about(CONTEXT, "Zoë")
    entry = several["data"][0]["paragraphs"][0]["qas"][0]
    entry["answers"].append({"text": "東京", "answer_start": CONTEXT.index("東京")})
    path = written(tmp_path / "several.json", several)
    assert read_questions(path, "--dev_file", SCORE).golds == (("Zoë", "東京"),)
    assert read_questions(path, "--train_file", TRAIN, first_gold=True).golds == (("Zoë",),)


def test_the_file_to_evaluate_on_in_place_of_the_one_to_train_on(tmp_path):
    path = written(tmp_path / "x.json", about(CONTEXT, "Zoë"))
    train, dev = read_questions(path, "--train_file", TRAIN), read_questions(path, "--dev_file")
    with pytest.raises(InputError, match="1 of its questions are those of --dev_file .*, such as q0"):
        check_disjoint(train, dev)
    check_disjoint(train, dev.select([]))


def test_division_by_article(tmp_path):
    paragraphs = [
        (f"context {number}", [question(f"{number}-{each}", "?", ("context", 0)) for each in range(5)])
        for number in range(20)
    ]
    questions = read_questions(written(tmp_path / "x.json", squad(*paragraphs)), "--train_file", TRAIN)
    rest, held_out = split_by_article(questions, 0.1, 3)
    assert not set(rest.article_of.tolist()) & set(held_out.article_of.tolist())
    assert len(held_out) == 10 and sorted(rest.ids + held_out.ids) == sorted(questions.ids)
    assert all(held_out.contexts[each].startswith("context") for each in held_out.context_of)
    assert len(held_out.contexts) == 2
    assert split_by_article(questions, 0.1, 3)[1].ids == held_out.ids
    assert split_by_article(questions, 0.1, 4)[1].ids != held_out.ids
    for share in (1e-9, 1.0):  # neither part is ever empty
        assert all(len(part) >= 5 for part in split_by_article(questions, share, 0))
    with pytest.raises(InputError, match="one article"):
        split_by_article(questions.select([0, 1]), 0.1, 0)


@pytest.mark.skipif(not SHARED.exists(), reason=REASON)
def test_real_articles():
    questions = read_questions(str(SHARED), "--dev_file")
    assert len(questions) == 779 and questions.version_2 and questions.misplaced == ()
    assert int(questions.answerable.sum()) == 400 and len(set(questions.article_of)) == 3
    with pytest.raises(InputError, match="is this the file to evaluate on"):
        read_questions(str(SHARED), "--train_file", TRAIN)
    rest, held_out = split_by_article(questions, 0.3, 0)
    assert (len(set(rest.article_of)), len(set(held_out.article_of))) == (2, 1)


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
