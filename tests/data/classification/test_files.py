"""Official files and one's own: every form with what is odd about it, and one line for what is wrong."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from base.errors import InputError
from data.classification.examples import check_files_differ
from data.classification.glue import TASKS, GlueFolder, find_task
from data.classification.own import Columns, parse_columns, read_own
from tests.data.classification import official


@pytest.fixture
def folder_of(tmp_path):
    def make(name: str, language: str = "de") -> GlueFolder:
        official.write_task(name, tmp_path)
        return GlueFolder(TASKS[name], str(tmp_path), language)

    return make


@pytest.mark.parametrize("name", sorted(TASKS))
def test_every_task_is_read(folder_of, name):
    folder = folder_of(name)
    task, train = folder.task, folder.train()
    for examples in (train, *folder.dev().values(), *folder.test().values()):
        assert len(examples) == len(examples.ids) > 0
        assert (examples.second is None) == (name in ("CoLA", "SST-2"))
        if examples.second is not None:
            assert len(examples.second) == len(examples)
    assert train.labels.dtype == (np.float32 if name == "STS-B" else np.int32)
    assert task.regression == (name == "STS-B")
    assert list(folder.dev()) == (["m", "mm"] if name == "MNLI" else ["dev"])
    assert list(folder.test()) == (["MNLI-m", "MNLI-mm", "AX"] if name == "MNLI" else [name])
    assert all((each.labels is None) == (name != "XNLI") for each in folder.test().values())
    check_files_differ(folder.files())


def test_a_task_s_own_folder_and_its_parent_are_both_data_dir(folder_of, tmp_path):
    above = folder_of("RTE")
    inside = GlueFolder(TASKS["RTE"], str(tmp_path / "RTE"))
    assert above.train().first == inside.train().first == [f"First {n}" for n in range(4)]


def test_cola_has_no_header_and_no_quoting(folder_of):
    folder = folder_of("CoLA")
    train = folder.train()
    assert train.first == ['The door says "push.', "Door the says.", "caf\u00e9 opens"]
    assert train.labels.tolist() == [1, 0, 1]
    # Every line of a test file has to be predicted, also one without a text.
    assert folder.test()["CoLA"].first == ["A test.", ""] and folder.test()["CoLA"].ids == ["0", "1"]


def test_mrpc_begins_with_a_byte_order_mark(folder_of):
    train = folder_of("MRPC").train()
    assert train.first[0] == 'He said "go' and train.second[0] == "Go , he said"
    assert train.labels.tolist() == [1, 0]


def test_mrpc_of_its_authors_is_split_as_glue_does(folder_of, tmp_path):
    official.msr(tmp_path / "MRPC")
    folder = GlueFolder(TASKS["MRPC"], str(tmp_path))
    assert folder.train().first == ['He said "go', "One thing ."] and folder.train().labels.tolist() == [1, 0]
    assert folder.dev()["dev"].first == ["Rain fell"] and folder.test()["MRPC"].ids == ["0"]
    assert folder.files() == {}  # both splits are of one file
    (tmp_path / "MRPC" / "dev_ids.tsv").unlink()
    with pytest.raises(InputError, match="put dev_ids.tsv beside it"):
        folder.train()


def test_stsb_has_numbers(folder_of):
    folder = folder_of("STS-B")
    assert folder.train().labels.tolist() == [4.75, 0.5]
    assert folder.train().second == ["A man is singing.", "A cat."]


def test_qqp_s_broken_lines_are_left_out_and_listed(folder_of):
    train = folder_of("QQP").train()
    assert len(train) == 299 and train.first[0] == 'Is "0 even?'
    assert len(train.skipped) == 2
    assert train.skipped[0].endswith("QQP/train.tsv, line 202: 4 columns, not 6")


def test_mnli_takes_the_gold_label_of_either_form(folder_of):
    folder = folder_of("MNLI")
    assert folder.train().labels.tolist() == folder.dev()["m"].labels.tolist() == [2, 1, 0]
    assert folder.train().first[2] == "Premise 2." and folder.test()["MNLI-mm"].ids == ["1", "2"]


def test_rte_s_labels_have_the_order_of_the_task_not_of_the_file(folder_of):
    assert folder_of("RTE").train().labels.tolist() == [1, 0, 1, 0]


def test_xnli_is_of_one_language(folder_of, tmp_path):
    folder = folder_of("XNLI")
    assert folder.train().labels.tolist() == [1, 0]  # "contradictory" is contradiction
    assert folder.dev()["dev"].first == ["Nein.", "Nie."] and folder.dev()["dev"].labels.tolist() == [2, 0]
    assert folder.test()["XNLI"].labels.tolist() == [2]
    with pytest.raises(InputError, match="no multinli.train.fr.tsv"):
        GlueFolder(TASKS["XNLI"], str(tmp_path), "fr")


def test_names_of_tasks():
    assert find_task("mrpc").name == "MRPC" and find_task("SST").name == find_task("sst-2").name == "SST-2"
    with pytest.raises(InputError, match="^--task_name SQUAD: there are CoLA, SST-2, "):
        find_task("SQUAD")


def change(path, old: str, new: str) -> None:
    text = path.read_bytes().decode("utf-8")
    assert old in text
    path.write_bytes(text.replace(old, new).encode("utf-8"))


@pytest.mark.parametrize(
    ("name", "file", "old", "new", "message"),
    [
        ("RTE", "train.tsv", "\tentailment", "\tmaybe", r"line 3: the label 'maybe' is none of 'entailment'"),
        ("RTE", "dev.tsv", "\tSecond 1", "", r"dev.tsv, line 3: 3 columns, not 4; 1 of 2 lines"),
        ("RTE", "train.tsv", "First 2", " ", "line 4: .* is empty; 1 of 4 lines are like this, above 1%"),
        ("RTE", "train.tsv", "\tentailment", "\tnot_entailment", "train.tsv: every label is the same in 4 e"),
        ("RTE", "test.tsv", "\tSecond 1", "", r"test.tsv, line 3: 2 columns, not 3; download"),
        ("RTE", "train.tsv", "sentence1", "text", r"tsv has no column 'sentence1' \(it has index, text,"),
        ("RTE", "train.tsv", "sentence2", "sentence1", "has the column 'sentence1' twice"),
        ("WNLI", "train.tsv", "\t1\n", "\t2.75\n", "line 3: .*; is this a file of a regression task"),
        ("STS-B", "train.tsv", "4.750", "entailment", "line 2: 'entailment' is no number"),
        ("STS-B", "train.tsv", "4.750", "50", "line 2: the label 50 is not from 0 to 5"),
        ("STS-B", "train.tsv", "4.750", "nan", "line 2: 'nan' is no number"),
        ("STS-B", "train.tsv", "4.750", "0.5", "every number is the same"),
        ("CoLA", "train.tsv", "gj04\t1\t\t", "", r"train.tsv, line 1: 1 column, not 4"),
        ("CoLA", "dev.tsv", "the", "th\x00e", r"dev.tsv, line 2: not UTF-8 text"),
    ],
)
def test_bad_official_files(folder_of, tmp_path, name, file, old, new, message):
    folder = folder_of(name)
    change(tmp_path / name / file, old, new)
    with pytest.raises(InputError, match=message) as caught:
        folder.train(), folder.dev(), folder.test()
    assert "\n" not in str(caught.value) and str(caught.value).startswith(("--data_dir: ", str(tmp_path)))


def test_missing_and_equal_files(folder_of, tmp_path):
    folder = folder_of("RTE")
    with pytest.raises(InputError, match="^--data_dir: there is no folder"):
        GlueFolder(TASKS["RTE"], str(tmp_path / "none"))
    (tmp_path / "RTE" / "dev.tsv").write_bytes((tmp_path / "RTE" / "train.tsv").read_bytes())
    with pytest.raises(InputError, match="has the content of train"):
        check_files_differ(folder.files())
    (tmp_path / "RTE" / "dev.tsv").unlink()
    with pytest.raises(InputError, match="there is no dev.tsv of RTE in"):
        GlueFolder(TASKS["RTE"], str(tmp_path))


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
    data = read_own(WRITERS[name](tmp_path / name, ROWS))
    assert data.labels == ("maybe", "no", "yes") and data.dev is None and data.test is None
    assert list(zip(data.train.first, data.train.second)) == [row[:2] for row in ROWS]
    assert data.train.labels.tolist() == [2, 1, 2, 0] and data.train.ids == ["0", "1", "2", "3"]


def test_csv_cells_may_have_line_breaks(tmp_path):
    path = as_csv(tmp_path / "t.csv", [("one\ntwo", "b", "0"), ("c", "d", "1"), ("e", "", "1")])
    with pytest.raises(InputError, match=r"t.csv, line 5: the text in 'sentence2' is empty"):
        read_own(path)
    data = read_own(path, columns=Columns(("sentence1",)))
    assert data.train.first == ["one\ntwo", "c", "e"] and data.train.second is None


def test_columns_by_name_and_by_position(tmp_path):
    named = tsv(tmp_path / "named.tsv", [("1", "x", "q"), ("0", "y", "r")], ("target", "body", "other"))
    bare = tsv(tmp_path / "bare.tsv", [("1", "x", "q"), ("0", "y", "r")], ())
    for path, columns in ((named, parse_columns("body", "target")), (bare, parse_columns("2", "1"))):
        data = read_own(path, columns=columns)
        assert data.train.first == ["x", "y"] and data.train.labels.tolist() == [1, 0]
    assert read_own(bare, columns=parse_columns("3, 2", "1")).train.second == ["x", "y"]
    with pytest.raises(InputError, match="has the columns target, body, other; name those of the texts"):
        read_own(named)
    with pytest.raises(InputError, match="has no column 'bdy', but target, body, other"):
        read_own(named, columns=parse_columns("bdy", "target"))
    with pytest.raises(InputError, match="has no column 'label'; give --label_column"):
        read_own(named, columns=parse_columns("body", None))
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
    train = read_own(tsv(tmp_path / "t.tsv", rows, header)).train
    assert train.first == [f"{first} 0", f"{first} 1"] and train.labels.tolist() == [0, 1]
    assert train.second == (second and [f"{second} 0", f"{second} 1"])


def test_dev_and_test_use_the_labels_of_training(tmp_path):
    train, dev = tsv(tmp_path / "train.tsv", ROWS), tsv(tmp_path / "dev.tsv", ROWS[1:3])
    test = tsv(tmp_path / "test.tsv", [row[:2] for row in ROWS], NAMES[:2])
    data = read_own(train, dev, test)
    assert data.dev.labels.tolist() == [1, 2] and data.test.labels is None and len(data.test) == 4
    assert read_own(train, dev, labels=("yes", "no", "maybe")).dev.labels.tolist() == [1, 0]
    with pytest.raises(InputError, match=r"train.tsv, line 5: the label 'maybe' is none of 'yes', 'no'"):
        read_own(train, dev, labels=("yes", "no"))
    single = tsv(tmp_path / "single.tsv", [("a", "yes")], ("sentence", "label"))
    with pytest.raises(InputError, match="--train_file has 2 text columns, but another file has 1"):
        read_own(train, single)


def test_regression(tmp_path):
    rows = [("a", "b", "0.25"), ("c", "d", "3"), ("e", "f", "-1e1")]
    path = tsv(tmp_path / "t.tsv", rows)
    data = read_own(path, regression=True)
    assert data.labels == () and data.train.labels.dtype == np.float32
    assert data.train.labels.tolist() == [0.25, 3.0, -10.0]
    with pytest.raises(InputError, match="^--train_file: .*t.tsv: .*numbers to predict.*give --regression"):
        read_own(path)
    huge = tsv(tmp_path / "huge.tsv", [*rows, ("g", "h", "1e39")])  # more than float32 holds
    with pytest.raises(InputError, match="huge.tsv, line 5: the label 1e39 is not from -3.4"):
        read_own(huge, regression=True)
    numbers = json_lines(tmp_path / "t.jsonl", [("a", "b", 0.25), ("c", "d", 3)])
    assert read_own(numbers, regression=True).train.labels.tolist() == [0.25, 3.0]
    classes = tsv(tmp_path / "classes.tsv", ROWS)
    with pytest.raises(InputError, match="classes.tsv, line 2: 'yes' is no number"):
        read_own(classes, regression=True)
    with pytest.raises(InputError, match="regression task"):
        read_own(classes, tsv(tmp_path / "dev.tsv", rows))


def test_whole_numbers_are_classes(tmp_path):
    path = json_lines(tmp_path / "t.jsonl", [("a", "b", 1), ("c", "d", 0), ("e", "f", True)])
    with pytest.raises(InputError, match="none of '0', '1'"):
        read_own(path, labels=("0", "1"))
    path = json_lines(tmp_path / "t.jsonl", [("a", "b", 1), ("c", "d", 0)])
    assert read_own(path).labels == ("0", "1")


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
        read_own(str(tmp_path / name))
    assert "\n" not in str(caught.value)


def test_bad_choices_of_files_and_labels(tmp_path):
    train = tsv(tmp_path / "train.tsv", ROWS)
    copy = tsv(tmp_path / "copy.tsv", ROWS)
    for dev in (train, copy):
        with pytest.raises(InputError, match=r"^--dev_file: .* has the content of --train_file"):
            read_own(train, dev)
    with pytest.raises(InputError, match="^--train_file: cannot read .*none.tsv: No such file"):
        read_own(str(tmp_path / "none.tsv"))
    with pytest.raises(InputError, match="cannot read .*none.tsv"):
        read_own(train, str(tmp_path / "none.tsv"))
    for labels in (("a",), ("a", "a")):
        with pytest.raises(InputError, match="^--labels "):
            read_own(train, labels=labels)
    with pytest.raises(InputError, match="^--labels"):
        read_own(train, labels=("a", "b"), regression=True)
    many = tsv(tmp_path / "many.tsv", [(f"{n}", "b", f"text {n}") for n in range(1200)])
    with pytest.raises(InputError, match="1200 different labels.*is another column the label"):
        read_own(many)
    with pytest.raises(InputError, match="JSON lines, whose texts have names"):
        read_own(json_lines(tmp_path / "t.jsonl", ROWS), columns=parse_columns("1,2", "3"))
