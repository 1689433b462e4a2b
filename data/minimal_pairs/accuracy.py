"""Judgements of minimal pairs to accuracies by paradigm and group."""

from __future__ import annotations

from typing import NamedTuple, Sequence

import numpy as np

from data.minimal_pairs.read import MinimalPair


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
