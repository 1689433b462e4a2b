"""Lines of TSV, CSV and JSON-lines files as cells, each with its line number; texts and labels of one file,
checked.

TSV has no quoting, as GLUE's files: a quotation mark is a character, "\\n" alone ends a line. CSV has the
usual quoting (RFC 4180), also with line breaks in cells. JSON lines hold one object each. Files may be packed
(data.text.lines).
"""

from __future__ import annotations

import codecs
import csv
import filecmp
import itertools
import json
import math
import os
from dataclasses import dataclass, field
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Sequence

import numpy as np

from base.command_line import LARGEST
from base.errors import InputError
from data.text.lines import open_text

TSV, CSV, JSON_LINES = "TSV", "CSV", "JSON lines"
_ENDINGS = {".tsv": TSV, ".txt": TSV, ".csv": CSV, ".jsonl": JSON_LINES, ".ndjson": JSON_LINES}
_PACKED = (".gz", ".bz2", ".xz", ".zst")
_LONGEST_CELL = 1 << 24  # characters; the csv module's own limit is 128 KiB, and one for the whole process


class Line(NamedTuple):
    """One line of a table: as many cells as the table has columns, or what is wrong with it."""

    number: int  # in the file, from 1 on; of a CSV row with line breaks its last
    cells: list[str]
    problem: str = ""


class Row(NamedTuple):
    """One example of a table; `second` is "" where each has one text, `label` where the file has none."""

    place: str  # flag, file and line, for messages
    id: str
    first: str
    second: str
    label: str


class Table:
    """A file's columns and lines, read once from front to back.

    `columns` are the names of the header; for JSON lines the keys of the first object; without a header
    "1", "2" and so on, as many as the first line has cells.
    """

    def __init__(self, path: str, flag: str, header: Sequence[str] | bool = True) -> None:
        """`header`: whether the first line has the columns' names, or the names of a file without one.

        Raises InputError, beginning with `flag`, for a file that cannot be read, is no text, or is empty,
        and for a column name that occurs twice.
        """
        self.path, self._flag = path, flag
        self.kind = kind_of(path, flag)
        self._lines = self._read()
        try:
            begun = next(self._lines, None)
        except InputError as error:
            if str(error).startswith(flag):
                raise
            raise InputError(f"{flag}: {error}") from error
        if begun is None:
            raise InputError(f"{flag}: {path} is empty")
        if begun.problem:
            raise InputError(self.place(begun.number) + f": {begun.problem}")
        if self.kind != JSON_LINES and header is True:
            self.columns = tuple(cell.strip() for cell in begun.cells)
            if len(set(self.columns)) < len(self.columns):
                twice = next(name for name in self.columns if self.columns.count(name) > 1)
                raise InputError(f"{flag}: {path} has the column {twice!r} twice; rename one of them")
            return
        self._lines = itertools.chain([begun], self._lines)
        if self.kind != JSON_LINES:
            numbers = tuple(str(number + 1) for number in range(len(begun.cells)))
            self.columns = numbers if isinstance(header, bool) else tuple(header)

    def place(self, number: int) -> str:
        """The flag, the file and a line of it, for messages."""
        return f"{self._flag}: {self.path}, line {number}"

    def lines(self) -> Iterator[Line]:
        """The lines after the header. Empty ones at the file's end are left out."""
        for line in self._lines:
            if not line.problem and len(line.cells) != len(self.columns):
                found = f"{len(line.cells)} column{'s' * (len(line.cells) != 1)}, not {len(self.columns)}"
                line = line._replace(problem=found)
            yield line

    def rows(
        self,
        texts: Sequence[str],
        label: str,
        report: Callable[[str], None],
        keep: Callable[[list[str]], bool] | None = None,
        any_text: bool = False,
        id_column: str = "",
    ) -> list[Row]:
        """The lines as examples, of the columns `texts` and, where there is one, `label`.

        `keep` says of a line's cells whether it is one of the examples. Broken lines, and without `any_text`
        those with an empty text, go to `report`, which raises or has them left out. Ids are those of
        `id_column`; without one examples are numbered.
        """
        rows: list[Row] = []
        for line in self.lines():
            place, problem = self.place(line.number), line.problem
            if not problem and keep is not None and not keep(line.cells):
                continue
            cells = dict(zip(self.columns, line.cells))
            if not problem and not any_text:
                empty = [name for name in texts if not cells[name].strip()]
                problem = f"the text in {empty[0]!r} is empty" if empty else ""
            if problem:
                report(f"{place}: {problem}")
                continue
            own_id = cells[id_column] if id_column else str(len(rows))
            second = cells[texts[1]] if len(texts) == 2 else ""
            rows.append(Row(place, own_id, cells[texts[0]], second, cells[label].strip() if label else ""))
        return rows

    def _read(self) -> Iterator[Line]:
        with open_text(self.path) as handle:
            lines = self._text(enumerate(handle, start=1))
            if self.kind == CSV:
                yield from _csv_rows(lines)
                return
            keys: tuple[str, ...] = ()
            empty: list[int] = []
            for number, text in lines:
                text = text.rstrip("\r\n") if text.endswith("\r\n") else text.rstrip("\n")
                if not text.strip(" ") and "\t" not in text:
                    empty.append(number)
                    continue
                for each in empty:
                    yield Line(each, [], "the line is empty")
                empty.clear()
                if self.kind == TSV:
                    yield Line(number, text.split("\t"))
                    continue
                line, found = _json_line(number, text, keys)
                if not keys:
                    keys = self.columns = found
                yield line

    def _text(self, lines: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, str]]:
        for number, raw in lines:
            if number == 1 and raw.startswith(codecs.BOM_UTF8):
                raw = raw[len(codecs.BOM_UTF8) :]
            try:
                if b"\0" in raw:
                    raise ValueError
                yield number, raw.decode("utf-8")
            except ValueError:  # UnicodeDecodeError is one
                advice = "convert the file with iconv -t UTF-8"
                raise InputError(f"{self.place(number)}: not UTF-8 text; {advice}") from None


def kind_of(path: str, flag: str) -> str:
    """TSV, CSV or JSON_LINES, by the file's name, the ending of a packing program left out."""
    name, ending = os.path.splitext(path.lower())
    if ending in _PACKED:
        ending = os.path.splitext(name)[1]
    if ending not in _ENDINGS:
        raise InputError(
            f"{flag}: {path}: the name has to end with .tsv (or .txt), .csv or .jsonl, by what is in it"
        )
    return _ENDINGS[ending]


def _csv_rows(lines: Iterator[tuple[int, str]]) -> Iterator[Line]:
    before = csv.field_size_limit(_LONGEST_CELL)
    try:
        reader = csv.reader((text for _, text in lines), strict=True)
        for row in reader:
            if row:
                yield Line(reader.line_num, row)
    except csv.Error as error:
        yield Line(reader.line_num, [], f"bad CSV: {error}")
    finally:
        csv.field_size_limit(before)


def _json_line(number: int, text: str, keys: tuple[str, ...]) -> tuple[Line, tuple[str, ...]]:
    """The line's cells in the order of `keys`, or of its own ones where there are none yet."""
    try:
        value: Any = json.loads(text)
    except ValueError:
        return Line(number, [], "no JSON"), keys
    except RecursionError:
        return Line(number, [], "JSON that is nested too deep"), keys
    if not isinstance(value, dict) or not value:
        return Line(number, [], "no JSON object of names and values"), keys
    keys = keys or tuple(value)
    missing = [key for key in keys if key not in value]
    if missing:
        return Line(number, [], f"no {missing[0]!r}, which the first line has"), keys
    return Line(number, [_cell(value[key]) for key in keys]), keys


def _cell(value: Any) -> str:
    """A JSON value as a cell of a table would have it."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


_MOST_LABELS = 1000
_SHOWN = 8


@dataclass(frozen=True, eq=False)
class Examples:
    """The examples of one file, N of them.

    Attributes:
        path: the file.
        first: the texts.
        second: the second texts; None where each example has one text.
        labels: int32 (N,), numbers in a set of labels, or float32 (N,) for regression; None without labels.
        ids: what identifies each in predictions.
        skipped: messages about lines that are left out.
    """

    path: str
    first: list[str]
    second: list[str] | None
    labels: np.ndarray | None
    ids: list[str]
    skipped: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.first)


def examples_of(
    path: str, rows: Sequence[Row], texts: int, labels: np.ndarray | None, skipped: Sequence[str] = ()
) -> Examples:
    """The examples of a file's rows, which have one or two `texts`."""
    second = [row.second for row in rows] if texts == 2 else None
    return Examples(
        path, [row.first for row in rows], second, labels, [row.id for row in rows], list(skipped)
    )


def collect_labels(rows: Sequence[Row]) -> tuple[str, ...]:
    """The labels that occur in a training file, sorted as text.

    Raises InputError where they look like numbers to predict, or are one or very many.
    """
    found = sorted({row.label for row in rows})
    file = rows[0].place.rpartition(", line")[0]
    numbers = [_number(label) for label in found]
    if all(number is not None for number in numbers) and any(number % 1 for number in numbers if number):
        raise InputError(
            f"{file}: labels such as {_some(found)} are numbers to predict, not classes; give --regression"
        )
    if len(found) > _MOST_LABELS:
        raise InputError(
            f"{file}: {len(found)} different labels, such as {_some(found)}; is another column the label?"
        )
    if len(found) == 1:
        raise InputError(f"{file}: every label is {found[0]!r}; there is nothing to learn from one class")
    return tuple(found)


def class_labels(rows: Sequence[Row], labels: Sequence[str]) -> np.ndarray:
    """Number of each row's label in `labels`, int32 (N,). Raises InputError for any other label."""
    numbers = {label: number for number, label in enumerate(labels)}
    values = np.empty(len(rows), dtype=np.int32)
    for place, row in enumerate(rows):
        number = numbers.get(row.label)
        if number is None:
            number_like = _number(row.label)
            fraction = number_like is not None and number_like % 1 != 0
            raise InputError(
                f"{row.place}: the label {row.label!r} is none of {_some(labels)}"
                + ("; is this a file of a regression task?" if fraction else "")
            )
        values[place] = number
    return values


def number_labels(rows: Sequence[Row], least: float = -LARGEST, most: float = LARGEST) -> np.ndarray:
    """Each row's label as a number, float32 (N,). Raises InputError where one is no finite number, or not
    from `least` to `most`."""
    values = np.empty(len(rows), dtype=np.float32)
    for place, row in enumerate(rows):
        number = _number(row.label)
        if number is None:
            raise InputError(f"{row.place}: {row.label!r} is no number, which a regression task predicts")
        if not least <= number <= most:
            raise InputError(f"{row.place}: the label {row.label} is not from {least:g} to {most:g}")
        values[place] = number
    return values


def check_training(examples: Examples, num_classes: int) -> None:
    """Raises InputError when the labels of training examples, classes or numbers, are all the same."""
    labels = examples.labels
    if labels is not None and len(labels) and (labels == labels[0]).all():
        what = "label" if num_classes else "number"
        raise InputError(
            f"{examples.path}: every {what} is the same in {len(labels)} examples; nothing can be learnt from"
            " it"
        )


def check_files_differ(files: Mapping[str, str]) -> None:
    """Raises InputError when two of the files, by what names them (a flag), have the same content."""
    for (first, one), (second, other) in itertools.combinations(files.items(), 2):
        try:
            same = filecmp.cmp(one, other, shallow=False)
        except OSError as error:
            raise InputError(f"cannot read {error.filename}: {error.strerror}") from error
        if same:
            raise InputError(
                f"{second}: {other} has the content of {first} ({one}); scores on examples that the model"
                " was trained on say nothing"
            )


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _some(labels: Sequence[str]) -> str:
    shown = ", ".join(map(repr, labels[:_SHOWN]))
    return shown if len(labels) <= _SHOWN else f"{shown} and {len(labels) - _SHOWN} more"
