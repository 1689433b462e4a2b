"""The first sentences of a report: who is faster where, and what did not work."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from comparison.reporting import agreement
from comparison.reporting.results import FAILED, NOT_RUN, OUT_OF_MEMORY, Result, Results
from comparison.reporting.wording import group_words, title_of
from comparison.settings import Group
from comparison.statistics import DIFFERENT, NOT_SHOWN, TOO_FEW, Pair

_FEW = 2  # so many settings are named one by one


def summary(results: Results, facts: Mapping[str, Any]) -> list[str]:
    """Sentences; at least one."""
    found = [*_verdicts(results.pairs, facts), *_troubles(results, facts)]
    if not results.pairs:
        found.insert(0, "No two backends have figures for the same setting: there is nothing to compare.")
    return found


def _verdicts(pairs: Sequence[Pair], facts: Mapping[str, Any]) -> list[str]:
    by_names: dict[tuple[str, str], list[Pair]] = {}
    for each in pairs:
        by_names.setdefault((each.first, each.second), []).append(each)
    decided, open_ = [], []
    for (first, second), members in by_names.items():
        shown = [each for each in members if each.verdict == DIFFERENT]
        if shown:
            decided.append(_decided(first, second, members, facts))
        else:
            open_.append((first, second, members))
    sentences = list(decided)
    for kind, words in ((NOT_SHOWN, "no difference shown"), (TOO_FEW, "too few repeats for a verdict")):
        chosen = [
            f"{title_of(first, facts)} and {title_of(second, facts)}"
            for first, second, members in open_
            if any(each.verdict == kind for each in members)
            and (kind == NOT_SHOWN or all(each.verdict == kind for each in members))
        ]
        if chosen:
            sentences.append(f"{words[0].upper()}{words[1:]}: {'; '.join(chosen)}.")
    return sentences


def _decided(first: str, second: str, members: Sequence[Pair], facts: Mapping[str, Any]) -> str:
    parts = []
    for winner, loser in ((first, second), (second, first)):
        won = [each for each in members if each.faster == winner]
        if not won:
            continue
        times = sorted(max(each.ratio, 1 / each.ratio) for each in won)
        factor = " to ".join(dict.fromkeys(f"{each:.2f}" for each in (times[0], times[-1])))
        where = _where(won, members, facts)
        parts.append(
            f"{title_of(winner, facts)} is faster than {title_of(loser, facts)} {where},"
            f" {factor} times as fast"
        )
    rest = [each for each in members if each.verdict != DIFFERENT]
    text = "; ".join(parts)
    if rest:
        kinds = " or ".join(dict.fromkeys(each.verdict for each in rest))
        text += f"; in the other {len(rest)} {kinds}" if len(rest) > 1 else f"; in the other one {kinds}"
    return f"{text}."


def _where(won: Sequence[Pair], members: Sequence[Pair], facts: Mapping[str, Any]) -> str:
    if len(won) == len(members):
        return "in the only setting compared" if len(won) == 1 else f"in all {len(won)} settings"
    groups = [Group(*each.group) for each in won]  # type: ignore[misc]
    if len(won) <= _FEW:
        return "with " + " and with ".join(group_words(each, facts) for each in groups)
    counts = []
    for workers in sorted({each.workers for each in groups}):
        here = sum(Group(*each.group).workers == workers for each in members)  # type: ignore[misc]
        hits = sum(each.workers == workers for each in groups)
        counts.append(f"{hits} of {here} with {workers} worker{'s' if workers > 1 else ''}")
    return f"in {len(won)} of {len(members)} settings ({', '.join(counts)})"


def _troubles(results: Results, facts: Mapping[str, Any]) -> list[str]:
    kinds = {
        agreement.WRONG: "Wrong, without figures",
        agreement.UNDECIDED: "Backends differ and no majority says which is right, without figures",
        FAILED: "Failed",
        OUT_OF_MEMORY: "Out of memory",
        NOT_RUN: "Not run yet",
    }
    sentences = []
    for kind, words in kinds.items():
        chosen = [each for each in results.results if each.kind == kind]
        if not chosen:
            continue
        by_backend: dict[str, list[Result]] = {}
        for each in chosen:
            by_backend.setdefault(each.setting.backend, []).append(each)
        named = []
        for backend, found in by_backend.items():
            groups = [each.setting.group for each in found]
            ran = sum(each.setting.backend == backend for each in results.results)
            if len(groups) == ran:
                where = "everywhere" if ran > 1 else group_words(groups[0], facts)
            elif len(groups) <= _FEW:
                where = "; ".join(group_words(each, facts) for each in groups)
            else:
                where = f"{len(groups)} of {ran} settings"
            what = " or ".join(dict.fromkeys(each.differs for each in found if each.differs))
            named.append(f"{title_of(backend, facts)} ({where}{': ' if what else ''}{what})")
        sentences.append(f"{words}: {', '.join(named)}.")
    return sentences
