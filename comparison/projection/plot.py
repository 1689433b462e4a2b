"""projection.png: efficiency by GPUs. projection_validation.png: published and predicted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Sequence

from comparison.projection.model import Plan, Projection
from comparison.projection.published import DAYS, EFFICIENCY, STEP, THROUGHPUT, Case
from comparison.projection.validation import ErrorRange, Point, error_range
from comparison.reporting.canvas import COLOURS, new_figure, plain, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PROJECTION, VALIDATION = "projection.png", "projection_validation.png"
BAND = "where measurements would lie, off as in the validation"
_IDEAL = {"color": "#888888", "linestyle": "--", "linewidth": 1.2, "zorder": 1}
_MARKERS = "osD"


def draw_all(
    directory: Path, plan: Plan, projections: Sequence[Projection], points: Sequence[Point]
) -> list[str]:
    """Writes both; returns their names. OSError when a file cannot be written."""
    for name, figure in (
        (PROJECTION, projection_figure(plan, projections, points)),
        (VALIDATION, _validation(points)),
    ):
        save(figure, directory / name)
    return [PROJECTION, VALIDATION]


def projection_figure(plan: Plan, projections: Sequence[Projection], points: Sequence[Point]) -> Figure:
    """Efficiency, not throughput: on logarithmic axes strategies that are 10% apart are one line."""
    figure = new_figure((11, 5.0))
    panels = [(True, "gradients travel during the backward pass")] if plan.workload.overlap else []
    panels.append((False, "gradients travel after the backward pass"))
    single = max(each.sequences_per_s / each.gpus / each.efficiency for each in projections)
    drawn = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (overlap, title) in zip(drawn, panels):
        _draw_strategies(axes, projections, overlap, error_range(points, overlap))
        axes.set(title=title, xlabel="GPUs", xscale="log")
        _count_axis(axes, sorted({each.gpus for each in projections}))
        plain(axes, "both")
    drawn[0].set_ylabel("scaling efficiency, %")
    drawn[0].set_ylim(5 * (drawn[0].get_ylim()[0] // 5), 105)
    rate = drawn[-1].secondary_yaxis(
        "right", functions=(lambda share: share * single / 100, lambda speed: 100 * speed / single)
    )
    rate.set_ylabel("sequences/s a GPU")
    title = f"{plan.model} on {plan.cluster.title}\n{plan.batch}; {plan.precision}"
    figure.suptitle(title, fontsize=11)
    figure.legend(*drawn[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    return figure


def _draw_strategies(
    axes: Axes, projections: Sequence[Projection], overlap: bool, errors: ErrorRange
) -> None:
    """One line each, and a band around all where published measurements of such predictions lay."""
    shares: dict[str, dict[int, float]] = {}
    for each in projections:
        share = 100 * (each.efficiency if overlap else each.without_overlap)
        shares.setdefault(each.title, {})[each.gpus] = share
    axes.axhline(100, label="linear", **_IDEAL)
    for index, (title, own) in enumerate(shares.items()):
        # The first ones are wider, so that they show around later ones that are equal.
        style = {"marker": _MARKERS[index], "markersize": 9 - 2.5 * index, "linewidth": 2.6 - 0.6 * index}
        axes.plot(list(own), list(own.values()), color=COLOURS[index], label=title, **style)
    several = sorted({each.gpus for each in projections if each.gpus > 1})  # one GPU is what is calibrated
    lowest = [errors.published(min(own[gpus] for own in shares.values()))[0] for gpus in several]
    highest = [errors.published(max(own[gpus] for own in shares.values()))[1] for gpus in several]
    axes.fill_between(several, lowest, highest, color="#DDDDDD", zorder=0, linewidth=0, label=BAND)


def _validation(points: Sequence[Point]) -> Figure:
    figure = new_figure((11.5, 8.2))
    upper, lower = figure.subfigures(2, 1, height_ratios=(1.0, 0.95))
    main = [point for point in points if point.case.main]
    speeds = [point for point in points if point.case.unit == THROUGHPUT]
    lowest = min(100 * point.published / point.gpus / _single(points, point) for point in speeds)
    for axes, dtype in zip(upper.subplots(1, 2, sharey=True), ("float16", "float32")):
        _draw_efficiency(axes, [point for point in speeds if point.case.dtype == dtype], dtype)
        axes.set_ylim(5 * (lowest // 5), 101)
    claims, steps, days = lower.subplots(1, 3)
    _draw_claims(claims, [point for point in main if point.case.unit == EFFICIENCY])
    for axes, unit, name in ((steps, STEP, "seconds per step"), (days, DAYS, "days of training")):
        _draw_series(axes, [point for point in main if point.case.unit == unit], name)
        axes.set_title(f"a university, by its {'days' if unit == DAYS else 'step times'}", fontsize=10)
    handles, labels = steps.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    return figure


def _single(points: Sequence[Point], of: Point) -> float:
    """The published value of one GPU in the case of a point."""
    return next(point.published for point in points if point.case is of.case and point.gpus == 1)


def _draw_efficiency(axes: Axes, points: Sequence[Point], dtype: str) -> None:
    """Efficiency by throughput: a plot of throughputs would need a logarithm, which hides 20%. A colour for
    each batch."""
    for index, case in enumerate(_cases(points)):
        own = [point for point in points if point.case is case]
        one = _single(points, own[0])
        counts = [point.gpus for point in own]
        colour = COLOURS[(0, 5, 2)[index]]
        shares = [
            [
                100 * value / point.gpus / one
                for value in (point.predicted, point.without_overlap, point.published)
            ]
            for point in own
        ]
        predicted, after, published = zip(*shares)
        axes.plot(counts, predicted, "-", color=colour, linewidth=1.3)
        axes.plot(counts, after, ":", color=colour, linewidth=1.7)
        axes.plot(counts, published, "osD"[index], color=colour, label=f"{case.sequences} sequences a GPU")
    axes.set(xlabel="GPUs", ylabel="efficiency, %", xscale="log")
    axes.set_title(f"DLPerf: BERT-base, MXNet over Horovod, {dtype}", fontsize=10)
    _count_axis(axes, sorted({point.gpus for point in points}))
    axes.legend(fontsize=9, frameon=False, loc="lower left")
    plain(axes, "both")


def _cases(points: Sequence[Point]) -> list[Case]:
    cases: list[Case] = []
    for point in points:
        if point.case not in cases:
            cases.append(point.case)
    return cases


def _draw_claims(axes: Axes, points: Sequence[Point]) -> None:
    for place, point in enumerate(points):
        low, high = sorted((point.predicted, point.without_overlap))
        axes.bar(place, 100 * (high - low), 0.5, 100 * low, color="#CCCCCC")
        axes.plot(
            [place - 0.25, place + 0.25], [100 * point.predicted] * 2, "-", color="black", linewidth=1.4
        )
        axes.plot(
            [place - 0.25, place + 0.25], [100 * point.without_overlap] * 2, ":", color="black", linewidth=1.8
        )
        axes.plot(place, 100 * point.published, "o", color="black", markersize=6)
    names = [
        "BytePS,\nservers apart" if p.case.strategy.key == "byteps" else "Horovod,\nhierarchical"
        for p in points
    ]
    axes.set_xticks(range(len(points)), names)
    axes.set_xlim(-0.6, len(points) - 0.4)
    axes.set_ylim(0, 105)
    axes.set_ylabel("efficiency, %")
    axes.set_title("BytePS's claim: BERT-large, 256 GPUs", fontsize=10)
    plain(axes)


def _draw_series(axes: Axes, points: Sequence[Point], name: str) -> None:
    counts = [point.gpus for point in points]
    line = {"color": "black", "linewidth": 1.4}
    axes.plot(
        counts, [point.published for point in points], "o", color="black", markersize=6, label="published"
    )
    axes.plot(counts, [point.predicted for point in points], "-", label="predicted", **line)
    axes.plot(
        counts, [point.without_overlap for point in points], ":", label="predicted, without overlap", **line
    )
    taken = [point for point in points if point.calibrated]
    axes.plot(
        [point.gpus for point in taken], [point.published for point in taken], "o", markersize=12,
        markerfacecolor="none", color="black", label="compute time taken from it",
    )  # fmt: skip
    axes.set(xlabel="GPUs", ylabel=name, xscale="log")
    axes.set_ylim(0, None)
    _count_axis(axes, counts)
    plain(axes, "both")


def _count_axis(axes: Axes, counts: Sequence[int]) -> None:
    """Powers of two as they are, a few at most."""
    shown = counts[:: 1 + len(counts) // 8]
    axes.set_xticks(shown, [str(count) for count in shown])
    axes.minorticks_off()
