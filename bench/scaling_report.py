"""Tables and picture of bench/scaling.py: growth against operations, and the caches that were left."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Any, Mapping, NamedTuple, Sequence

from base.errors import InputError
from base.files import replacing
from bench.rounds import spread
from bench.scaling_work import Axis, Point, left_caches

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TOLERANCE = 0.1  # of a ratio: what differs by less is noise
BEGIN, END = "<!-- figures of bench.scaling -->", "<!-- end of the figures -->"
HEAD = (
    *("", "s/step (quartiles)", "of it update", "GFLOP", "GFLOP/s", "MiB"),
    *("time", "operations", "memory", "no longer in a cache"),
)


class Measured(NamedTuple):
    """A point's seconds of each step and each update, and the bytes that it took beyond an idle process."""

    point: Point
    steps: Sequence[float]
    updates: Sequence[float]
    memory: int

    @property
    def step(self) -> float:
        """Median seconds."""
        return statistics.median(self.steps)

    @property
    def update(self) -> float:
        """Median seconds of the update, which are part of the step's."""
        return statistics.median(self.updates)

    @property
    def products(self) -> float:
        """Seconds of a step without its update, which moves bytes and has no products."""
        return max(1e-9, self.step - self.update)


def faster_than_operations(axis: Axis, rows: Sequence[Measured]) -> list[str]:
    """A sentence for each growth from one value to the next that is faster than what has to be done: forward
    and backward against the operations of the products, the update against the parameters, the memory
    against those of the two that grew more."""
    sentences = []
    for small, large in zip(rows, rows[1:]):
        one, other = small.point, large.point
        operations, parameters = other.flops / one.flops, other.parameters / one.parameters
        held = max((operations, "operations"), (parameters, "parameters"))
        for name, growth, (allowed, of) in (
            ("forward and backward took", large.products / small.products, (operations, "operations")),
            ("the update took", large.update / small.update, (parameters, "parameters")),
            ("memory was", large.memory / small.memory, held),
        ):
            if growth > allowed * (1 + TOLERANCE):
                values = " to ".join(f"{getattr(each, axis.field):,}" for each in (one, other))
                sentences.append(
                    f"{axis.field} {values}: {name} {growth:.2f} times as much, {allowed:.2f} times the {of}"
                )
    return sentences


def cells(axis: Axis, rows: Sequence[Measured], caches: Mapping[str, int]) -> list[list[str]]:
    """The table of an axis: HEAD and a row for each value. "time", "operations" and "memory" are times those
    of the row above."""
    table = [[axis.field, *HEAD[1:]]]
    for number, row in enumerate(rows):
        time_s, gflop = spread(row.steps), row.point.flops / 1e9
        grown = ["", "", "", ""]
        if number:
            before = rows[number - 1]
            ratios = (
                row.step / before.step,
                row.point.flops / before.point.flops,
                row.memory / before.memory,
            )
            left = "; ".join(left_caches(before.point, row.point, caches))
            grown = [*(f"{ratio:.2f}" for ratio in ratios), left]
        table.append(
            [
                f"{getattr(row.point, axis.field):,}",
                f"{time_s.median:.3f} ({time_s.low:.3f} to {time_s.high:.3f})",
                f"{row.update / row.step:.0%}",
                f"{gflop:,.0f}",
                f"{gflop / row.step:,.0f}",
                f"{row.memory / 2**20:,.0f}",
                *grown,
            ]
        )
    return table


def as_text(table: Sequence[Sequence[str]]) -> str:
    """Columns for a terminal."""
    widths = [max(map(len, column)) for column in zip(*table)]
    lines = []
    for name, *values, last in table:
        padded = [value.rjust(width) for value, width in zip(values, widths[1:])]
        lines.append("  ".join([name.rjust(widths[0]), *padded, last]).rstrip())
    return "\n".join(lines)


def as_markdown(table: Sequence[Sequence[str]]) -> str:
    """A table for a page."""
    head, *rows = ([cell or " " for cell in row] for row in table)
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows))


def write_page(path: str, figures: str) -> None:
    """Puts `figures` between the two marks of a page, in place of what is there.

    Raises:
        InputError: the page cannot be read or written, or lacks a mark.
    """
    try:
        with open(path, encoding="utf-8") as file:
            before, begin, rest = file.read().partition(BEGIN)
        _, end, after = rest.partition(END)
        if not begin or not end:
            raise InputError(f"--page {path}: it lacks the line {END if begin else BEGIN}")
        with replacing(path) as file:
            file.write(f"{before}{BEGIN}\n\n{figures}\n\n{END}{after}".encode())
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--page {path}: {error}") from error


def draw(path: str, axes: Sequence[Axis], results: Mapping[str, Sequence[Sequence[Measured]]]) -> None:
    """Writes a PNG: seconds and memory of a step by its operations, a line for each axis.

    Args:
        results: by dtype, the measured rows of each of `axes`.

    Raises:
        InputError: the file cannot be written.
    """
    # Without pyplot, which keeps figures and picks a display for the whole process.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.6 * len(results)), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(results), 2, squeeze=False)
    for (left, right), (dtype, measured) in zip(grid, results.items()):
        _panel(left, axes, measured, lambda row: row.step)
        left.set(title=f"time of a step, {dtype}", ylabel="seconds")
        _panel(right, axes, measured, lambda row: row.memory / 2**20)
        right.set(title=f"memory of a step, {dtype}", ylabel="MiB")
    try:
        with replacing(path) as handle:
            figure.savefig(handle, format="png", metadata={"Software": None})
    except OSError as error:
        raise InputError(f"--plot {path}: {error.strerror}") from error


def _panel(panel: Axes, axes: Sequence[Axis], measured: Sequence[Sequence[Measured]], value: Any) -> None:
    """Both axes logarithmic; behind the lines, growth in proportion to the operations."""
    every = [row for rows in measured for row in rows]
    shared = set.intersection(*({row.point for row in rows} for rows in measured))  # without a label
    low, high = (end(row.point.flops / 1e9 for row in every) for end in (min, max))
    for axis, rows in zip(axes, measured):
        places = [row.point.flops / 1e9 for row in rows]
        panel.plot(places, [value(row) for row in rows], "o-", markersize=4, label=axis.field)
        for place, row in zip(places, rows):
            text = "" if row.point in shared else f"{getattr(row.point, axis.field):,}"
            panel.annotate(text, (place, value(row)), (3, -9), textcoords="offset points", fontsize=7)
    limits = [end(value(row) for row in every) for end in (min, max)]
    for start in range(math.floor(math.log2(limits[0] / high)), math.ceil(math.log2(limits[1] / low)) + 1, 2):
        rate = 2.0**start
        panel.plot([low, high], [rate * low, rate * high], color="0.85", linewidth=0.8, zorder=0)
    panel.set(xscale="log", yscale="log", xlabel="GFLOP of a step (grey: in proportion)")
    panel.set_ylim(limits[0] / 1.4, limits[1] * 1.4)
    panel.legend(fontsize=9)
