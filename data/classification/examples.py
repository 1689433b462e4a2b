"""Texts and labels of one file, checked."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from typing import Iterable, Mapping, Sequence

import numpy as np

from base.errors import InputError
from base.files import sha256_of
from data.classification.tables import Row

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


def collect_labels(rows: Iterable[Row]) -> tuple[str, ...]:
    """The labels that occur in a training file, sorted as text.

    Raises InputError where they look like numbers to predict, or are one or very many.
    """
    rows = list(rows)
    found = sorted({row.label for row in rows})
    file = rows[0].place.rpartition(", line")[0] if rows else ""
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


def number_labels(rows: Sequence[Row], least: float = -math.inf, most: float = math.inf) -> np.ndarray:
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
    names = list(files)
    for place, first in enumerate(names):
        for second in names[place + 1 :]:
            one, other = files[first], files[second]
            if _same_content(one, other):
                raise InputError(
                    f"{second}: {other} has the content of {first} ({one}); scores on examples that the model"
                    " was trained on say nothing"
                )


def _same_content(one: str, other: str) -> bool:
    try:
        if os.path.samefile(one, other):
            return True
        return os.path.getsize(one) == os.path.getsize(other) and sha256_of(one) == sha256_of(other)
    except OSError as error:
        raise InputError(f"cannot read {error.filename}: {error.strerror}") from error


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _some(labels: Sequence[str]) -> str:
    shown = ", ".join(map(repr, labels[:_SHOWN]))
    return shown if len(labels) <= _SHOWN else f"{shown} and {len(labels) - _SHOWN} more"
