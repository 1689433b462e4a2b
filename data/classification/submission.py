"""Predictions in GLUE's submission format: one TSV file a test file, named as the benchmark names it."""

from __future__ import annotations

import os
from typing import Mapping, NamedTuple, Sequence

import numpy as np

from base.errors import InputError
from base.files import replacing

HEADER = "index\tprediction"


class Predictions(NamedTuple):
    """Predictions for one test file.

    `ids`: of its examples, in their order. `values`: numbers in `labels`, or real numbers where there are
    none; (N,). `least` and `most` bound real numbers where they differ.
    """

    ids: Sequence[str]
    values: np.ndarray
    labels: Sequence[str]
    least: float = 0.0
    most: float = 0.0


def lines(predictions: Predictions) -> list[str]:
    """The file's lines: the header, then for each example its index and a label or a number of three
    decimals.

    Raises ValueError where there are not as many predictions as ids or one is no number in `labels`,
    InputError where one is not finite.
    """
    values = np.asarray(predictions.values)
    if values.shape != (len(predictions.ids),):
        raise ValueError(f"{values.shape} predictions for {len(predictions.ids)} examples")
    if predictions.labels:
        if len(values) and (values.min() < 0 or values.max() >= len(predictions.labels)):
            raise ValueError(f"a prediction is none of {len(predictions.labels)} classes")
        shown = [predictions.labels[int(value)] for value in values]
    else:
        if not np.isfinite(values).all():
            raise InputError("a prediction is not finite; train with a lower --lr")
        if predictions.most > predictions.least:
            values = np.clip(values, predictions.least, predictions.most)
        shown = [f"{value:.3f}" for value in values.tolist()]
    return [HEADER, *(f"{index}\t{value}" for index, value in zip(predictions.ids, shown))]


def write_submission(folder: str, files: Mapping[str, Predictions]) -> list[str]:
    """Writes `<name>.tsv` of each entry, such as "MNLI-m", into `folder`; returns their paths.

    All are made before the first is written, and each appears whole or not at all.
    Raises InputError where the folder or a file cannot be written.
    """
    contents = {name: "\n".join(lines(each)) + "\n" for name, each in files.items()}
    paths = []
    try:
        os.makedirs(folder, exist_ok=True)
        for name, content in contents.items():
            path = os.path.join(folder, f"{name}.tsv")
            with replacing(path) as handle:
                handle.write(content.encode("utf-8"))
            paths.append(path)
    except OSError as error:
        raise InputError(f"cannot write {folder}: {error.strerror}") from error
    return paths
