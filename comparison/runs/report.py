"""The report of a comparison: report.md, report.json and plots, and a text for the terminal.

report.md has the summary first, then tables, plots, the rule of verdicts, and what was run on what.
"""

from __future__ import annotations

import shlex
from collections import Counter
from typing import Any, Mapping, Sequence

from base.tables import Table
from comparison.report import PLANNING, Part, Report, busy_mark, marked, with_remarks
from comparison.runs import agreement, plots, sections
from comparison.runs.agreement import compared
from comparison.runs.record import TIMED, Record
from comparison.runs.results import FAILED, NOT_RUN, OUT_OF_MEMORY, Result, Results, gather
from comparison.settings import Setting
from comparison.verdicts import DIFFERENT, EQUAL, FEWEST_REPEATS, NOT_SHOWN, TOO_FEW, Pair, planning, rule

NAME = "report"  # of the files
SCHEMA = 2  # of report.json; it grows where the meaning of a field changes


def report_of(
    facts: Mapping[str, Any],
    records: Sequence[Record],
    planned: Sequence[Setting],
    repeats: int,
    complete: bool,
) -> tuple[Report, Results]:
    """The report of the launches so far, and the results that it is about.

    Args:
        facts: JSON-able. machine (of `base.machine.describe`), versions, options, model, vocab_size,
            max_seq_length, use_avg_len, accumulate, num_steps, warmup_steps, log_interval, confidence,
            price_per_hour (or None), gpus_per_instance (or None), command, titles (key of a backend -> its
            name for people); optionally hosts (lines of a host file).
        records: of the launches so far; settings may have none.
        planned: the settings in the order of the tables.
        repeats: timed launches planned for each.
        complete: False for a report in between.
    """
    shares = [each.others for each in records if each.others is not None and not each.failure]
    facts = {**facts, "busy": busy_mark(shares)}
    results = gather(facts, records, planned)
    pictures = {name: draw(results) for name, (_, draw) in _PLOTS.items()}
    # Warnings stand before everything else.
    warnings = []
    if not complete:
        done = {(each.setting, each.repeat) for each in records if each.kind == TIMED}
        made = sum(setting in planned for setting, _ in done)
        timed = f"{made} of {len(planned) * repeats} timed launches are done"
        warnings.append(f"PARTIAL: {timed}; the same command goes on.")
    if repeats < FEWEST_REPEATS:
        warnings.append(f"Too few repeats for verdicts: {repeats}; it takes {FEWEST_REPEATS}.")
    tables = marked(
        [sections.speed(results, repeats), *(section(results) for section in sections.AFTER_SPEED)],
        facts["busy"],
    )
    planned_repeats = planning(results.pairs, facts["confidence"])
    first = with_remarks([*warnings, *summary(results)], planned_repeats, shares)
    # `launches` are the raw samples; seconds, bytes, nats.
    content = {
        "schema": SCHEMA,
        "complete": complete,
        "repeats": repeats,
        "summary": first,
        "rule": rule(facts["confidence"]),
        "facts": facts,
        "planned": planned,
        "results": results.results,
        "pairs": results.pairs,
        PLANNING: planned_repeats,
        "compared": compared(planned, facts),
        "greatest_relative_difference": [
            {**group._asdict(), **greatest} for group, greatest in results.greatest_difference.items()
        ],
        "launches": records,
    }
    drawn = [name for name, figure in pictures.items() if figure]
    document = _document(first, tables, drawn, results, repeats)
    shown: list[Part] = [*tables, "\n".join(first) + "\n"]
    return Report(NAME, document, content, pictures, shown, facts["busy"]), results


_FEW = 2  # so many settings are named one by one
_PLOTS = {
    "throughput.png": ("Throughput of every setting", plots.throughput),
    "scaling.png": ("Throughput and efficiency by the number of workers", plots.scaling),
    "breakdown.png": ("Parts of a step, medians over the profiled launches", plots.breakdown_figure),
    "losses.png": ("Losses of all backends on top of each other", plots.losses),
}


def summary(results: Results) -> list[str]:
    """Sentences; at least one."""
    by_names: dict[tuple[str, str], list[Pair]] = {}
    for each in results.pairs:
        by_names.setdefault((each.first, each.second), []).append(each)
    nothing = "No two backends have figures for the same setting: there is nothing to compare."
    sentences = [] if by_names else [nothing]
    undecided: dict[str, list[str]] = {EQUAL: [], NOT_SHOWN: [], TOO_FEW: []}
    for (first, second), members in by_names.items():
        kinds = {each.verdict for each in members}
        if DIFFERENT in kinds:
            sentences.append(_decided(first, second, members, results))
        else:
            kind = next((each for each in (NOT_SHOWN, EQUAL) if each in kinds), TOO_FEW)
            undecided[kind].append(f"{results.title(first)} and {results.title(second)}")
    for kind, names in undecided.items():
        words = kind.capitalize() + (" for a verdict" if kind == TOO_FEW else "")
        sentences += [f"{words}: {'; '.join(names)}."] if names else []
    return [*sentences, *_troubles(results)]


def _decided(first: str, second: str, members: Sequence[Pair], results: Results) -> str:
    """Sentence on two backends: the faster one, where, and how many times as fast."""
    parts = []
    for winner, loser in ((first, second), (second, first)):
        won = [each for each in members if each.faster == winner]
        if not won:
            continue
        times = sorted(max(each.ratio, 1 / each.ratio) for each in won)
        factor = " to ".join(dict.fromkeys(f"{each:.2f}" for each in (times[0], times[-1])))
        if len(won) == len(members):
            where = "in the only setting compared" if len(won) == 1 else f"in all {len(won)} settings"
        elif len(won) <= _FEW:
            where = "with " + " and with ".join(results.words(each.group) for each in won)
        else:
            here, hits = (Counter(each.group.workers for each in some) for some in (members, won))
            counts = [
                f"{hits[workers]} of {here[workers]} with {workers} worker{'s' if workers > 1 else ''}"
                for workers in sorted(hits)
            ]
            where = f"in {len(won)} of {len(members)} settings ({', '.join(counts)})"
        names = f"{results.title(winner)} is faster than {results.title(loser)}"
        parts.append(f"{names} {where}, {factor} times as fast")
    rest = [each for each in members if each.verdict != DIFFERENT]
    if rest:
        kinds = " or ".join(dict.fromkeys(each.verdict for each in rest))
        parts.append(f"in the other {len(rest) if len(rest) > 1 else 'one'} {kinds}")
    return f"{'; '.join(parts)}."


def _troubles(results: Results) -> list[str]:
    kinds = {
        agreement.WRONG: "Wrong, without figures",
        agreement.UNDECIDED: "Backends differ and no majority says which is right, without figures",
        FAILED: "Failed",
        OUT_OF_MEMORY: "Out of memory",
        NOT_RUN: "Not run yet",
    }
    sentences = []
    for kind, words in kinds.items():
        by_backend: dict[str, list[Result]] = {}
        for each in results.results:
            if each.kind == kind:
                by_backend.setdefault(each.setting.backend, []).append(each)
        named = []
        for backend, own in by_backend.items():
            groups = [results.words(each.setting.group) for each in own]
            ran = sum(each.setting.backend == backend for each in results.results)
            where = "; ".join(groups) if len(groups) <= _FEW else f"{len(groups)} of {ran} settings"
            if len(groups) == ran > 1:
                where = "everywhere"
            what = " or ".join(dict.fromkeys(each.differs for each in own if each.differs))
            named.append(f"{results.title(backend)} ({where}{': ' if what else ''}{what})")
        if named:
            sentences.append(f"{words}: {', '.join(named)}.")
    return sentences


def _document(
    first: Sequence[str],
    tables: Sequence[Table],
    drawn: Sequence[str],
    results: Results,
    repeats: int,
) -> list[Part]:
    """The whole text. `first`: its first sentences; `drawn`: the plots, which lie beside it."""
    facts = results.facts
    greatest = []
    for kind in dict.fromkeys(kind for each in results.greatest_difference.values() for kind in each):
        value, worst = max(
            ((each[kind], group) for group, each in results.greatest_difference.items()), key=lambda it: it[0]
        )
        greatest.append(f"of {kind}: {f'{value:.2g} ({results.words(worst)})' if value else 'none'}")
    agreeing = f"Greatest relative difference of backends that agree, {'; '.join(greatest)}."
    average = " with --use_avg_len" if facts["use_avg_len"] else ""
    return [
        "# Horovod against BytePS",
        *first,
        "## Results",
        *tables,
        "## Plots" if drawn else "",
        *(f"![{_PLOTS[name][0]}]({name})" for name in drawn),
        "## The same as others print it",
        *marked([section(results) for section in sections.USUAL], facts["busy"]),
        "## How verdicts are reached",
        compared([each.setting for each in results.results], facts),
        agreeing if greatest else "",
        rule(facts["confidence"]),
        "## What was run",
        f"{facts['model']}, vocabulary {facts['vocab_size']:,}, sequences of at most"
        f" {facts['max_seq_length']} tokens, batch sizes in {results.unit} a worker{average},"
        f" {facts.get('accumulate') or 1} micro-batch(es) a step. Each launch takes {facts['num_steps']}"
        f" steps, of which the first {facts['warmup_steps']} are warm-up; a line of metrics every"
        f" {facts['log_interval']} steps."
        f" {repeats} repeats; every repeat runs all settings once, in an order drawn for it, the backends of"
        " a setting next to each other.",
        _listing("Machine", facts["machine"]),
        _listing("Versions", facts["versions"]),
        "The comparison:",
        _code([facts["command"]]),
        "One launch of each setting:",
        _code([each.command for each in results.results]),
        "## What the figures mean, and what not",
        "- Seconds per step are wall time of training: forward, backward, exchange, update, and waiting for"
        " data; checkpoints and evaluation are not in them.\n"
        f"- They hold for this machine ({facts['machine']['cores']} cores), this model, these batch sizes and"
        " these versions. Workers that share a machine share its cores and memory bandwidth, also with"
        " BytePS's servers; where the exchange goes through loopback or shared memory it says nothing about a"
        " network.\n"
        "- A backend that agrees with the others has computed the same for the steps that were run; that is"
        " no proof for longer runs or more workers.\n"
        "- The times to finish are rates multiplied out; nobody ran them.",
    ]


def _listing(title: str, values: Mapping[str, Any]) -> str:
    rows = [
        f"- {name}: {' '.join(map(str, value)) if isinstance(value, (list, tuple)) else value}"
        for name, value in values.items()
        if value not in ("", [], None)
    ]
    return "\n".join([f"{title}:", "", *rows])


def _code(commands: Sequence[Sequence[str]]) -> str:
    lines = [shlex.join(str(word) for word in command) for command in commands if command]
    return "\n".join(["```text", *(lines or ["(none yet)"]), "```"])
