"""The stages of pipelines on one time axis: each one's work, the bubble, and what else it waits for.

The passes of a step begin when the first rank of a replica begins the step, and end with the last backward
pass of any of its ranks. In this time a stage computes (what is no gradient, sums of gradients among it,
counts as forward), or waits: for the first micro-batch to arrive (filling), for messages between its passes,
for the others after its last pass (draining); the three together are the bubble, with what an uneven split
adds. After the passes follow averages, norm and update.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple, Sequence

from base.tables import Row, Table
from training.pipeline.schedule import bubble
from training.profiling.intervals import Interval, clip, intersect, subtract, total, union
from training.profiling.trace import ATTENTION, COMMUNICATION, PRODUCTS, STAGE_WAIT, Trace

FIGURES = ("forward", "backward", "filling", "waiting", "draining", "other", "after")


class Passes(NamedTuple):
    """A rank's part of a step, in microseconds of the clock that all ranks share. `window`: from the first
    rank's beginning to the last one's last backward pass; `first`, `last`: of this rank's passes."""

    window: Interval
    first: float
    last: float
    end: float
    forward: list[Interval]
    backward: list[Interval]
    waits: list[Interval]
    travels: list[Interval]


def staged(traces: Sequence[Trace]) -> list[Trace]:
    """Those of ranks that hold a stage, replica by replica; only where every stage of a replica is there."""
    found = [trace for trace in traces if "stage" in trace.facts]
    found.sort(key=lambda trace: (trace.facts["replica"], trace.facts["stage"]))
    replicas = Counter(trace.facts["replica"] for trace in found)
    return [trace for trace in found if replicas[trace.facts["replica"]] == trace.facts["stages"]]


def stage_figures(traces: Sequence[Trace]) -> list[dict[str, Any]]:
    """For each of `staged`: its coordinates, and FIGURES in milliseconds a step; "other" is neither work nor
    a wait for a stage: Python, data, a message on its way out."""
    found = []
    for trace in traces:
        sums = dict.fromkeys(FIGURES, 0.0)
        for name in _steps(traces):
            for figure, time in _figures(_passes(trace, traces, name)).items():
                sums[figure] += time / 1e3 / len(_steps(traces))
        facts = {name: trace.facts[name] for name in ("rank", "stage", "stages", "replica", "schedule")}
        micro_batches = len((trace.facts.get("batches") or [[]])[0])
        found.append({**facts, "micro_batches": micro_batches, "ms": sums})
    return found


def stage_table(figures: Sequence[dict[str, Any]]) -> Table:
    """The figures for people."""
    rows = []
    for each in figures:
        times = each["ms"]
        passes = sum(times[name] for name in FIGURES[:-1])
        waits = sum(times[name] for name in ("filling", "waiting", "draining"))
        cells = [f"{each['rank']}", f"{each['replica']}", f"{each['stage']}"]
        rows.append(Row([*cells, *(f"{times[name]:,.1f}" for name in FIGURES), f"{waits / passes:.0%}"]))
    first = figures[0]
    notes = [
        "filling: before its first pass; waiting: between passes, for a message; draining: after its last "
        "pass, for the others; other: Python, data, messages on their way out; after: averages, norm, update."
    ]
    if first["micro_batches"]:
        ideal = bubble(first["stages"], first["micro_batches"])
        batches = f"{first['micro_batches']} micro-batch{'es' if first['micro_batches'] > 1 else ''}"
        notes.append(
            f"bubble: filling, waiting and draining, of the time of all passes; {first['stages']} even "
            f"stages with {batches} have {ideal:.0%}."
        )
    title = f"stages, ms a step on one time axis, {first['schedule']}"
    return Table(title, ("rank", "replica", "stage", *FIGURES, "bubble"), rows, names=3, notes=notes)


def median_step(traces: Sequence[Trace]) -> tuple[str, list[Passes]]:
    """The step in the middle of those that all ranks have traced: its name, and each rank's part of it."""
    names = _steps(traces)
    name = names[len(names) // 2]
    return name, [_passes(trace, traces, name) for trace in traces]


def _steps(traces: Sequence[Trace]) -> list[str]:
    """Names of the steps that all ranks have traced."""
    return [
        step.name
        for step in traces[0].steps
        if all(any(step.name == other.name for other in trace.steps) for trace in traces)
    ]


def _passes(trace: Trace, traces: Sequence[Trace], name: str) -> Passes:
    """A rank's part of the step of this name. `traces`: those of its replica are among them."""
    bounds = [_bounds(each, name) for each in traces if each.facts["replica"] == trace.facts["replica"]]
    window = min(begin for begin, *_ in bounds), max(last for _, _, last, _ in bounds)
    begin, first, last, end = _bounds(trace, name)
    own = (begin, end)

    def times(chosen: Sequence[Interval]) -> list[Interval]:
        return clip([(start + trace.clock, stop + trace.clock) for start, stop in chosen], own)

    computing = [each for each in trace.operators if each.kind != COMMUNICATION]
    backward = union(times([(each.start, each.end) for each in computing if each.backward]))
    forward = union(times([(each.start, each.end) for each in computing if not each.backward]))
    return Passes(
        window,
        first,
        last,
        end,
        subtract(clip(forward, window), backward),
        clip(backward, window),
        union(times(trace.python.get(STAGE_WAIT, []))),
        union(times([(each.start, each.end) for each in trace.operators if each.kind == COMMUNICATION])),
    )


def _bounds(trace: Trace, name: str) -> tuple[float, float, float, float]:
    """Beginning of a step, of its first product, end of its last backward operator, end of the step."""
    step = next(each for each in trace.steps if each.name == name)
    inside = [each for each in trace.operators if step.start <= each.start < step.end]
    products = [each.start for each in inside if each.kind in (PRODUCTS, ATTENTION)]
    backward = [each.end for each in inside if each.backward]
    first, last = min(products, default=step.start), max(backward, default=step.end)
    return tuple(time + trace.clock for time in (step.start, first, min(last, step.end), step.end))  # type: ignore[return-value]


def _figures(passes: Passes) -> dict[str, float]:
    """FIGURES of one step in microseconds."""
    idle = subtract([passes.window], [*passes.forward, *passes.backward])
    between = clip(idle, (passes.first, passes.last))
    waiting = total(intersect(between, passes.waits))
    return {
        "forward": total(passes.forward),
        "backward": total(passes.backward),
        "filling": total(clip(idle, (passes.window[0], passes.first))),
        "waiting": waiting,
        "draining": total(clip(idle, (passes.last, passes.window[1]))),
        "other": total(between) - waiting,
        "after": max(0.0, passes.end - passes.window[1]),
    }
