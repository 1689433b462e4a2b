"""The report of a comparison: report.md, report.json and plots, and a text for the terminal."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Sequence

from base.files import replacing
from base.tables import Table, terminal
from comparison.reporting import plots, sections
from comparison.reporting.document import document, summary
from comparison.reporting.figures import Figures
from comparison.reporting.limits import compared
from comparison.reporting.results import Result, Results, gather
from comparison.reporting.wording import busy_mark, marked, with_others
from comparison.runs.record import TIMED, Record
from comparison.settings import Setting
from comparison.verdicts import FEWEST_REPEATS, Pair, rule

REPORT_MD, REPORT_JSON = "report.md", "report.json"
SCHEMA = 2  # of report.json; it grows where the meaning of a field changes


class Report(NamedTuple):
    """`terminal`: the tables and, at their end, the summary. `paths`: the files written."""

    terminal: str
    paths: Sequence[Path]
    results: Results


def write_report(
    directory: Path,
    facts: Mapping[str, Any],
    records: Sequence[Record],
    planned: Sequence[Setting],
    repeats: int,
    complete: bool,
) -> Report:
    """Write report.md, report.json and plots into `directory`; each appears whole or not at all.

    Args:
        facts: JSON-able. machine (of `base.machine.describe`), versions, options, model, vocab_size,
            max_seq_length, use_avg_len, accumulate, num_steps, warmup_steps, log_interval, confidence,
            price_per_hour (or None), gpus_per_instance (or None), command; optionally titles (backend ->
            name, for backends that are not in `comparison.launching.backends`).
        records: of the launches so far; settings may have none.
        planned: the settings in the order of the tables.
        repeats: timed launches planned for each.
        complete: False for a report in between.

    Raises:
        OSError: a file cannot be written.
    """
    shares = [each.others for each in records if each.others is not None and not each.failure]
    facts = {**facts, "busy": busy_mark(shares)}
    results = gather(facts, records, planned)
    drawn = plots.draw_all(directory, results, facts)
    state = _state(records, planned, repeats, complete)
    tables = _tables(results, facts, repeats)
    first = with_others([*state, *summary(results, facts)], shares)
    text = document(first, tables, drawn, results, facts, repeats)
    with replacing(str(directory / REPORT_MD)) as handle:
        handle.write(text.encode("utf-8"))
    values = _content(first, results, facts, records, repeats, complete)
    with replacing(str(directory / REPORT_JSON)) as handle:
        handle.write((json.dumps(values, indent=1, allow_nan=False) + "\n").encode("utf-8"))
    shown = "\n\n".join([*(terminal(each) for each in tables), "\n".join(first)])
    paths = [directory / name for name in (REPORT_MD, REPORT_JSON, *drawn)]
    return Report(shown + "\n", paths, results)


def _state(records: Sequence[Record], planned: Sequence[Setting], repeats: int, complete: bool) -> list[str]:
    """Warnings that stand before everything else."""
    sentences = []
    if not complete:
        wanted = set(planned)
        done = {(each.setting, each.repeat) for each in records if each.kind == TIMED}
        made = sum(setting in wanted for setting, _ in done)
        sentences.append(
            f"PARTIAL: {made} of {len(planned) * repeats} timed launches are done; the same command goes on."
        )
    if repeats < FEWEST_REPEATS:
        sentences.append(f"Too few repeats for verdicts: {repeats}; it takes {FEWEST_REPEATS}.")
    return sentences


def _tables(results: Results, facts: Mapping[str, Any], repeats: int) -> list[Table]:
    tables = [
        sections.speed(results, facts, repeats),
        sections.pairs(results, facts),
        sections.communication(results, facts),
        sections.resources(results, facts),
        sections.scaling(results, facts),
        sections.to_finish(results, facts),
    ]
    return [marked(each, facts["busy"]) for each in tables if each is not None]


def _content(
    first: Sequence[str],
    results: Results,
    facts: Mapping[str, Any],
    records: Sequence[Record],
    repeats: int,
    complete: bool,
) -> dict[str, Any]:
    """Everything that was measured and what follows from it, for `json.dumps`, without NaN. `launches` are
    the raw samples; seconds, bytes, nats."""
    planned = [each.setting for each in results.results]
    return _plain(
        {
            "schema": SCHEMA,
            "complete": complete,
            "repeats": repeats,
            "summary": list(first),
            "rule": rule(facts["confidence"]),
            "facts": dict(facts),
            "planned": planned,
            "results": [_result(each) for each in results.results],
            "pairs": [_pair(each) for each in results.pairs],
            "compared": compared(planned, facts),
            "greatest_relative_difference": [
                {**group._asdict(), **greatest} for group, greatest in results.greatest_difference.items()
            ],
            "launches": [each.to_json() for each in records],
        }
    )


def _result(result: Result) -> dict[str, Any]:
    fields = {name: value for name, value in vars(result).items() if name != "figures"}
    return {**fields, "figures": _figures(result.figures) if result.figures else None}


def _figures(figures: Figures) -> dict[str, Any]:
    """Their fields, and properties of those; each launch's own breakdown is in `launches`."""
    values = dict(vars(figures))
    if figures.scaling:
        values["scaling"] = {**figures.scaling._asdict(), "efficiency": figures.scaling.efficiency}
    if figures.finish:
        values["finish"] = {**figures.finish._asdict(), "seconds": figures.finish.seconds}
    return values


def _pair(pair: Pair) -> dict[str, Any]:
    return {**pair._asdict(), "faster": pair.faster}


def _plain(value: Any) -> Any:
    """Named tuples become objects; what is not finite, null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if dataclasses.is_dataclass(value):
        return _plain(vars(value))
    if hasattr(value, "_asdict"):
        return _plain(value._asdict())
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value if value is None or isinstance(value, (str, int)) else str(value)  # a Path, say
