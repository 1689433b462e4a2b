"""The breakdown of a step as a table for people."""

from __future__ import annotations

from typing import Any, Sequence

from base.tables import Row, Table
from training.profiling.breakdown import EXPOSED, PARTS
from training.profiling.trace import DATA_WAIT

# Columns: a figure of a part, its heading and its format; those of rates are shown where there are rates.
_COLUMNS = (
    ("ms", "ms a step", ",.2f"),
    ("share", "share", ".1%"),
    ("forward_ms", "forward", ",.2f"),
    ("backward_ms", "backward", ",.2f"),
    ("calls", "calls", ",.4g"),
    ("gflops", "GFLOP/s", ",.0f"),
    ("of_peak", "of peak", ".0%"),
)


def table(breakdown: dict[str, Any]) -> Table:
    """The table of one rank, from `break_down`."""
    parts, peak = breakdown["parts"], breakdown["peak_gflops"]
    rates = any("gflops" in row for row in parts.values())
    columns = _COLUMNS[: 5 + rates + bool(rates and peak)]
    rows = [
        Row([part, *(_cell(parts[part].get(name), form) for name, _, form in columns)])
        for part in PARTS
        if parts[part]["ms"] or parts[part]["calls"]
    ]
    whole = {"ms": breakdown["step_ms"], "share": sum(row["share"] for row in parts.values())}
    rows.append(Row(["step", *(_cell(whole.get(name), form) for name, _, form in columns)]))
    notes = []
    for part, name in ((EXPOSED, "communication"), (DATA_WAIT, "waiting for data")):
        hidden, exposed = breakdown["hidden_ms"][part], parts[part]["ms"]
        if hidden or (part == EXPOSED and exposed):
            notes.append(
                f"{name}: {hidden + exposed:,.2f} ms a step under way, {hidden:,.2f} ms of it"
                f" ({hidden / (hidden + exposed):.0%}) while operators computed"
            )
    if rates and peak:
        notes.append(f"peak: {peak:,.0f} GFLOP/s, {breakdown['facts'].get('peak_of', 'as given')}")
    others = [(name, breakdown["operators"][name]) for name in breakdown["other_operators"]]
    if others:
        named = "; ".join(f"{_short(name)} {row['ms']:,.2f} ms, {row['calls']:.4g}x" for name, row in others)
        notes.append(f"other operators: {named}")
    if breakdown["bulked"]:
        notes.append(
            "MXNet ran several operators as one here, and such events count as other operators. With"
            " MXNET_EXEC_BULK_EXEC_TRAIN=0 and MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN=0 in the environment it"
            " runs, and shows, each by itself."
        )
    return Table(_title(breakdown), ["", *(heading for _, heading, _ in columns)], rows, notes=notes)


def _title(breakdown: dict[str, Any]) -> str:
    facts, steps = breakdown["facts"], breakdown["steps"]
    known = [f"rank {facts.get('rank', 0)}", *(str(facts[key]) for key in ("model", "dtype") if key in facts)]
    if facts.get("batches"):
        known.append(_batches(facts["batches"][0]))
    named = steps[0] if len(steps) == 1 else f"{steps[0]} to {steps[-1].split()[-1]}"
    return f"{', '.join(known)}: {named}, {breakdown['step_ms']:,.1f} ms each"


def _batches(batches: Sequence[Sequence[int]]) -> str:
    rows, length, predictions = batches[0]
    count = f"{len(batches)} x " if len(batches) > 1 else ""
    return f"{count}{rows} sequences of {length} tokens, {predictions} masked"


def _cell(value: float | None, form: str) -> str:
    """The value as text; nothing for none, and for no calls."""
    return "" if value is None or (form == ",.4g" and not value) else format(value, form)


def _short(name: str) -> str:
    """The names of bulked operators run on for lines."""
    return name if len(name) <= 40 else f"{name[:37]}..."
