"""The official files of GLUE and XNLI: names, columns, labels and metrics of each task.

GLUE: Wang et al., arXiv:1804.07461. XNLI: Conneau et al., arXiv:1809.05053. The forms are those of the files
that gluebenchmark.com and the authors of XNLI distribute:

- CoLA's train.tsv and dev.tsv have no header; its test.tsv has one.
- MRPC's files begin with a byte order mark. Where only the original msr_paraphrase_train.txt is there, the
  pairs of dev_ids.tsv are the development set, as for GLUE.
- Quotation marks are characters everywhere; QQP has single ones.
- QQP's train.tsv has some lines that were broken in two.
- XNLI's training files say "contradictory", its others "contradiction".
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import Callable, Mapping, Sequence

import numpy as np

from base.errors import InputError
from base.files import replacing
from data.classification.examples import (
    Examples,
    Table,
    check_training,
    class_labels,
    examples_of,
    number_labels,
)

MOST_SKIPPED = 0.01  # of a file's lines
_SHOWN = 5
_FLAG = "--data_dir"
_ENTAILMENT = ("contradiction", "entailment", "neutral")  # in the order of Google's run_classifier.py
_IDS = ("index", "id")


@dataclass(frozen=True)
class OfficialFile:
    """One file of a task.

    Attributes:
        name: of the split, such as "mnli-m"; for a test file that of its submission.
        path: below the task's folder; `{language}` stands for XNLI's language.
        texts: columns of one or two texts.
        label: column of the label; "" where the file has none.
        header: columns of a file without a header.
        language: column of the language, where a file has several.
    """

    name: str
    path: str
    texts: tuple[str, ...]
    label: str = ""
    header: tuple[str, ...] = ()
    language: str = ""


@dataclass(frozen=True)
class GlueTask:
    """A task: its files, its labels (none: it predicts numbers) and the metrics that the benchmark has."""

    name: str
    train: OfficialFile
    dev: tuple[OfficialFile, ...]
    test: tuple[OfficialFile, ...]
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    least: float = field(default=0.0)  # of the numbers of a regression
    most: float = field(default=0.0)

    @property
    def regression(self) -> bool:
        return not self.labels


def _plain(
    name: str,
    texts: tuple[str, ...],
    labels: tuple[str, ...],
    metrics: tuple[str, ...],
    label: str = "label",
    header: tuple[str, ...] = (),
) -> GlueTask:
    """A task whose files are train.tsv, dev.tsv and test.tsv with the same columns; `header` has those of
    train.tsv and dev.tsv where these have no header."""
    return GlueTask(
        name,
        OfficialFile("train", "train.tsv", texts, label, header),
        (OfficialFile("dev", "dev.tsv", texts, label, header),),
        (OfficialFile(name, "test.tsv", texts),),
        labels,
        metrics,
    )


_PAIR = ("sentence1", "sentence2")
_COLA = ("source", "label", "mark", "sentence")
_MRPC = ("#1 String", "#2 String")
_QUESTIONS = ("question1", "question2")
_BINARY, _ACCURACY_F1 = ("0", "1"), ("accuracy", "f1")
_INFERRED = ("entailment", "not_entailment")

TASKS: Mapping[str, GlueTask] = {
    task.name: task
    for task in (
        _plain("CoLA", ("sentence",), _BINARY, ("mcc",), header=_COLA),
        _plain("SST-2", ("sentence",), _BINARY, ("accuracy",)),
        _plain("MRPC", _MRPC, _BINARY, _ACCURACY_F1, "Quality"),
        replace(_plain("STS-B", _PAIR, (), ("pearson", "spearman"), "score"), most=5.0),
        _plain("QQP", _QUESTIONS, _BINARY, _ACCURACY_F1, "is_duplicate"),
        GlueTask(
            "MNLI",
            OfficialFile("train", "train.tsv", _PAIR, "gold_label"),
            (
                OfficialFile("m", "dev_matched.tsv", _PAIR, "gold_label"),
                OfficialFile("mm", "dev_mismatched.tsv", _PAIR, "gold_label"),
            ),
            (
                OfficialFile("MNLI-m", "test_matched.tsv", _PAIR),
                OfficialFile("MNLI-mm", "test_mismatched.tsv", _PAIR),
                OfficialFile("AX", "diagnostic.tsv", _PAIR),
            ),
            _ENTAILMENT,
            ("accuracy",),
        ),
        _plain("QNLI", ("question", "sentence"), _INFERRED, ("accuracy",)),
        _plain("RTE", _PAIR, _INFERRED, ("accuracy",)),
        _plain("WNLI", _PAIR, _BINARY, ("accuracy",)),
        GlueTask(
            "XNLI",
            OfficialFile("train", "multinli.train.{language}.tsv", ("premise", "hypo"), "label"),
            (OfficialFile("dev", "xnli.dev.tsv", _PAIR, "gold_label", language="language"),),
            (OfficialFile("XNLI", "xnli.test.tsv", _PAIR, "gold_label", language="language"),),
            _ENTAILMENT,
            ("accuracy",),
        ),
    )
}
_ALIASES = {"sst": "SST-2", "sst2": "SST-2", "stsb": "STS-B"}
_RENAMED = {"contradictory": "contradiction"}
_MSR_TRAIN, _MSR_TEST, _DEV_IDS = "msr_paraphrase_train.txt", "msr_paraphrase_test.txt", "dev_ids.tsv"
_MSR_IDS = ("#1 ID", "#2 ID")


def find_task(name: str) -> GlueTask:
    """The task of a name, in capitals or not; GluonNLP's "SST" is one of them. Raises InputError for
    others."""
    folded = {each.lower(): each for each in TASKS}
    found = folded.get(name.lower()) or _ALIASES.get(name.lower())
    if found is None:
        raise InputError(f"--task_name {name}: there are {', '.join(TASKS)}; for others give --train_file")
    return TASKS[found]


class GlueFolder:
    """The files of one task, in `data_dir` itself or in its folder of the task's name (as downloaded).

    `language` is that of XNLI, such as "zh".
    """

    def __init__(self, task: GlueTask, data_dir: str, language: str = "en") -> None:
        """Raises InputError where there is no such folder, or no training or development file in it."""
        self.task, self._language = task, language
        if not os.path.isdir(data_dir):
            raise InputError(f"{_FLAG}: there is no folder {data_dir}")
        self._folders = [data_dir, os.path.join(data_dir, task.name)]
        for more in ("multinli", "XNLI-MT-1.0/multinli", "XNLI-1.0") if task.name == "XNLI" else ():
            self._folders += [os.path.join(folder, more) for folder in self._folders[:2]]
        if task.name == "MNLI":
            self._folders += [os.path.join(data_dir, folder) for folder in ("diagnostic", "AX")]
        for file in (task.train, *task.dev):
            self.path(file)

    def path(self, file: OfficialFile) -> str:
        """The file's path. Raises InputError where it is missing."""
        found = self._find(file)
        if not found:
            raise InputError(
                f"{_FLAG}: there is no {file.path.format(language=self._language)} of {self.task.name} in "
                f"{self._folders[0]} or {self._folders[1]}"
            )
        return found

    def _find(self, file: OfficialFile) -> str:
        """The file's path, or nothing where it is missing."""
        candidates = [file.path.format(language=self._language)]
        if file.name == "AX":
            candidates += ["AX.tsv"]
        if self.task.name == "MRPC":
            candidates += [_MSR_TEST if file in self.task.test else _MSR_TRAIN]
        paths = (os.path.join(folder, name) for name in candidates for folder in self._folders)
        return next(filter(os.path.isfile, paths), "")

    def train(self) -> Examples:
        """The training examples. Raises InputError for bad files; so do `dev` and `test`."""
        examples = self._read(self.task.train)
        check_training(examples, len(self.task.labels))
        return examples

    def dev(self) -> dict[str, Examples]:
        """The examples of each development file: "dev", or for MNLI "m" and "mm"."""
        return {file.name: self._read(file) for file in self.task.dev}

    def test(self) -> dict[str, Examples]:
        """The examples of each test file by the name of its submission, such as "MNLI-m"; XNLI's have labels.

        AX, the diagnostic set, is there if its file is (diagnostic.tsv or AX.tsv).
        """
        files = [file for file in self.task.test if file.name != "AX" or self._find(file)]
        return {file.name: self._read(file) for file in files}

    def files(self) -> dict[str, str]:
        """Paths of the training and development files by split, to compare their contents."""
        files = {file.name: self.path(file) for file in (self.task.train, *self.task.dev)}
        # Of the original MRPC both splits come from one file.
        return files if len(set(files.values())) == len(files) else {}

    def _read(self, file: OfficialFile) -> Examples:
        """The examples of a file. A broken line or an empty text is left out, but in a test file an error:
        every line of one has to be predicted. (An empty text there is a text.)"""
        path, is_test = self.path(file), file in self.task.test
        table = Table(path, _FLAG, header=file.header or True)
        missing = [
            name for name in (*file.texts, file.label, file.language) if name and name not in table.columns
        ]
        if missing:
            more = len(table.columns) - _SHOWN
            has = ", ".join(table.columns[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
            raise InputError(
                f"{_FLAG}: {path} has no column {missing[0]!r} (it has {has}); is it the official file?"
            )
        skipped: list[str] = []

        def report(problem: str) -> None:
            if is_test:
                raise InputError(f"{problem}; download the file again")
            skipped.append(problem)

        own_id = next((name for name in _IDS if name in table.columns), "") if is_test else ""
        rows = table.rows(file.texts, file.label, report, self._kept(file, table), is_test, own_id)
        lines = len(rows) + len(skipped)
        if len(skipped) > MOST_SKIPPED * lines:
            raise InputError(
                f"{skipped[0]}; {len(skipped)} of {lines} lines are like this, above {MOST_SKIPPED:.0%}; "
                "download the file again"
            )
        if not rows:
            wanted = f" in the language {self._language!r}" if file.language else ""
            raise InputError(f"{_FLAG}: {path} has no examples{wanted}")
        labels = None
        if file.label and self.task.regression:
            labels = number_labels(rows, self.task.least, self.task.most)
        elif file.label:
            rows = [row._replace(label=_RENAMED.get(row.label, row.label)) for row in rows]
            labels = class_labels(rows, self.task.labels)
        return examples_of(path, rows, len(file.texts), labels, skipped)

    def _kept(self, file: OfficialFile, table: Table) -> Callable[[list[str]], bool] | None:
        """Whether a line belongs to what is read, where a file has several languages, or two splits."""
        if file.language:
            language = table.columns.index(file.language)
            return lambda cells: cells[language] == self._language
        if os.path.basename(table.path) != _MSR_TRAIN:
            return None
        ids = os.path.join(os.path.dirname(table.path), _DEV_IDS)
        if not os.path.isfile(ids):
            raise InputError(
                f"{_FLAG}: {table.path} has GLUE's training and development pairs in one; put {_DEV_IDS} "
                "beside it"
            )
        dev = {
            tuple(line.cells[:2]) for line in Table(ids, _FLAG, header=_MSR_IDS).lines() if not line.problem
        }
        pair, is_dev = [table.columns.index(name) for name in _MSR_IDS], file is not self.task.train
        return lambda cells: ((cells[pair[0]], cells[pair[1]]) in dev) == is_dev


HEADER = "index\tprediction"


def lines(
    ids: Sequence[str], values: np.ndarray, labels: Sequence[str], least: float = 0.0, most: float = 0.0
) -> list[str]:
    """The lines of a file of predictions: the header, then for each example its id and a label or a number of
    three decimals.

    `values`: numbers in `labels`, or real numbers where there are none, bounded by `least` and `most` where
    these differ; (N,).

    Raises ValueError where there are not as many predictions as ids or one is no number in `labels`,
    InputError where one is not finite.
    """
    values = np.asarray(values)
    if values.shape != (len(ids),):
        raise ValueError(f"{values.shape} predictions for {len(ids)} examples")
    if labels:
        if len(values) and (values.min() < 0 or values.max() >= len(labels)):
            raise ValueError(f"a prediction is none of {len(labels)} classes")
        shown = [labels[int(value)] for value in values]
    else:
        if not np.isfinite(values).all():
            raise InputError("a prediction is not finite; train with a lower --lr")
        if most > least:
            values = np.clip(values, least, most)
        shown = [f"{value:.3f}" for value in values.tolist()]
    return [HEADER, *(f"{index}\t{value}" for index, value in zip(ids, shown))]


def write_submission(folder: str, files: Mapping[str, Sequence[str]]) -> None:
    """Writes the `lines` of each entry, such as "MNLI-m", to `<name>.tsv` in `folder`, each file whole or not
    at all. Raises InputError where the folder or a file cannot be written."""
    try:
        os.makedirs(folder, exist_ok=True)
        for name, content in files.items():
            with replacing(os.path.join(folder, f"{name}.tsv")) as handle:
                handle.write("".join(f"{line}\n" for line in content).encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise InputError(f"cannot write {folder}: {error.strerror}") from error
