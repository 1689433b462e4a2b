"""The report of a comparison: report.md, report.json and plots, and a text for the terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Sequence

from base.files import replacing
from comparison.record import TIMED, Record
from comparison.reporting import plots, sections
from comparison.reporting.document import document
from comparison.reporting.report_json import content
from comparison.reporting.results import OK, Results, gather
from comparison.reporting.summary import summary
from comparison.reporting.tables import Table, terminal
from comparison.settings import Setting
from comparison.statistics import FEWEST_REPEATS

REPORT_MD, REPORT_JSON = "report.md", "report.json"


class Report(NamedTuple):
    """`terminal`: the tables and, at their end, the summary. `paths`: the files written. `good`: every
    setting that was planned has figures."""

    terminal: str
    paths: Sequence[Path]
    results: Results
    good: bool


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
    results = gather(facts, records, planned)
    good = all(each.kind == OK for each in results.results)
    drawn = plots.draw_all(directory, results, facts)
    state = _state(records, planned, repeats, complete)
    tables = _tables(results, facts, repeats)
    first = [*state, *summary(results, facts)]
    text = document(first, tables, drawn, results, facts, planned, repeats)
    with replacing(str(directory / REPORT_MD)) as handle:
        handle.write(text.encode("utf-8"))
    found = content(first, results, facts, records, planned, repeats, complete)
    with replacing(str(directory / REPORT_JSON)) as handle:
        handle.write((json.dumps(found, indent=1, allow_nan=False) + "\n").encode("utf-8"))
    shown = "\n\n".join([*(terminal(each) for each in tables), "\n".join(first)])
    paths = [directory / name for name in (REPORT_MD, REPORT_JSON, *drawn)]
    return Report(shown + "\n", paths, results, good)


def _state(records: Sequence[Record], planned: Sequence[Setting], repeats: int, complete: bool) -> list[str]:
    """What the reader must know before anything else."""
    found = []
    if not complete:
        wanted = set(planned)
        done = {(each.setting, each.repeat) for each in records if each.kind == TIMED}
        made = sum(setting in wanted for setting, _ in done)
        found.append(
            f"PARTIAL: {made} of {len(planned) * repeats} timed launches are done; the same command goes on."
        )
    if repeats < FEWEST_REPEATS:
        found.append(f"Too few repeats for verdicts: {repeats}; it takes {FEWEST_REPEATS}.")
    return found


def _tables(results: Results, facts: Mapping[str, Any], repeats: int) -> list[Table]:
    found = [
        sections.speed(results, facts, repeats),
        sections.pairs(results, facts),
        sections.communication(results, facts),
        sections.resources(results, facts),
        sections.scaling(results, facts),
        sections.to_finish(results, facts),
    ]
    return [each for each in found if each is not None]
