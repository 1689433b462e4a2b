"""Summaries of members: scores with mean and spread over seeds, the best of a search, two models compared.

The statistics, and the rule by which two are called different, are those of tasks.seeds. No MXNet.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any, Mapping, NamedTuple, Sequence

from base.errors import InputError
from base.tables import EMPTY, Row, Table
from tasks.seeds import CONFIDENCE, FEWEST_SEEDS, Scores, Summary, Verdict, compare_models, summarize
from training.results.members import Member, read_plan
from training.results.record import FINISHED, UNFINISHED, Result, has_result, read_result

# For verdicts, for readers of a table.
RULE = (
    f"Runs with {FEWEST_SEEDS} seeds in common are compared seed by seed, by a paired t-test, others by "
    "Welch's; two models are called different only if the p-value, adjusted by Holm's method over all "
    f"pairs, is at most {1 - CONFIDENCE:.2g}. No difference shown does not say that there is none."
)


class Missing(NamedTuple):
    """A member without a score, and the reason."""

    name: str
    status: str


@dataclass(frozen=True)
class Setting:
    """One combination of --search's values, or all of a folder without a search.

    `scores`: by name, then by seed, of finished members; `missing`: the other members.
    """

    name: str
    values: Mapping[str, str]
    scores: Mapping[str, Scores]
    missing: Sequence[Missing]

    def of(self, score: str) -> Summary | None:
        """Mean and spread of a score; None where no member has it."""
        scores = self.scores.get(score)
        return summarize(scores) if scores else None


@dataclass(frozen=True)
class Members:
    """A folder of members. `main_score` and `higher_is_better` are None where nothing has finished."""

    folder: str
    settings: Sequence[Setting]
    main_score: str | None
    higher_is_better: bool | None

    @property
    def score_names(self) -> list[str]:
        """The score that decides, then the others."""
        names = dict.fromkeys(name for each in self.settings for name in each.scores)
        return sorted(names, key=lambda name: name != self.main_score)

    @property
    def searched(self) -> list[str]:
        """Names of --search, none without it."""
        return list(self.settings[0].values) if self.settings else []

    def models(self, score: str) -> dict[str, Scores]:
        """A score by seed: of the folder or, with a search, of each setting."""
        return {
            each.name if self.searched else self.folder: each.scores.get(score, {}) for each in self.settings
        }

    def best(self) -> Setting | None:
        """The setting with the best mean of the score that decides, over the members that finished.

        One that has lost a member is left out, unless all have: runs that came to nothing cannot make the
        mean of the others look good.
        """
        scored = [each for each in self.settings if self.goodness(each) > -math.inf]
        whole = [each for each in scored if not each.missing] or scored
        return max(whole, key=self.goodness) if whole else None

    def goodness(self, setting: Setting) -> float:
        """The mean of the score that decides, negative where less of it is better; -inf without one."""
        summary = setting.of(self.main_score or "")
        if summary is None:
            return -math.inf
        return summary.mean if self.higher_is_better else -summary.mean

    def verdicts(self) -> list[Verdict]:
        """Every pair of the search's settings by the score that decides, as one family of tests."""
        models = {name: scores for name, scores in self.models(self.main_score or "").items() if scores}
        return compare_models(models) if len(models) > 1 else []


def read_members(folder: str) -> Members:
    """All members of a folder, finished or not.

    Raises:
        InputError: as `read_plan` and `read_result`; results of different tasks.
    """
    found: list[tuple[Member, Result | None]] = []
    for member in read_plan(folder).members:
        own = os.path.join(folder, member.name)
        found.append((member, read_result(own) if has_result(own) else None))
    finished = [result for _, result in found if result is not None and result.status == FINISHED]
    decisive = {(each.task, each.data, each.main_score, each.higher_is_better) for each in finished}
    if len(decisive) > 1:
        raise InputError(f"{folder}: its runs are of different tasks; show each folder below it by itself")
    main, higher = (finished[0].main_score, finished[0].higher_is_better) if finished else (None, None)
    groups: dict[tuple[tuple[str, str], ...], list[tuple[Member, Result | None]]] = {}
    for member, result in found:
        groups.setdefault(tuple(member.setting.items()), []).append((member, result))
    settings = [_setting(dict(values), members) for values, members in groups.items()]
    return Members(folder, settings, main, higher)


def _setting(values: Mapping[str, str], members: Sequence[tuple[Member, Result | None]]) -> Setting:
    scores: dict[str, dict[int, float]] = {}
    missing = []
    for member, result in members:
        if result is None or result.status != FINISHED:
            missing.append(Missing(member.name, UNFINISHED if result is None else result.status))
            continue
        for name, value in result.scores.items():
            if value is not None:
                scores.setdefault(name, {})[member.seed] = float(value)
    name = ", ".join(f"{name} {value}" for name, value in values.items()) or "all"
    return Setting(name, values, scores, missing)


def members_tables(members: Members) -> list[Table]:
    """Scores over seeds of one setting; with a search, its settings by the score that decides, best first."""
    if members.searched:
        return [_search_table(members)]
    (setting,) = members.settings
    names = [name for name in members.score_names if not name.endswith("_total")]  # numbers of questions
    rows = [Row([name, *_cells(summarize(setting.scores[name]))]) for name in names]
    count = len(setting.scores.get(members.main_score or "", ()))
    title = f"{members.folder}: scores over {count} run{'s' if count != 1 else ''}"
    notes = [_of_missing(setting)] if setting.missing else []
    notes += [f"±: standard deviation (n - 1). Interval: {CONFIDENCE:.0%} confidence, of the mean."]
    return [Table(title, ["score", "mean", "±", "interval", "runs", "values"], rows, 1, notes)]


def _search_table(members: Members) -> Table:
    main, best = members.main_score or "", members.best()
    rows = []
    for setting in sorted(members.settings, key=members.goodness, reverse=True):
        summary = setting.of(main)
        names = [str(value) for value in setting.values.values()]
        statuses = dict.fromkeys(each.status for each in setting.missing)
        mark = "best" if setting is best else ", ".join(statuses)
        rows.append(Row([*names, *(_cells(summary) if summary else [EMPTY] * 5), mark]))
    head = [*members.searched, f"{main or 'score'}, mean", "±", "interval", "runs", "values", ""]
    title = f"{members.folder}: {len(members.settings)} settings by {main or 'score'} on the dev split"
    return Table(title, head, rows, len(members.searched), search_notes(members))


def search_notes(members: Members) -> list[str]:
    """Sentences on a search: its best setting, and which others differ from it beyond the noise."""
    notes = [_of_missing(each) for each in members.settings if each.missing]
    best = members.best()
    if best is None:
        return [*notes, "No run has finished with a score."]
    options = " ".join(f"--{name} {value}" for name, value in best.values.items())
    notes.append(f"Best by its mean: {options}.")
    involved = [each for each in members.verdicts() if best.name in (each.first, each.second)]
    different = [each for each in involved if each.verdict == "different"]
    if involved and not different:
        few = any(each.verdict == "too few seeds" for each in involved)
        notes.append(
            f"It is not shown to differ from any other: fewer than {FEWEST_SEEDS} seeds."
            if few
            else "It is not shown to differ from any other beyond the noise of the seeds."
        )
    elif involved:
        others = ", ".join(each.second if each.first == best.name else each.first for each in different)
        notes.append(f"It differs from {others}, beyond the noise of the seeds.")
    notes.append(
        "The best of several is chosen by luck too: its score on this dev split is rather too good. Report "
        "that of other data, or of new seeds."
    )
    return notes


def compared(members: Sequence[Members], score: str | None = None) -> list[Verdict]:
    """Every pair of folders without a search by one score, the one that decides where none is named.

    Raises:
        InputError: a folder with a search, without that score, or another task's.
    """
    names: dict[str, Scores] = {}
    for each in members:
        if each.searched:
            raise InputError(f"{each.folder} is a search; name folders of --seeds, one a model")
        name = score or members[0].main_score
        found = each.settings[0].scores.get(name or "") if each.settings else None
        if not found or (score is None and each.main_score != name):
            known = ", ".join(each.score_names) or "none: no run has finished"
            raise InputError(
                f"{each.folder} has no score {name or ''} (it has {known}); name one with --score"
            )
        names[each.folder] = found
    if len(names) < len(members):
        raise InputError(f"{members[0].folder} is named twice; name two folders to compare")
    return compare_models(names)


def comparison_table(members: Sequence[Members], score: str | None = None) -> Table:
    """Means over seeds of several folders, and what is shown of each pair. Raises as `compared`."""
    verdicts = compared(members, score)
    name = score or members[0].main_score or ""
    rows = [Row([each.folder, *_cells(summarize(each.settings[0].scores[name]))]) for each in members]
    notes = [verdict.sentence(form_of(verdict.difference)) + "." for verdict in verdicts]
    notes += [_of_missing(each.settings[0]) for each in members if each.settings[0].missing]
    notes.append(RULE)
    return Table(f"{name} over seeds", ["runs", "mean", "±", "interval", "runs", "values"], rows, 1, notes)


def verdict_table(title: str, verdicts: Sequence[Verdict], models: Mapping[str, Scores]) -> Table:
    """Verdicts for a page, where each leads to the scores of both models by seed."""
    rows = []
    for each in verdicts:
        form = form_of(each.difference)
        interval, p = EMPTY, EMPTY
        if each.low is not None:
            interval, p = f"{each.low:+{form}} to {each.high:+{form}}", f"{each.adjusted:.4f}"
        cells = [each.first, each.second, f"{each.difference:+{form}}", interval, p, each.verdict]
        one, other = models[each.first], models[each.second]
        behind = [
            Row([str(seed), *(f"{own[seed]:.6g}" if seed in own else EMPTY for own in (one, other))])
            for seed in sorted({*one, *other})
        ]
        names = f"Scores by seed: {each.first} (A), {each.second} (B)"
        rows.append(Row(cells, samples=Table(names, ["seed", "A", "B"], behind)))
    head = ["A", "B", "B - A", "interval", "p", "verdict"]
    return Table(title, head, rows, 2)


def members_json(members: Members) -> dict[str, Any]:
    """The summary for programs."""
    best = members.best()
    return {
        "folder": members.folder,
        "main_score": members.main_score,
        "higher_is_better": members.higher_is_better,
        "settings": [
            {
                "setting": dict(each.values),
                "scores": {
                    name: {
                        **summarize(each.scores[name])._asdict(),
                        "by_seed": {str(seed): value for seed, value in sorted(each.scores[name].items())},
                    }
                    for name in each.scores
                },
                "missing": [missing._asdict() for missing in each.missing],
            }
            for each in members.settings
        ],
        "best": None if best is None or not members.searched else dict(best.values),
        "verdicts": [each._asdict() for each in members.verdicts()],
    }


def form_of(value: float) -> str:
    """Format of a score: shares to four places, percentages to two."""
    return ".4f" if abs(value) <= 1 else ".2f"


def _cells(summary: Summary) -> list[str]:
    """Mean, deviation, interval, runs, each value, all with as many places as the mean needs."""
    form = form_of(summary.mean)
    deviation = EMPTY if summary.deviation is None else format(summary.deviation, form)
    interval = EMPTY
    if summary.half is not None:
        interval = f"{summary.mean - summary.half:{form}} to {summary.mean + summary.half:{form}}"
    values = ", ".join(format(value, form) for value in summary.values)
    return [format(summary.mean, form), deviation, interval, str(len(summary.values)), values]


def _of_missing(setting: Setting) -> str:
    listed = ", ".join(f"{each.name} ({each.status})" for each in setting.missing)
    return f"Without {listed}."
