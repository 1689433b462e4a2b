"""The breakdown of a step as a table for people."""

from __future__ import annotations

import textwrap
from typing import Any, Sequence

from training.profiling.breakdown import EXPOSED, PARTS
from training.profiling.trace import DATA_WAIT

_WIDTH = 110


def table(breakdown: dict[str, Any]) -> list[str]:
    """The lines about one rank, from `break_down`."""
    facts = breakdown["facts"]
    lines = [_headline(breakdown)]
    rates = any("gflops" in row for row in breakdown["parts"].values())
    peak = breakdown["peak_gflops"]
    head = f"{'':<24}{'ms a step':>11}{'share':>8}{'forward':>10}{'backward':>10}{'calls':>8}"
    lines.append(head + (f"{'GFLOP/s':>10}" if rates else "") + (f"{'of peak':>9}" if rates and peak else ""))
    for part in PARTS:
        row = breakdown["parts"][part]
        if not row["ms"] and not row["calls"]:
            continue
        line = f"{part:<24}{row['ms']:>11,.2f}{row['share']:>8.1%}"
        line += _number(row.get("forward_ms"), 10, ",.2f") + _number(row.get("backward_ms"), 10, ",.2f")
        line += _number(row["calls"] or None, 8, ",.4g")
        line += _number(row.get("gflops"), 10, ",.0f") + _number(row.get("of_peak"), 9, ".0%")
        lines.append(line.rstrip())
    whole = sum(row["share"] for row in breakdown["parts"].values())
    lines.append(f"{'step':<24}{breakdown['step_ms']:>11,.2f}{whole:>8.1%}")
    for part, name in ((EXPOSED, "communication"), (DATA_WAIT, "waiting for data")):
        hidden, exposed = breakdown["hidden_ms"][part], breakdown["parts"][part]["ms"]
        if hidden or (part == EXPOSED and exposed):
            lines.append(
                f"{name}: {hidden + exposed:,.2f} ms a step under way, {hidden:,.2f} ms of it"
                f" ({hidden / (hidden + exposed):.0%}) while operators computed"
            )
    if rates and peak:
        lines.append(f"peak: {peak:,.0f} GFLOP/s, {facts.get('peak_of', 'as given')}")
    others = [(name, breakdown["operators"][name]) for name in breakdown["other_operators"]]
    if others:
        named = "; ".join(f"{_short(name)} {row['ms']:,.2f} ms, {row['calls']:.4g}x" for name, row in others)
        lines += textwrap.wrap(f"other operators: {named}", _WIDTH, subsequent_indent="    ")
    if breakdown["bulked"]:
        lines += textwrap.wrap(
            "MXNet ran several operators as one here, and such events count as other operators. With"
            " MXNET_EXEC_BULK_EXEC_TRAIN=0 and MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN=0 in the environment it"
            " runs, and shows, each by itself.",
            _WIDTH,
        )
    return lines


def _headline(breakdown: dict[str, Any]) -> str:
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


def _number(value: float | None, width: int, form: str) -> str:
    return " " * width if value is None else f"{value:>{width}{form}}"


def _short(name: str) -> str:
    """The names of bulked operators run on for lines."""
    return name if len(name) <= 40 else f"{name[:37]}..."
