"""The minimal pairs of BLiMP's own files (Warstadt et al. 2020, TACL), and of tables like them."""

from __future__ import annotations

import os
import re
from typing import NamedTuple, NoReturn, Sequence

from base.errors import InputError
from data.classification.tables import Table
from data.text.corpus import expand_inputs

GOOD, BAD, PARADIGM = "sentence_good", "sentence_bad", "UID"
GROUP = ("linguistics_term", "term")  # BLiMP's name of the column, and a shorter one
# BLiMP's files have 13 terms; its paper (table 4) and everybody's averages have 12 groups: the two paradigms
# of selectional restrictions are among its nine of argument structure.
MERGED = {"s-selection": "argument_structure"}
_NAMES = re.compile(r"\.(jsonl|ndjson|tsv|csv)(\.(gz|bz2|xz|zst))?$", re.IGNORECASE)


class MinimalPair(NamedTuple):
    """An acceptable sentence and one that is not. `place`: flag, file and line, for messages."""

    place: str
    paradigm: str
    group: str
    good: str
    bad: str


def pair_files(patterns: str, flag: str) -> list[str]:
    """The files that paths, patterns and folders name, with commas between them; of a folder those whose
    names end with .jsonl, .tsv or .csv, also packed (.gz and others).

    Raises:
        InputError: as `expand_inputs`, or none of the files in a folder is of these kinds.
    """
    found = expand_inputs(patterns, flag)
    named = {os.path.expanduser(piece.strip()) for piece in patterns.split(",")}
    chosen = [path for path in found if path in named or _NAMES.search(path)]
    if not chosen:
        raise InputError(f"{flag}: no file in {patterns} ends with .jsonl, .tsv or .csv; name the files")
    return chosen


def read_pairs(paths: Sequence[str], flag: str) -> list[MinimalPair]:
    """All pairs of the files, in their order.

    Columns, or keys of the JSON objects: sentence_good and sentence_bad; UID, the paradigm (without: the
    file's name); linguistics_term or term, its group (without: the paradigm), where BLiMP's s-selection is
    counted as argument_structure.

    Raises:
        InputError: naming file and line, for a file that is empty, no table or without the two sentences, a
            line with something missing, or a paradigm in two groups.
    """
    pairs: list[MinimalPair] = []
    group_of: dict[str, str] = {}
    for path in paths:
        table = Table(path, flag)
        missing = [name for name in (GOOD, BAD) if name not in table.columns]
        if missing:
            raise InputError(
                f"{flag}: {path} has no column {missing[0]!r}, but {', '.join(table.columns)}; BLiMP's files "
                f"have {GOOD}, {BAD}, {PARADIGM} and {GROUP[0]}"
            )
        stem = _NAMES.sub("", os.path.basename(path))
        term = next((name for name in GROUP if name in table.columns), "")
        before = len(pairs)
        for line in table.lines():
            place = table.place(line.number)
            if line.problem:
                _reject(place, line.problem)
            cells = {name: cell.strip() for name, cell in zip(table.columns, line.cells)}
            empty = [name for name in (GOOD, BAD, PARADIGM, term) if name in cells and not cells[name]]
            if empty:
                _reject(place, f"{empty[0]} is empty")
            paradigm = cells.get(PARADIGM, stem)
            group = MERGED.get(cells[term], cells[term]) if term else paradigm
            if group_of.setdefault(paradigm, group) != group:
                _reject(place, f"{paradigm} is in the group {group}, and in {group_of[paradigm]} before")
            pairs.append(MinimalPair(place, paradigm, group, cells[GOOD], cells[BAD]))
        if len(pairs) == before:
            raise InputError(f"{flag}: {path} has a header and no pairs")
    return pairs


def _reject(place: str, problem: str) -> NoReturn:
    raise InputError(f"{place}: {problem}; correct the line or remove it")
