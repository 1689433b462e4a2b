"""Pairs of sentences, of which a model of the language should find the first one likelier, as in BLiMP: files
of them, sentences to masked copies, judgements to accuracies by paradigm and group, and a picture of these.

The predictions of the copies add up to pseudo-log-likelihoods. That of a sentence is the sum over its tokens
of log p(token | the sentence with that token masked) (Salazar et al., arXiv:1910.14659, equation 1). [CLS]
and [SEP] are no tokens of it. A word of several pieces is thereby overrated: a piece is easily guessed from
the next ones. In the variant of Kauf and Ivanova (arXiv:2305.10588, section 3: PLL-word-l2r) the later pieces
of the same word are masked, too.
"""

from __future__ import annotations

import os
import re
from typing import Iterator, NamedTuple, NoReturn, Sequence

import numpy as np

from base.drawing import COLOURS, literal, new_figure
from base.errors import InputError
from base.files import replacing
from data.classification.examples import Table
from data.text.corpus import expand_inputs
from data.tokenizing.vocab import Vocabulary

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


METRICS = WORD_L2R, ORIGINAL = "word_l2r", "original"


class Sentence(NamedTuple):
    """Token ids (L,) int32 with [CLS] and [SEP], and for each place in [1, L - 1) the end, exclusive, of what
    is masked to predict it, (L - 2,) int32."""

    ids: np.ndarray
    ends: np.ndarray


class Batch(NamedTuple):
    """Copies computed together, (B, L) int32 ids, [PAD] behind shorter ones. Of each: its length (B,), the
    place predicted and the token that stood there (B, 1), all int32, and the number of its sentence."""

    ids: np.ndarray
    lengths: np.ndarray
    places: np.ndarray
    labels: np.ndarray
    sentences: np.ndarray


def to_score(tokens: Sequence[int], vocabulary: Vocabulary, metric: str) -> Sentence:
    """The sentence of these token ids, one at least. `metric`: of METRICS."""
    ids = np.array([vocabulary.cls_id, *tokens, vocabulary.sep_id], np.int32)
    ends = np.arange(2, len(ids), dtype=np.int32)
    if metric == WORD_L2R:
        continues = vocabulary.is_continuation[ids]
        for place in range(len(ids) - 3, 0, -1):
            if continues[place + 1]:
                ends[place - 1] = ends[place]
    return Sentence(ids, ends)


def batches(sentences: Sequence[Sentence], vocabulary: Vocabulary, batch_tokens: int) -> Iterator[Batch]:
    """All copies of all sentences, the longest first, so that hardly any padding is needed; in each batch as
    many as have at most `batch_tokens` tokens, padding included, but one at least."""
    order = sorted(range(len(sentences)), key=lambda number: -len(sentences[number].ids))
    copies = [(number, place) for number in order for place in range(len(sentences[number].ends))]
    start = 0
    while start < len(copies):
        length = len(sentences[copies[start][0]].ids)
        chosen = copies[start : start + max(1, batch_tokens // length)]
        start += len(chosen)
        ids = np.full((len(chosen), length), vocabulary.pad_id, np.int32)
        lengths, places, labels = (np.empty(len(chosen), np.int32) for _ in range(3))
        for row, (number, index) in enumerate(chosen):
            own, ends = sentences[number]
            ids[row, : len(own)] = own
            ids[row, 1 + index : ends[index]] = vocabulary.mask_id
            lengths[row], places[row], labels[row] = len(own), 1 + index, own[1 + index]
        numbers = np.array([number for number, _ in chosen])
        yield Batch(ids, lengths, places[:, None], labels[:, None], numbers)


def tokens_in(sentences: Sequence[Sentence]) -> int:
    """The tokens of all copies, as many as the network computes."""
    return sum(len(each.ids) * len(each.ends) for each in sentences)


_COLOURS = COLOURS[:6]  # without black; groups with one colour are far from each other
_INCHES = 0.19  # of a bar


class Accuracy(NamedTuple):
    """A share of right judgements, in [0, 1], a tie being half of one, and its standard error, NaN where a
    paradigm has one pair alone. `name`: "" for the mean of all."""

    name: str
    group: str
    pairs: int
    ties: int
    accuracy: float
    error: float


class Accuracies(NamedTuple):
    """Of the paradigms, in the order of their groups; of the groups; their means."""

    paradigms: list[Accuracy]
    groups: list[Accuracy]
    mean_of_groups: Accuracy
    mean_of_paradigms: Accuracy


def accuracies(pairs: Sequence[MinimalPair], good: np.ndarray, bad: np.ndarray) -> Accuracies:
    """Of scores of the acceptable and the unacceptable sentences, (pairs,) float64, the higher the likelier.

    A pair is right where the acceptable sentence has the higher score. Where both have the same, a coin would
    decide, so it counts as half: a model that knows nothing of a paradigm has 0.5 there. The accuracy of a
    group is the mean over its paradigms, as is that of all. A standard error is that of the mean of a
    paradigm's pairs, and of means of such means, all pairs taken as independent.
    """
    right = (good > bad) + 0.5 * (good == bad)
    members: dict[tuple[str, str], list[int]] = {}
    for index, pair in enumerate(pairs):
        members.setdefault((pair.group, pair.paradigm), []).append(index)
    paradigms = []
    for group, name in sorted(members):
        own = right[members[group, name]]
        error = float(own.std(ddof=1) / np.sqrt(len(own))) if len(own) > 1 else float("nan")
        ties = int(np.sum(own == 0.5))
        paradigms.append(Accuracy(name, group, len(own), ties, float(own.mean()), error))
    names = dict.fromkeys(each.group for each in paradigms)
    groups = [_mean([each for each in paradigms if each.group == name], name) for name in names]
    return Accuracies(paradigms, groups, _mean(groups, ""), _mean(paradigms, ""))


def _mean(parts: Sequence[Accuracy], group: str) -> Accuracy:
    pairs, ties = sum(each.pairs for each in parts), sum(each.ties for each in parts)
    error = float(np.sqrt(sum(each.error**2 for each in parts)) / len(parts))
    return Accuracy("", group, pairs, ties, float(np.mean([each.accuracy for each in parts])), error)


def draw_accuracies(path: str, title: str, found: Accuracies) -> None:
    """Writes a PNG with a bar for each paradigm, coloured by group, whiskers of two standard errors, and a
    line at chance. The file is written whole or not at all. Raises OSError when it cannot be."""
    names = [each.group for each in found.groups]
    figure = new_figure((9, 1.6 + _INCHES * len(found.paradigms)))
    axes = figure.subplots()
    axes.set(title=literal(title), xlabel="accuracy in %, with two standard errors", xlim=(0, 100))
    places = range(len(found.paradigms))
    for group in names:
        own = [index for index in places if found.paradigms[index].group == group]
        axes.barh(
            own,
            [100 * found.paradigms[index].accuracy for index in own],
            xerr=[200 * found.paradigms[index].error for index in own],
            color=_COLOURS[names.index(group) % len(_COLOURS)],
            error_kw={"elinewidth": 0.8},
        )
        axes.text(101, sum(own) / len(own), literal(group), va="center", fontsize=8)
    axes.axvline(50, color="black", linewidth=0.8, linestyle="--", label="chance")
    axes.set_yticks(places, [literal(each.name) for each in found.paradigms], fontsize=7)
    axes.set_ylim(len(found.paradigms) - 0.4, -0.6)  # the first one at the top
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower left", fontsize=8)
    with replacing(path) as file:
        figure.savefig(file, format="png", metadata={"Software": None})
