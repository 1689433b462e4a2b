"""The breakdown as a picture: a bar for each rank, and one step of each on a time axis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Sequence

from base.files import replacing
from training.profiling.breakdown import EXPOSED, IDLE, PARTS, PYTHON
from training.profiling.intervals import Interval, clip
from training.profiling.kinds import (
    ACTIVATION,
    ATTENTION,
    COMMUNICATION,
    EMBEDDING,
    HEADS,
    KINDS,
    NORMALISATION,
    OPTIMIZER,
    OTHER,
    PRODUCTS,
)
from training.profiling.trace import COPYING, DATA_WAIT, STAGE_WAIT, WAITING, Step, Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = {
    PRODUCTS: "#3b6ea5",
    ATTENTION: "#5fa2ce",
    NORMALISATION: "#8c6bb1",
    ACTIVATION: "#c994c7",
    EMBEDDING: "#a6761d",
    HEADS: "#1b9e77",
    OPTIMIZER: "#e6a532",
    OTHER: "#7f7f7f",
    COMMUNICATION: "#c44e52",
    EXPOSED: "#c44e52",
    DATA_WAIT: "#222222",
    COPYING: "#666633",
    STAGE_WAIT: "#f2c6c8",
    WAITING: "#dddddd",
    PYTHON: "#bbbbbb",
    IDLE: "#e8e8e8",
}
_LABELLED = 0.04  # share of a bar from which it carries its number


def draw(path: str, traces: Sequence[Trace], breakdowns: Sequence[dict[str, Any]]) -> None:
    """Write a PNG. `breakdowns`: `break_down` of each trace. OSError when the file cannot be written."""
    # Without pyplot, which keeps figures and picks a display for the whole process.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    ranks = len(traces)
    bars, strips = 1.0 + 0.5 * ranks, 0.6 + 1.0 * ranks
    figure = Figure(figsize=(12, 1.4 + bars + strips), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    upper, lower = figure.subplots(2, 1, gridspec_kw={"height_ratios": [bars, strips]})
    _draw_bars(upper, breakdowns)
    _draw_timeline(lower, traces)
    seen = [part for part in PARTS if any(each["parts"][part]["ms"] for each in breakdowns)]
    handles, labels = upper.get_legend_handles_labels()
    kept = [(handle, label) for handle, label in zip(handles, labels) if label in seen]
    figure.legend(*zip(*kept), loc="outside lower center", ncols=5, frameon=False)
    with replacing(path) as handle:
        figure.savefig(handle, format="png", metadata={"Software": None})


def _draw_bars(axes: Axes, breakdowns: Sequence[dict[str, Any]]) -> None:
    places = range(len(breakdowns))
    left = [0.0] * len(breakdowns)
    for part in PARTS:
        widths = [each["parts"][part]["ms"] for each in breakdowns]
        axes.barh(places, widths, left=left, height=0.7, color=_COLOURS[part], label=part)
        for place, width in zip(places, widths):
            share = breakdowns[place]["parts"][part]["share"]
            if share >= _LABELLED:
                dark = part not in (IDLE, PYTHON, OPTIMIZER, ACTIVATION)
                axes.text(
                    left[place] + width / 2, place, f"{share:.0%}", ha="center", va="center", fontsize=9,
                    color="white" if dark else "black",
                )  # fmt: skip
        left = [before + width for before, width in zip(left, widths)]
    model = breakdowns[0]["facts"].get("model")
    axes.set(title=f"a step{' of ' + model if model else ''} by kind of work", xlabel="ms a step")
    _name_rows(axes, [f"rank {each['facts'].get('rank', 0)}" for each in breakdowns])


def _draw_timeline(axes: Axes, traces: Sequence[Trace]) -> None:
    """One step of all ranks, with operators, communication and Python on rows of their own."""
    chosen = _typical(traces[0])
    names: list[str] = []
    for trace in traces:
        origin = _origin(trace, traces[0], chosen)
        window = origin, origin + chosen.end - chosen.start
        rank = trace.facts.get("rank", 0)
        rows = [(f"rank {rank}: operators", [kind for kind in KINDS if kind != COMMUNICATION])]
        if any(each.kind == COMMUNICATION for each in trace.operators):
            rows.append(("communication", [COMMUNICATION]))
        rows.append(("Python", []))
        for name, kinds in rows:
            bottom = len(names) + 0.1
            for kind in kinds:
                times = [(each.start, each.end) for each in trace.operators if each.kind == kind]
                _strip(axes, times, window, bottom, kind)
            if not kinds:
                for kind in (WAITING, STAGE_WAIT, COPYING, DATA_WAIT):
                    _strip(axes, trace.python.get(kind, []), window, bottom, kind)
            names.append(name)
    title = f"{chosen.name} on the time axis (Python's row, light grey: waiting for the device)"
    axes.set(title=title, xlabel="ms")
    _name_rows(axes, names, 0.5)


def _strip(axes: Axes, times: Sequence[Interval], window: Interval, bottom: float, kind: str) -> None:
    bars = [((start - window[0]) / 1e3, (end - start) / 1e3) for start, end in clip(times, window)]
    axes.broken_barh(bars, (bottom, 0.8), facecolor=_COLOURS[kind], linewidth=0)


def _origin(trace: Trace, first: Trace, chosen: Step) -> float:
    """The beginning of the first rank's step on a rank's time axis. If the clocks of two hosts differ by more
    than a step, it is where the rank's own step of that name begins."""
    own = next((step for step in trace.steps if step.name == chosen.name), trace.steps[0])
    origin = chosen.start + first.clock - trace.clock
    return origin if abs(origin - own.start) < chosen.end - chosen.start else own.start


def _typical(trace: Trace) -> Step:
    """The step whose time is the median."""
    steps = sorted(trace.steps, key=lambda step: step.end - step.start)
    return steps[(len(steps) - 1) // 2]


def _name_rows(axes: Axes, names: Sequence[str], offset: float = 0.0) -> None:
    axes.set_yticks([place + offset for place in range(len(names))], names)
    axes.set_ylim(len(names) - 0.5 + offset, -0.5 + offset)
    axes.margins(x=0)
