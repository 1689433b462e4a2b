"""The official files: every task in its form, with what is odd about it, and what is wrong with a file."""

from __future__ import annotations

import numpy as np
import pytest

from base.errors import InputError
from data.classification.examples import check_files_differ
from data.classification.glue import TASKS, GlueFolder, find_task
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
