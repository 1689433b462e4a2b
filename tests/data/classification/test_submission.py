"""Submissions as the benchmark reads them, and the data set made of the embedded text."""

from __future__ import annotations

import numpy as np
import pytest

from base.errors import InputError
from data.classification.embedded import HEADER, main, pairs_of, write_tsv
from data.classification.glue import TASKS, GlueFolder, lines, write_submission
from data.classification.own import read_own
from data.text.corpus import documents
from tests.data.classification import official


def test_files_of_a_submission(tmp_path):
    official.write_task("MNLI", tmp_path)
    task = TASKS["MNLI"]
    test = GlueFolder(task, str(tmp_path)).test()
    out = tmp_path / "out" / "deep"
    files = {name: lines(each.ids, np.arange(len(each)) % 3, task.labels) for name, each in test.items()}
    write_submission(str(out), files)
    assert {path.name for path in out.iterdir()} == {"MNLI-m.tsv", "MNLI-mm.tsv", "AX.tsv"}
    assert (out / "MNLI-m.tsv").read_bytes() == (
        b"index\tprediction\n0\tcontradiction\n1\tentailment\n2\tneutral\n"
    )
    assert (out / "MNLI-mm.tsv").read_bytes() == b"index\tprediction\n1\tcontradiction\n2\tentailment\n"


def test_half_a_character_in_a_label_of_json_is_written_as_its_code(tmp_path):
    write_submission(str(tmp_path), {"own": lines(["0"], np.array([1]), ("a", "b\ud83d"))})
    assert (tmp_path / "own.tsv").read_bytes().endswith(b"\n0\tb\\ud83d\n")


def test_numbers_are_clipped_to_the_task_s_range():
    task = TASKS["STS-B"]
    values = np.array([-0.2, 5.4, 2.34567], dtype=np.float32)
    found = lines(["0", "1", "2"], values, task.labels, task.least, task.most)
    assert found == ["index\tprediction", "0\t0.000", "1\t5.000", "2\t2.346"]
    assert lines(["0"], np.array([7.5]), ())[1] == "0\t7.500"  # own files: any number


def test_what_cannot_be_written(tmp_path):
    for ids, values, labels, error in (
        (["0"], np.array([2]), ("a", "b"), ValueError),
        (["0", "1"], np.array([0]), ("a", "b"), ValueError),
        (["0"], np.array([np.nan]), (), InputError),
    ):
        with pytest.raises(error):
            lines(ids, values, labels)
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="^cannot write .*file: "):
        write_submission(str(tmp_path / "file"), {"good": ["x"]})


def test_pairs_of_the_embedded_text(embedded, tmp_path, capsys):
    words = ["--corpus", str(embedded / "corpus"), "--output", str(tmp_path), "--train_pairs", "600"]
    assert main(words) == 0 and "600 pairs to train on" in capsys.readouterr().out
    data = read_own(str(tmp_path / "train.tsv"), str(tmp_path / "dev.tsv"))
    assert data.labels == ("elsewhere", "follows") and len(data.train) == 600 and len(data.dev) > 400
    for examples in (data.train, data.dev):
        assert abs(examples.labels.mean() - 0.5) < 0.01
    # Of the held-out documents, and right: neighbours, or sentences of two documents.
    held_out = [
        list(map(" ".join, map(str.split, each))) for each in documents([str(embedded / "corpus/eval.txt")])
    ]
    homes = {sentence: number for number, text in enumerate(held_out) for sentence in text}
    follow = {pair for text in held_out for pair in zip(text, text[1:])}
    for first, second, label in zip(data.dev.first, data.dev.second, data.dev.labels):
        assert first in homes and second in homes
        if label == 0:
            assert (first, second) not in follow
    right = sum(pair in follow for pair in zip(data.dev.first, data.dev.second))
    assert right > 0.9 * data.dev.labels.sum()  # short sentences between two are left out
    before = (tmp_path / "train.tsv").read_bytes()
    assert main(words) == 0 and (tmp_path / "train.tsv").read_bytes() == before


def test_bad_corpora_for_pairs(tmp_path, capsys):
    assert main(["--corpus", str(tmp_path), "--output", str(tmp_path / "out")]) == 2
    assert "error: --corpus: no file matches" in capsys.readouterr().err and not (tmp_path / "out").exists()
    for texts in ([["one sentence of words"] * 3], [["a single sentence here"], ["and one more here"]]):
        with pytest.raises(InputError, match="^--corpus: "):
            pairs_of(texts, 10, 0)


def test_cells_stay_on_their_line(tmp_path):
    write_tsv(str(tmp_path / "t.tsv"), HEADER, [("a\tb\nc", " d ", "x")])
    assert (tmp_path / "t.tsv").read_text() == "sentence1\tsentence2\tlabel\na b c\td\tx\n"
