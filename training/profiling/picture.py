"""Pictures: the breakdown as bars and one step on a time axis, and one step of the stages of pipelines."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Iterator, Sequence

from base.drawing import new_figure
from base.files import replacing
from training.profiling.breakdown import EXPOSED, IDLE, PARTS, PYTHON
from training.profiling.intervals import Interval, clip
from training.profiling.stages import median_step
from training.profiling.trace import (
    ACTIVATION,
    ATTENTION,
    COMMUNICATION,
    COPYING,
    DATA_WAIT,
    EMBEDDING,
    HEADS,
    KINDS,
    NORMALISATION,
    OPTIMIZER,
    OTHER,
    PRODUCTS,
    STAGE_WAIT,
    WAITING,
    Trace,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_AFTER = "averages, norm, update"
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
    "forward": "#3b6ea5",
    "backward": "#1b9e77",
    _AFTER: "#e6a532",
}
_LABELLED = 0.04  # share of a bar from which it carries its number


def draw(path: str, traces: Sequence[Trace], breakdowns: Sequence[dict[str, Any]]) -> None:
    """Writes a PNG. `breakdowns`: `break_down` of each trace. OSError when the file cannot be written."""
    bars, strips = 1.0 + 0.5 * len(traces), 0.6 + 1.0 * len(traces)
    with _figure(path, 1.4 + bars + strips) as figure:
        upper, lower = figure.subplots(2, 1, gridspec_kw={"height_ratios": [bars, strips]})
        _draw_bars(upper, breakdowns)
        _draw_timeline(lower, traces)
        seen = [part for part in PARTS if any(each["parts"][part]["ms"] for each in breakdowns)]
        handles, labels = upper.get_legend_handles_labels()
        kept = [(handle, label) for handle, label in zip(handles, labels) if label in seen]
        figure.legend(*zip(*kept), loc="outside lower center", ncols=5, frameon=False)


def draw_stages(path: str, traces: Sequence[Trace]) -> None:
    """Writes a PNG of one step of all `stages.staged`. OSError when the file cannot be written."""
    with _figure(path, 1.6 + 0.6 * len(traces)) as figure:
        axes = figure.subplots()
        name, passes = median_step(traces)
        begin = min(each.window[0] for each in passes)
        for row, each in enumerate(passes):
            strips = {
                STAGE_WAIT: each.waits,
                _AFTER: [(each.window[1], each.end)],
                COMMUNICATION: each.travels,
                "forward": each.forward,
                "backward": each.backward,
            }
            for kind, times in strips.items():
                band = (row + 0.1, 0.8) if kind != COMMUNICATION else (row + 0.75, 0.15)
                _strip(axes, times, begin, band, kind, label=kind if row == 0 else None)
        end = max(each.window[1] for each in passes)
        axes.axvline((end - begin) / 1e3, color="#222222", linewidth=0.8)
        _name_rows(axes, [f"replica {t.facts['replica']}, stage {t.facts['stage']}" for t in traces], 0.5)
        axes.set(title=f"{name}: the passes of all stages end at the line", xlabel="ms")
        figure.legend(loc="outside lower center", ncols=5, frameon=False)


@contextlib.contextmanager
def _figure(path: str, height: float) -> Iterator[Figure]:
    """A figure to draw on, which is written at the end of the block."""
    figure = new_figure((12, height))
    yield figure
    with replacing(path) as handle:
        figure.savefig(handle, format="png", metadata={"Software": None})


def _draw_bars(axes: Axes, breakdowns: Sequence[dict[str, Any]]) -> None:
    rows = range(len(breakdowns))
    left = [0.0] * len(breakdowns)
    for part in PARTS:
        widths = [each["parts"][part]["ms"] for each in breakdowns]
        axes.barh(rows, widths, left=left, height=0.7, color=_COLOURS[part], label=part)
        for row, width in zip(rows, widths):
            share = breakdowns[row]["parts"][part]["share"]
            if share >= _LABELLED:
                dark = part not in (IDLE, PYTHON, OPTIMIZER, ACTIVATION)
                axes.text(
                    left[row] + width / 2, row, f"{share:.0%}", ha="center", va="center", fontsize=9,
                    color="white" if dark else "black",
                )  # fmt: skip
        left = [before + width for before, width in zip(left, widths)]
    model = breakdowns[0]["facts"].get("model")
    axes.set(title=f"a step{' of ' + model if model else ''} by kind of work", xlabel="ms a step")
    _name_rows(axes, [f"rank {each['facts'].get('rank', 0)}" for each in breakdowns])


def _draw_timeline(axes: Axes, traces: Sequence[Trace]) -> None:
    """The step of median time of all ranks, with operators, communication and Python on rows of their own."""
    by_time = sorted(traces[0].steps, key=lambda step: step.end - step.start)
    chosen = by_time[(len(by_time) - 1) // 2]
    names: list[str] = []
    for trace in traces:
        # Where the clocks of two hosts differ by more than a step, the rank's own step of that name counts.
        own = next((step for step in trace.steps if step.name == chosen.name), trace.steps[0])
        origin = chosen.start + traces[0].clock - trace.clock
        if abs(origin - own.start) >= chosen.end - chosen.start:
            origin = own.start
        window = origin, origin + chosen.end - chosen.start
        rank = trace.facts.get("rank", 0)
        rows = [(f"rank {rank}: operators", [kind for kind in KINDS if kind != COMMUNICATION])]
        if any(each.kind == COMMUNICATION for each in trace.operators):
            rows.append(("communication", [COMMUNICATION]))
        rows.append(("Python", []))
        for name, kinds in rows:
            band = len(names) + 0.1, 0.8
            for kind in kinds:
                times = [(each.start, each.end) for each in trace.operators if each.kind == kind]
                _strip(axes, clip(times, window), origin, band, kind)
            if not kinds:
                for kind in (WAITING, STAGE_WAIT, COPYING, DATA_WAIT):
                    _strip(axes, clip(trace.python.get(kind, []), window), origin, band, kind)
            names.append(name)
    title = f"{chosen.name} on the time axis (Python's row, light grey: waiting for the device)"
    axes.set(title=title, xlabel="ms")
    _name_rows(axes, names, 0.5)


def _strip(
    axes: Axes,
    times: Sequence[Interval],
    origin: float,
    band: tuple[float, float],
    kind: str,
    label: str | None = None,
) -> None:
    """Draws intervals, in microseconds, at a `band` (lower end and height) of the y axis."""
    bars = [((start - origin) / 1e3, (end - start) / 1e3) for start, end in times]
    axes.broken_barh(bars, band, facecolor=_COLOURS[kind], linewidth=0, label=label)


def _name_rows(axes: Axes, names: Sequence[str], offset: float = 0.0) -> None:
    axes.set_yticks([row + offset for row in range(len(names))], names)
    axes.set_ylim(len(names) - 0.5 + offset, -0.5 + offset)
    axes.margins(x=0)
