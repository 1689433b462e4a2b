"""Files of one's own: one or two texts and a label or a number in each line, columns by name or position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Sequence

from base.errors import InputError
from data.classification.examples import (
    Examples,
    Row,
    check_files_differ,
    check_training,
    class_labels,
    collect_labels,
    number_labels,
)
from data.classification.tables import JSON_LINES, Table

TRAIN, DEV, TEST = "--train_file", "--dev_file", "--test_file"
# Names that public data sets give their columns; the first that a file has are taken.
KNOWN_TEXTS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("text_a", "text_b"),
    ("question", "sentence"),
    ("sentence",),
    ("text",),
    ("text_a",),
)
KNOWN_LABELS = ("label", "score", "gold_label")


@dataclass(frozen=True)
class Columns:
    """The columns of files: names from the header (keys of JSON lines), or positions from 1 on, of files
    without a header. Without `texts` or a `label` the usual names are looked for."""

    texts: tuple[str, ...] = ()
    label: str = ""

    @property
    def by_position(self) -> bool:
        """Whether the columns are numbers; then files have no header."""
        return bool(self.texts) and all(name.isdecimal() for name in (*self.texts, self.label) if name)


class OwnFiles(NamedTuple):
    """Files by their flags; "" for those that are not given."""

    train: str
    dev: str = ""
    test: str = ""


class OwnData(NamedTuple):
    """Examples of one's own files; `labels` are none for regression. Test files need no labels."""

    labels: tuple[str, ...]
    train: Examples
    dev: Examples | None
    test: Examples | None


def parse_columns(texts: str | None, label: str | None) -> Columns:
    """Columns of an option's words, such as "sentence1,sentence2" or "2,3", and "label" or "1"."""
    names = tuple(name.strip() for name in texts.split(",")) if texts else ()
    if len(names) > 2 or not all(names) or len(set(names)) < len(names):
        raise InputError(f"--text_columns {texts}: one column, or two with a comma between them")
    columns = Columns(names, label or "")
    positions = [name.isdecimal() for name in (*names, *([label] if label else []))]
    if any(positions) and not (all(positions) and names and label):
        raise InputError(
            "--text_columns and --label_column: all names or all positions; with positions give both"
        )
    if any(name.isdecimal() and not 1 <= float(name) < 1e6 for name in (*names, columns.label)):
        raise InputError("--text_columns and --label_column: positions count from 1, to a million")
    return columns


def read_own(
    files: OwnFiles,
    columns: Columns = Columns(),
    labels: Sequence[str] = (),
    regression: bool = False,
) -> OwnData:
    """All examples of one's own files.

    `labels` are the classes in their order; without them they are those of the training file, sorted.

    Raises:
        InputError: a file that is missing, broken in any line (named), without texts or labels; a label that
            is not in the set; a file of regression for classification or the other way round; a development
            file that is the training file; one class only.
    """
    if regression and labels:
        raise InputError("--labels: a regression has none; leave out --labels or --regression")
    if len(set(labels)) < len(labels) or len(labels) == 1:
        raise InputError(f"--labels {','.join(labels)}: two different labels at least, each once")
    given = {TRAIN: files.train, DEV: files.dev, TEST: files.test}
    check_files_differ({flag: path for flag, path in given.items() if path})
    rows = {flag: _Rows(path, flag, columns) for flag, path in given.items() if path}
    texts = {flag: len(each.texts) for flag, each in rows.items()}
    if len(set(texts.values())) > 1:
        raise InputError(
            f"{TRAIN} has {texts[TRAIN]} text columns, but another file has {3 - texts[TRAIN]}; give"
            " --text_columns"
        )
    names = () if regression else tuple(labels) or collect_labels(rows[TRAIN].rows)
    examples = {flag: each.examples(names) for flag, each in rows.items()}
    check_training(examples[TRAIN], len(names))
    return OwnData(names, examples[TRAIN], examples.get(DEV), examples.get(TEST))


class _Rows:
    """The rows of one file; every line must be whole."""

    def __init__(self, path: str, flag: str, columns: Columns) -> None:
        table = Table(path, flag, header=not columns.by_position)
        if table.kind == JSON_LINES and columns.by_position:
            raise InputError(f"{flag}: {path} has JSON lines, whose texts have names: give --text_columns")
        self._path = path
        self.texts = columns.texts or _known(table, flag)
        self.label = columns.label or next((name for name in KNOWN_LABELS if name in table.columns), "")
        needed = [*self.texts, *([self.label] if columns.label and flag != TEST else [])]
        missing = [name for name in needed if name not in table.columns]
        if missing:
            kind = "column" if table.kind != JSON_LINES else "key"
            raise InputError(
                f"{flag}: {path} has no {kind} {missing[0]!r}, but {', '.join(table.columns[:8])}"
            )
        if self.label not in table.columns:
            self.label = ""
        if not self.label and flag != TEST:
            raise InputError(f"{flag}: {path} has no column {KNOWN_LABELS[0]!r}; give --label_column")
        self.rows = self._read(table)
        if not self.rows:
            raise InputError(f"{flag}: {path} has no examples")

    def examples(self, labels: Sequence[str]) -> Examples:
        """The file's examples, with labels out of `labels`, or numbers where there are none."""
        values = None
        if self.label:
            values = class_labels(self.rows, labels) if labels else number_labels(self.rows)
        second = [row.second for row in self.rows] if len(self.texts) == 2 else None
        first, ids = [row.first for row in self.rows], [row.id for row in self.rows]
        return Examples(self._path, first, second, values, ids)

    def _read(self, table: Table) -> list[Row]:
        texts = [table.columns.index(name) for name in self.texts]
        label = table.columns.index(self.label) if self.label else -1
        rows: list[Row] = []
        for line in table.lines():
            place = table.place(line.number)
            if line.problem:
                raise InputError(f"{place}: {line.problem}; repair or remove the line")
            for text, name in zip(texts, self.texts):
                if not line.cells[text].strip():
                    raise InputError(f"{place}: the text in {name!r} is empty; remove the line")
            given = line.cells[label].strip() if label >= 0 else ""
            if label >= 0 and not given:
                raise InputError(f"{place}: there is no label in {self.label!r}; remove the line")
            second = line.cells[texts[1]] if len(texts) == 2 else ""
            rows.append(Row(place, str(len(rows)), line.cells[texts[0]], second, given))
        return rows


def _known(table: Table, flag: str) -> tuple[str, ...]:
    for names in KNOWN_TEXTS:
        if all(name in table.columns for name in names):
            return names
    raise InputError(
        f"{flag}: {table.path} has the columns {', '.join(table.columns[:8])}; name those of the texts by"
        " --text_columns"
    )
