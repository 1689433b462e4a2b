"""Files of one's own: the same examples in every format, and one line for everything that is wrong."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from base.errors import InputError
from data.classification.own import Columns, OwnFiles, parse_columns, read_own

ROWS = [
    ('He said "no"', "tab, comma", "yes"),
    ("caf\u00e9", "x\u2028y", "no"),
    ("a", "b", "yes"),
    (" c ", "d", "maybe"),
]
NAMES = ("sentence1", "sentence2", "label")


def tsv(path, rows, header=NAMES):
    path.write_text("".join("\t".join(row) + "\n" for row in (header, *rows) if row), "utf-8")
    return str(path)


def as_csv(path, rows, header=NAMES):
    with open(path, "w", newline="", encoding="utf-8-sig") as handle:
        csv.writer(handle).writerows([header, *rows])
    return str(path)


def json_lines(path, rows, header=NAMES):
    path.write_text("".join(json.dumps(dict(zip(header, row))) + "\n" for row in rows), "utf-8")
    return str(path)


WRITERS = {"t.tsv": tsv, "t.csv": as_csv, "t.jsonl": json_lines}


@pytest.mark.parametrize("name", WRITERS)
def test_formats_hold_the_same(tmp_path, name):
    data = read_own(OwnFiles(WRITERS[name](tmp_path / name, ROWS)))
    assert data.labels == ("maybe", "no", "yes") and data.dev is None and data.test is None
    assert list(zip(data.train.first, data.train.second)) == [row[:2] for row in ROWS]
    assert data.train.labels.tolist() == [2, 1, 2, 0] and data.train.ids == ["0", "1", "2", "3"]


def test_csv_cells_may_have_line_breaks(tmp_path):
    path = as_csv(tmp_path / "t.csv", [("one\ntwo", "b", "0"), ("c", "d", "1"), ("e", "", "1")])
    with pytest.raises(InputError, match=r"t.csv, line 5: the text in 'sentence2' is empty"):
        read_own(OwnFiles(path))
    data = read_own(OwnFiles(path), Columns(("sentence1",)))
    assert data.train.first == ["one\ntwo", "c", "e"] and data.train.second is None


def test_columns_by_name_and_by_position(tmp_path):
    named = tsv(tmp_path / "named.tsv", [("1", "x", "q"), ("0", "y", "r")], ("target", "body", "other"))
    bare = tsv(tmp_path / "bare.tsv", [("1", "x", "q"), ("0", "y", "r")], ())
    for path, columns in ((named, parse_columns("body", "target")), (bare, parse_columns("2", "1"))):
        data = read_own(OwnFiles(path), columns)
        assert data.train.first == ["x", "y"] and data.train.labels.tolist() == [1, 0]
    assert read_own(OwnFiles(bare), parse_columns("3, 2", "1")).train.second == ["x", "y"]
    with pytest.raises(InputError, match="has the columns target, body, other; name those of the texts"):
        read_own(OwnFiles(named))
    with pytest.raises(InputError, match="has no column 'bdy', but target, body, other"):
        read_own(OwnFiles(named), parse_columns("bdy", "target"))
    with pytest.raises(InputError, match="has no column 'label'; give --label_column"):
        read_own(OwnFiles(named), parse_columns("body", None))
    for texts, label in (("1,2,3", "4"), ("a,a", "b"), ("1,b", "c"), ("1", None), ("0", "1"), ("a,", "b")):
        with pytest.raises(InputError, match="^--text_columns"):
            parse_columns(texts, label)


@pytest.mark.parametrize(
    ("header", "first", "second"),
    [
        (("label", "text_a"), "text_a", None),
        (("text_a", "text_b", "label"), "text_a", "text_b"),
        (("idx", "question", "sentence", "label"), "question", "sentence"),
        (("sentence", "score"), "sentence", None),
    ],
)
def test_usual_names_of_columns(tmp_path, header, first, second):
    rows = [tuple(f"{name} {n}" for name in header) for n in range(2)]
    train = read_own(OwnFiles(tsv(tmp_path / "t.tsv", rows, header))).train
    assert train.first == [f"{first} 0", f"{first} 1"] and train.labels.tolist() == [0, 1]
    assert train.second == (second and [f"{second} 0", f"{second} 1"])


def test_dev_and_test_use_the_labels_of_training(tmp_path):
    train, dev = tsv(tmp_path / "train.tsv", ROWS), tsv(tmp_path / "dev.tsv", ROWS[1:3])
    test = tsv(tmp_path / "test.tsv", [row[:2] for row in ROWS], NAMES[:2])
    data = read_own(OwnFiles(train, dev, test))
    assert data.dev.labels.tolist() == [1, 2] and data.test.labels is None and len(data.test) == 4
    assert read_own(OwnFiles(train, dev), labels=("yes", "no", "maybe")).dev.labels.tolist() == [1, 0]
    with pytest.raises(InputError, match=r"train.tsv, line 5: the label 'maybe' is none of 'yes', 'no'"):
        read_own(OwnFiles(train, dev), labels=("yes", "no"))
    single = tsv(tmp_path / "single.tsv", [("a", "yes")], ("sentence", "label"))
    with pytest.raises(InputError, match="--train_file has 2 text columns, but another file has 1"):
        read_own(OwnFiles(train, single))


def test_regression(tmp_path):
    rows = [("a", "b", "0.25"), ("c", "d", "3"), ("e", "f", "-1e1")]
    path = tsv(tmp_path / "t.tsv", rows)
    data = read_own(OwnFiles(path), regression=True)
    assert data.labels == () and data.train.labels.dtype == np.float32
    assert data.train.labels.tolist() == [0.25, 3.0, -10.0]
    with pytest.raises(InputError, match="^--train_file: .*t.tsv: .*numbers to predict.*give --regression"):
        read_own(OwnFiles(path))
    numbers = json_lines(tmp_path / "t.jsonl", [("a", "b", 0.25), ("c", "d", 3)])
    assert read_own(OwnFiles(numbers), regression=True).train.labels.tolist() == [0.25, 3.0]
    classes = tsv(tmp_path / "classes.tsv", ROWS)
    with pytest.raises(InputError, match="classes.tsv, line 2: 'yes' is no number"):
        read_own(OwnFiles(classes), regression=True)
    with pytest.raises(InputError, match="regression task"):
        read_own(OwnFiles(classes, tsv(tmp_path / "dev.tsv", rows)))


def test_whole_numbers_are_classes(tmp_path):
    path = json_lines(tmp_path / "t.jsonl", [("a", "b", 1), ("c", "d", 0), ("e", "f", True)])
    with pytest.raises(InputError, match="none of '0', '1'"):
        read_own(OwnFiles(path), labels=("0", "1"))
    path = json_lines(tmp_path / "t.jsonl", [("a", "b", 1), ("c", "d", 0)])
    assert read_own(OwnFiles(path)).labels == ("0", "1")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.tsv", b"", "^--train_file: .*t.tsv is empty"),
        ("t.tsv", b"sentence\tlabel\n", "t.tsv has no examples"),
        ("t.tsv", b"sentence\tlabel\na\t0\nb\n", "^--train_file: .*t.tsv, line 3: 1 column, not 2; repair"),
        ("t.tsv", b"sentence\tlabel\na\t0\n\nb\t1\n", "t.tsv, line 3: the line is empty"),
        ("t.tsv", b"sentence\tlabel\na\t0\n \t1\n", "t.tsv, line 3: the text in 'sentence' is empty"),
        ("t.tsv", b"sentence\tlabel\na\t0\nb\t\n", "t.tsv, line 3: there is no label in 'label'"),
        ("t.tsv", b"sentence\tlabel\na\t0\nb\t0\n", "every label is '0'; there is nothing to learn from one"),
        ("t.tsv", b"sentence\tlabel\na\xff\t0\n", "t.tsv, line 2: not UTF-8 text; convert"),
        ("t.csv", b'sentence,label\n"a,0\n', "t.csv, line 2: bad CSV: unexpected end of data"),
        ("t.jsonl", b'{"sentence": "a", "label": 0}\n{"sentence": "b"}\n', "line 2: no 'label', which the"),
        ("t.jsonl", b'{"sentence": "a", "label": 0}\n{"sent\n', "t.jsonl, line 2: no JSON; repair"),
        ("t.jsonl", b'[1, 2]\n{"sentence": "a", "label": 0}\n', "t.jsonl, line 1: no JSON object"),
        ("t.jsonl", b'{"sentence": null, "label": 0}\n', "line 1: the text in 'sentence' is empty"),
        ("t.jsonl", b"[" * 100000 + b"\n", "t.jsonl, line 1: "),
        ("t.parquet", b"PAR1", r"^--train_file: .*t.parquet: the name has to end with .tsv"),
        (".", b"", "^--train_file: "),
    ],
)
def test_bad_files(tmp_path, name, content, message):
    if name != ".":
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_own(OwnFiles(str(tmp_path / name)))
    assert "\n" not in str(caught.value)


def test_bad_choices_of_files_and_labels(tmp_path):
    train = tsv(tmp_path / "train.tsv", ROWS)
    copy = tsv(tmp_path / "copy.tsv", ROWS)
    for dev in (train, copy):
        with pytest.raises(InputError, match=r"^--dev_file: .* has the content of --train_file"):
            read_own(OwnFiles(train, dev))
    with pytest.raises(InputError, match="^--train_file: cannot read .*none.tsv: No such file"):
        read_own(OwnFiles(str(tmp_path / "none.tsv")))
    with pytest.raises(InputError, match="cannot read .*none.tsv"):
        read_own(OwnFiles(train, str(tmp_path / "none.tsv")))
    for labels in (("a",), ("a", "a")):
        with pytest.raises(InputError, match="^--labels "):
            read_own(OwnFiles(train), labels=labels)
    with pytest.raises(InputError, match="^--labels"):
        read_own(OwnFiles(train), labels=("a", "b"), regression=True)
    many = tsv(tmp_path / "many.tsv", [(f"{n}", "b", f"text {n}") for n in range(1200)])
    with pytest.raises(InputError, match="1200 different labels.*is another column the label"):
        read_own(OwnFiles(many))
    with pytest.raises(InputError, match="JSON lines, whose texts have names"):
        read_own(OwnFiles(json_lines(tmp_path / "t.jsonl", ROWS)), parse_columns("1,2", "3"))
