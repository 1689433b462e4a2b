"""Files of one's own: one or two texts and a label or a number in each line, columns by name or position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Sequence

from base.errors import InputError
from data.classification.examples import (
    JSON_LINES,
    Examples,
    Row,
    Table,
    check_files_differ,
    check_training,
    class_labels,
    collect_labels,
    examples_of,
    number_labels,
)

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
    train: str,
    dev: str = "",
    test: str = "",
    columns: Columns = Columns(),
    labels: Sequence[str] = (),
    regression: bool = False,
) -> OwnData:
    """All examples of one's own files; "" for one that is not given.

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
    given = {flag: path for flag, path in ((TRAIN, train), (DEV, dev), (TEST, test)) if path}
    check_files_differ(given)
    read = {flag: _read(path, flag, columns) for flag, path in given.items()}
    texts = {flag: number for flag, (_, number, _) in read.items()}
    if len(set(texts.values())) > 1:
        raise InputError(
            f"{TRAIN} has {texts[TRAIN]} text columns, but another file has {3 - texts[TRAIN]}; give"
            " --text_columns"
        )
    names = () if regression else tuple(labels) or collect_labels(read[TRAIN][0])
    examples = {}
    for flag, (rows, number, labelled) in read.items():
        values = None
        if labelled:
            values = class_labels(rows, names) if names else number_labels(rows)
        examples[flag] = examples_of(given[flag], rows, number, values)
    check_training(examples[TRAIN], len(names))
    return OwnData(names, examples[TRAIN], examples.get(DEV), examples.get(TEST))


def _read(path: str, flag: str, columns: Columns) -> tuple[list[Row], int, bool]:
    """The rows of a file, of which every line must be whole, their number of texts, and whether they have
    labels."""
    table = Table(path, flag, header=not columns.by_position)
    if table.kind == JSON_LINES and columns.by_position:
        raise InputError(f"{flag}: {path} has JSON lines, whose texts have names: give --text_columns")
    known = (names for names in KNOWN_TEXTS if all(name in table.columns for name in names))
    texts = columns.texts or next(known, ())
    if not texts:
        raise InputError(
            f"{flag}: {path} has the columns {', '.join(table.columns[:8])}; name those of the texts by"
            " --text_columns"
        )
    label = columns.label or next((name for name in KNOWN_LABELS if name in table.columns), "")
    needed = [*texts, *([label] if columns.label and flag != TEST else [])]
    missing = [name for name in needed if name not in table.columns]
    if missing:
        kind = "column" if table.kind != JSON_LINES else "key"
        raise InputError(f"{flag}: {path} has no {kind} {missing[0]!r}, but {', '.join(table.columns[:8])}")
    if label not in table.columns:
        label = ""
    if not label and flag != TEST:
        raise InputError(f"{flag}: {path} has no column {KNOWN_LABELS[0]!r}; give --label_column")

    def report(problem: str) -> None:
        raise InputError(f"{problem}; repair or remove the line")

    rows = table.rows(texts, label, report)
    for row in rows:
        if label and not row.label:
            report(f"{row.place}: there is no label in {label!r}")
    if not rows:
        raise InputError(f"{flag}: {path} has no examples")
    return rows, len(texts), bool(label)
