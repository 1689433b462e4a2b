"""report.md: the summary first, then tables, plots, the rule of verdicts, and what was run on what."""

from __future__ import annotations

import shlex
from typing import Any, Mapping, Sequence

from base.tables import Table, markdown
from comparison.reporting import agreement, plots, sections
from comparison.reporting.limits import compared
from comparison.reporting.results import FAILED, NOT_RUN, OUT_OF_MEMORY, Result, Results
from comparison.reporting.wording import batch_unit, group_words, marked, title_of
from comparison.settings import Group
from comparison.verdicts import DIFFERENT, NOT_SHOWN, TOO_FEW, Pair, rule

_FEW = 2  # so many settings are named one by one
_PLOTS = {
    plots.THROUGHPUT: "Throughput of every setting",
    plots.SCALING: "Throughput and efficiency by the number of workers",
    plots.BREAKDOWN: "Parts of a step, medians over the profiled launches",
    plots.LOSSES: "Losses of all backends on top of each other",
}


def summary(results: Results, facts: Mapping[str, Any]) -> list[str]:
    """Sentences; at least one."""
    sentences = [*_verdicts(results.pairs, facts), *_troubles(results, facts)]
    if not results.pairs:
        sentences.insert(0, "No two backends have figures for the same setting: there is nothing to compare.")
    return sentences


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
        for backend, of_backend in by_backend.items():
            groups = [each.setting.group for each in of_backend]
            ran = sum(each.setting.backend == backend for each in results.results)
            if len(groups) == ran:
                where = "everywhere" if ran > 1 else group_words(groups[0], facts)
            elif len(groups) <= _FEW:
                where = "; ".join(group_words(each, facts) for each in groups)
            else:
                where = f"{len(groups)} of {ran} settings"
            what = " or ".join(dict.fromkeys(each.differs for each in of_backend if each.differs))
            named.append(f"{title_of(backend, facts)} ({where}{': ' if what else ''}{what})")
        sentences.append(f"{words}: {', '.join(named)}.")
    return sentences


def document(
    first: Sequence[str],
    tables: Sequence[Table],
    drawn: Sequence[str],
    results: Results,
    facts: Mapping[str, Any],
    repeats: int,
) -> str:
    """The whole text. `first`: its first sentences; `drawn`: the plots, which lie beside it."""
    planned = [each.setting for each in results.results]
    usual = [
        sections.throughput(results, facts, planned),
        sections.training_time(results, facts),
        sections.expansion(results, facts),
    ]
    machine = facts.get("machine") or {}
    parts = ["# Horovod against BytePS", *first, "## Results", *(markdown(each) for each in tables)]
    parts += ["## Plots", *(f"![{_PLOTS[name]}]({name})" for name in drawn)] if drawn else []
    parts += [
        "## The same as others print it",
        *(markdown(marked(each, facts["busy"])) for each in usual),
        "## How verdicts are reached",
        compared(planned, facts),
        _greatest_words(results, facts),
        rule(facts["confidence"]),
        "## What was run",
        _run_words(facts, repeats),
        _listing("Machine", machine),
        _listing("Versions", facts.get("versions") or {}),
        "The comparison:",
        _code([facts.get("command") or []]),
        "One launch of each setting:",
        _code([each.command for each in results.results]),
        "## What the figures mean, and what not",
        *_meaning(facts, machine),
    ]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _greatest_words(results: Results, facts: Mapping[str, Any]) -> str:
    """Differences of the backends that agree, in words; "" where there are no two."""
    words = []
    for kind in dict.fromkeys(kind for each in results.greatest_difference.values() for kind in each):
        values = {group: each[kind] for group, each in results.greatest_difference.items()}
        worst = max(values, key=lambda group: values[group])
        where = f"{values[worst]:.2g} ({group_words(worst, facts)})" if values[worst] else "none"
        words.append(f"of {kind}: {where}")
    return f"Greatest relative difference of backends that agree, {'; '.join(words)}." if words else ""


def _run_words(facts: Mapping[str, Any], repeats: int) -> str:
    average = " with --use_avg_len" if facts["use_avg_len"] else ""
    return (
        f"{facts['model']}, vocabulary {facts['vocab_size']:,}, sequences of at most"
        f" {facts['max_seq_length']} tokens, batch sizes in {batch_unit(facts)} a worker{average},"
        f" {facts.get('accumulate') or 1} micro-batch(es) a step. Each launch takes {facts['num_steps']}"
        f" steps, of which the first {facts['warmup_steps']} are warm-up; a line of metrics every"
        f" {facts['log_interval']} steps."
        f" {repeats} repeats; every repeat runs all settings once, in an order drawn for it, the backends of"
        " a setting next to each other."
    )


def _meaning(facts: Mapping[str, Any], machine: Mapping[str, Any]) -> list[str]:
    cores = f" ({machine['cores']} cores)" if machine.get("cores") else ""
    lines = [
        "Seconds per step are wall time of training: forward, backward, exchange, update, and waiting for"
        " data; checkpoints and evaluation are not in them.",
        f"They hold for this machine{cores}, this model, these batch sizes and these versions. Workers that"
        " share a machine share its cores and memory bandwidth, also with BytePS's servers; where the"
        " exchange goes through loopback or shared memory it says nothing about a network.",
        "A backend that agrees with the others has computed the same for the steps that were run; that is no"
        " proof for longer runs or more workers.",
        "The times to finish are rates multiplied out; nobody ran them.",
    ]
    return ["\n".join(f"- {line}" for line in lines)]


def _listing(title: str, values: Mapping[str, Any]) -> str:
    rows = [f"- {name}: {_plain(value)}" for name, value in values.items() if value not in ("", [], None)]
    return "\n".join([f"{title}:", "", *(rows or ["- unknown"])])


def _plain(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _code(commands: Sequence[Sequence[str]]) -> str:
    lines = [shlex.join(str(word) for word in command) for command in commands if command]
    return "\n".join(["```text", *(lines or ["(none yet)"]), "```"])
