"""Files of predictions in Google's and the official scripts' formats."""

from __future__ import annotations

import json
import math
import os
from typing import Any

from base.errors import InputError
from base.files import replacing
from data.questions.answers import Answers
from data.questions.squad_files import load_json

PREDICTIONS, NBEST, NULL_ODDS = "predictions.json", "nbest_predictions.json", "null_odds.json"


def write_predictions(answers: Answers, folder: str, null_score_diff_threshold: float = 0.0) -> None:
    """Writes predictions.json (id -> text), nbest_predictions.json (id -> list of text, probability,
    start_logit, end_logit) and for version 2 null_odds.json (id -> odds) into `folder`."""
    _write(os.path.join(folder, PREDICTIONS), answers.predictions(null_score_diff_threshold))
    nbest = {
        each: [entry._asdict() for entry in answers.nbest(number)] for number, each in enumerate(answers.ids)
    }
    _write(os.path.join(folder, NBEST), nbest)
    if answers.version_2:
        _write(os.path.join(folder, NULL_ODDS), answers.odds())


def read_predictions(path: str, flag: str) -> dict[str, str]:
    """A file id -> text. Raises InputError for anything else."""
    content = load_json(path, flag)
    if not isinstance(content, dict) or not all(isinstance(value, str) for value in content.values()):
        raise InputError(f"{flag} {path}: must be one object of ids and answers, such as {PREDICTIONS}")
    return content


def read_null_odds(path: str, flag: str) -> dict[str, float]:
    """A file id -> number. Raises InputError for anything else."""
    content = load_json(path, flag)
    if not isinstance(content, dict) or not all(map(_is_number, content.values())):
        raise InputError(f"{flag} {path}: must be one object of ids and numbers, such as {NULL_ODDS}")
    return {each: float(value) for each, value in content.items()}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)


def _write(path: str, content: Any) -> None:
    with replacing(path) as handle:
        handle.write((json.dumps(content, indent=4) + "\n").encode("ascii"))
