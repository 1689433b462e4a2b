"""report.md: the summary first, then tables, plots, the rule of verdicts, and what was run on what."""

from __future__ import annotations

import shlex
from typing import Any, Mapping, Sequence

from comparison.reporting import plots, views
from comparison.reporting.limits import compared
from comparison.reporting.results import Results
from comparison.reporting.tables import Table, markdown
from comparison.reporting.wording import batch_unit, group_words
from comparison.settings import Setting
from comparison.statistics import rule

_PLOTS = {
    plots.THROUGHPUT: "Throughput of every setting",
    plots.SCALING: "Throughput and efficiency by the number of workers",
    plots.BREAKDOWN: "Parts of a step, medians over the profiled launches",
    plots.LOSSES: "Losses of all backends on top of each other",
}


def document(
    first: Sequence[str],
    tables: Sequence[Table],
    drawn: Sequence[str],
    results: Results,
    facts: Mapping[str, Any],
    planned: Sequence[Setting],
    repeats: int,
) -> str:
    """The whole text. `first`: its first sentences; `drawn`: the plots, which lie beside it."""
    machine = facts.get("machine") or {}
    parts = ["# Horovod against BytePS", *first, "## Results", *(markdown(each) for each in tables)]
    parts += ["## Plots", *(f"![{_PLOTS[name]}]({name})" for name in drawn)] if drawn else []
    parts += [
        "## The same as others print it",
        markdown(views.throughput(results, facts, planned)),
        markdown(views.training_time(results, facts)),
        markdown(views.expansion(results, facts)),
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
    """How far the backends that agree are apart; "" where there are no two."""
    found = []
    for kind in dict.fromkeys(kind for each in results.greatest_difference.values() for kind in each):
        values = {group: each[kind] for group, each in results.greatest_difference.items()}
        worst = max(values, key=lambda group: values[group])
        where = f"{values[worst]:.2g} ({group_words(worst, facts)})" if values[worst] else "none"
        found.append(f"of {kind}: {where}")
    return f"Greatest relative difference of backends that agree, {'; '.join(found)}." if found else ""


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
