"""Breakdown of a trace into numbers: each kind's part of a step's time, which add up to the whole; and their
table for people."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any, Sequence

from base.tables import Row, Table
from bert.configuration import recorded_config
from bert.flops import BACKWARD, Flops, forward_flops, size_of
from training.profiling.intervals import Interval, clip, intersect, shared, subtract, total, union
from training.profiling.trace import (
    ATTENTION,
    COMMUNICATION,
    COPYING,
    DATA_WAIT,
    HEADS,
    KINDS,
    OTHER,
    PRODUCTS,
    STAGE_WAIT,
    WAITING,
    Operator,
    Trace,
    is_bulk,
)

EXPOSED = "communication, exposed"  # while no operator computes
PYTHON = "Python, device idle"
IDLE = "waiting, device idle"
# In the order of a table. What comes later counts only while nothing before it goes on.
PARTS = (
    *(kind for kind in KINDS if kind != COMMUNICATION),
    EXPOSED,
    DATA_WAIT,
    COPYING,
    STAGE_WAIT,
    PYTHON,
    IDLE,
)


def break_down(trace: Trace, peak: float | None = None) -> dict[str, Any]:
    """Breaks down the time of the traced steps, as JSON has it; times in milliseconds a step.

    Operators that run at the same time share that time. Communication, waiting for data and copying of inputs
    count where no operator computes ("exposed"); "hidden" says what of them went on beside operators. The
    rest is time in which nothing happens on the device: Python prepares work, or waits for something itself.

    Args:
        peak: GFLOP/s that the machine reaches in a large matrix product; None: unknown.
    """
    low, high = window = trace.window
    steps = len(trace.steps)
    scale = 1e-3 / steps  # microseconds of all steps -> milliseconds a step
    computing = [each for each in trace.operators if each.kind != COMMUNICATION]
    busy = union(clip(_times(computing), window))
    exchanges = [each for each in trace.operators if each.kind == COMMUNICATION]
    travelling = clip(_times(exchanges), window)
    waits = {name: clip(intervals, window) for name, intervals in trace.python.items()}

    parts: dict[str, float] = defaultdict(float)
    directions: dict[str, float] = defaultdict(float)
    by_name: dict[str, float] = defaultdict(float)
    clipped = [
        ((each.kind, each.backward, each.name), max(each.start, low), min(each.end, high))
        for each in computing
    ]
    for (kind, backward, name), time in shared(clipped).items():
        parts[kind] += time
        directions[f"{kind}/{'backward' if backward else 'forward'}"] += time
        by_name[name] += time
    taken = busy
    exposed = {}
    for part, intervals in (
        (EXPOSED, travelling),
        (DATA_WAIT, waits.get(DATA_WAIT, [])),
        (COPYING, waits.get(COPYING, [])),
        (STAGE_WAIT, waits.get(STAGE_WAIT, [])),
    ):
        exposed[part] = subtract(intervals, taken)
        parts[part] = total(exposed[part])
        taken = union([*taken, *exposed[part]])
    idle = subtract([window], taken)
    parts[IDLE] = total(intersect(idle, waits.get(WAITING, [])))
    parts[PYTHON] = total(idle) - parts[IDLE]

    whole = high - low
    calls = Counter(each.kind for each in computing)
    rows = {
        part: {"ms": parts[part] * scale, "share": parts[part] / whole, "calls": calls[part] / steps}
        for part in PARTS
    }
    for kind in KINDS:
        if f"{kind}/backward" in directions:
            for direction in ("forward", "backward"):
                rows[kind][f"{direction}_ms"] = directions[f"{kind}/{direction}"] * scale
    rows[EXPOSED]["calls"] = len(exchanges) / steps
    _add_rates(rows, trace, peak)
    names = Counter(each.name for each in computing)
    others = {each.name for each in computing if each.kind == OTHER}
    return {
        "facts": trace.facts,
        "steps": [step.name for step in trace.steps],
        "step_ms": whole * scale,
        "peak_gflops": peak,
        "parts": rows,
        "hidden_ms": {
            part: (total(intervals) - total(exposed[part])) * scale
            for part, intervals in ((EXPOSED, travelling), (DATA_WAIT, waits.get(DATA_WAIT, [])))
        },
        "operators": {
            name: {"ms": time * scale, "calls": names[name] / steps}
            for name, time in sorted(by_name.items(), key=lambda item: -item[1])
        },
        "other_operators": sorted(others, key=lambda each: (-by_name[each], each)),
        "bulked": any(is_bulk(each.name) for each in trace.operators),
    }


def step_flops(trace: Trace) -> Flops | None:
    """One rank's forward operations in all traced steps, those of its stage alone; None when the trace does
    not say what ran."""
    facts = trace.facts
    batches = facts.get("batches")
    if not (batches and facts.get("model") and facts.get("vocab_size")) or len(batches) != len(trace.steps):
        return None
    size = size_of(recorded_config(facts, "the trace"), facts["vocab_size"])
    begin, end = facts.get("stage_layers", (0, size.layers))
    top = end == size.layers
    fewer = top and any(each.name == "bert_gather" for each in trace.operators)
    total = Flops(0, 0, 0, 0)
    for rows, length, predictions in (batch for step in batches for batch in step):
        # The first token and the masked ones are all that the losses look at.
        top_rows = predictions + 1 if fewer else None
        total += forward_flops(size._replace(layers=end - begin), rows, length, predictions, top_rows)
    return total if top else total._replace(heads=0, decoder=0)


def _add_rates(rows: dict[str, dict[str, float]], trace: Trace, peak: float | None) -> None:
    """GFLOP/s and the share of the peak, for the kinds that are matrix products."""
    flops = step_flops(trace)
    if flops is None:
        return
    names = {each.name for each in trace.operators}
    work = {PRODUCTS: flops.encoder + flops.heads}
    # One operator does both in all layers but, where it computes less, the top one, whose attention is
    # counted here too.
    if "bert_self_attention" in names:
        work[PRODUCTS] += flops.attention
    else:
        work[ATTENTION] = flops.attention
    work_of_decoder = HEADS if "bert_decode_loss" in names else PRODUCTS
    work[work_of_decoder] = work.get(work_of_decoder, 0) + flops.decoder
    for kind, forward in work.items():
        row = rows[kind]
        done = (1 + BACKWARD) * forward / len(trace.steps)
        row["gflop"] = done / 1e9
        if row["ms"]:
            row["gflops"] = done / 1e6 / row["ms"]
            if peak:
                row["of_peak"] = row["gflops"] / peak


def _times(operators: Sequence[Operator]) -> list[Interval]:
    return [(each.start, each.end) for each in operators]


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
        short = [name if len(name) <= 40 else f"{name[:37]}..." for name, _ in others]  # bulked: they run on
        named = "; ".join(
            f"{name} {row['ms']:,.2f} ms, {row['calls']:.4g}x" for name, (_, row) in zip(short, others)
        )
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
        batches = facts["batches"][0]
        rows, length, predictions = batches[0]
        count = f"{len(batches)} x " if len(batches) > 1 else ""
        known.append(f"{count}{rows} sequences of {length} tokens, {predictions} masked")
    named = steps[0] if len(steps) == 1 else f"{steps[0]} to {steps[-1].split()[-1]}"
    return f"{', '.join(known)}: {named}, {breakdown['step_ms']:,.1f} ms each"


def _cell(value: float | None, form: str) -> str:
    """The value as text; nothing for none, and for no calls."""
    return "" if value is None or (form == ",.4g" and not value) else format(value, form)
