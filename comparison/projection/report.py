"""Files of a projection: projection.md, projection.json, the text for the terminal, and plots; the errors of
the model on published measurements as tables.

projection.png: efficiency by GPUs. projection_validation.png: published and predicted. crossover.png: from
how many servers on BytePS is faster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Mapping, Sequence

import numpy as np

from base.drawing import COLOURS, new_figure
from base.quantities import digits
from base.tables import EMPTY, Row, Table
from comparison.canvas import ideal_style, legend_below, plain
from comparison.projection import crossover
from comparison.projection.model import Plan, Projection, project
from comparison.projection.validation import (
    CASES,
    DAYS,
    EFFICIENCY,
    FURTHER,
    MAIN,
    MINUTES,
    STEP,
    THROUGHPUT,
    ErrorRange,
    Point,
    error_range,
    is_held_out,
    mean_deviation,
    validate,
)
from comparison.report import Part, Report, column_table, milliseconds, size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "projection"  # of the files
PREDICTIONS = ("published", "predicted", "without_overlap")
NEAR, HALVES = 0.15, ("shown", "held out")
SCHEMA = 2  # of projection.json; it grows where the meaning of a field changes
LIMITS = """\
- All GPUs are equally fast in every step: no stragglers, no noise, no waiting for data. Real runs of many
  GPUs wait for the slowest.
- A process that takes part in a run of several pays something even inside one host: DLPerf's steps grow by 28
  to 36 ms from one GPU to eight, whatever the bytes or the batch. The model knows of that only what the bytes
  take, 4 to 6 ms.
- Rings only. NCCL changes to trees where they are faster, on many hosts above all: beyond some 256 GPUs the
  latency of a flat ring here is more than a run would have.
- The network between the hosts is never shared or oversubscribed, and a collective reaches the same share of
  it at every size and number of hosts.
- PCIe between GPU and network, and the servers' CPUs that add up, keep up with the network. Horovod's own
  hierarchical mode sends through the hosts' memory, which is slower than the ring here.
- A gradient is ready when the backward pass leaves its layer; a framework that runs many operators as one
  keeps gradients back for longer.
- The rate of a GPU does not depend on the batch: a projection far from the batch that the rate was measured
  with is too fast for small batches.
"""


def report_of(plan: Plan, crossings: crossover.Crossings) -> Report:
    """projection.md, projection.json, pictures, and what a terminal shows. `crossings`: of --crossover."""
    work, points, more = plan.workload, validate(), validate(FURTHER)
    held_out = is_held_out(more)
    by_strategy = {
        each.title: [project(work, each, plan.cluster, gpus) for gpus in plan.gpus]
        for each in plan.strategies
    }
    errors = {each: error_range(points, each) for each in (True, False)}  # with overlap, and without
    tables = [
        column_table(title[0].upper() + title[1:], COLUMNS, found) for title, found in by_strategy.items()
    ]
    facts = (
        f"{plan.model}, {work.elements / 1e6:.1f} M parameters, {size(work.total_bytes)} of gradients that "
        f"travel {'during' if work.overlap else 'after'} the backward pass.\n"
        f"Batch: {plan.batch}. Precision: {plan.precision}.\n"
        f"A pass takes {digits(work.compute_s)} s, the update {milliseconds(work.optimizer_s)} ms. "
        f"Compute time from: {work.source}.\nCluster: {plan.cluster.title}."
    )
    summary = _summary([found[-1] for found in by_strategy.values()], errors[True])
    document: list[Part] = [
        f"# Projection: {plan.model} on {plan.cluster.title}",
        summary,
        facts,
        *tables,
        f"![efficiency by the number of GPUs]({PROJECTION})",
        _caption(plan, errors),
        *crossover.section(crossings, plan),
        _parameters(plan),
        "## Validation",
        "Of each measurement one number is used, the compute time of a pass (marked, or from a single GPU);\n"
        "all other parameters come from the sources of the cluster. Predicted: gradients travel during the\n"
        "backward pass, as simulated. Without overlap: all of them after it.",
        *validation_tables(points, more),
        f"![published and predicted]({VALIDATION})",
        "## Where it must fail",
        LIMITS,
        "## Sources of the measurements",
        "\n".join(
            f"- {case.title}: {case.source}{f'; compute time: {case.single.source}' if case.single else ''}; "
            f"cluster {case.cluster.title}{f'; assumed: {case.assumed}' if case.assumed else ''}"
            for case in (*CASES, *FURTHER)
        ),
    ]
    content = {
        "schema": SCHEMA,
        "model": plan.model,
        "cluster": {**vars(plan.cluster), "replaced": list(plan.given)},
        "workload": {
            "parameters": work.elements,
            "gradient_bytes": work.total_bytes,
            "gradient_dtype": plan.gradient_dtype,
            "compute_dtype": work.dtype,
            "parts": [
                {"name": part.name, "elements": part.elements, "forward_flops": part.flops}
                for part in work.parts
            ],
            "compute_s": work.compute_s,
            "compute_source": work.source,
            "optimizer_s": work.optimizer_s,
            "sequences": work.sequences,
            "length": work.length,
            "accumulate": work.accumulate,
            "overlap": work.overlap,
        },
        "projections": [each for found in by_strategy.values() for each in found],
        "validation_error": {"predicted": errors[True], "without_overlap": errors[False]},
        "validation": [_as_object(point) for point in points],
        "further_validation": [{**_as_object(each), "held_out": held_out.get(each.name)} for each in more],
        "crossover": [each for rows in crossings.values() for own in rows.values() for each in own],
    }
    pictures = {PROJECTION: projection_figure(plan, by_strategy, points), VALIDATION: _validation(points)}
    if crossings:
        pictures[crossover.PICTURE] = crossover.draw(crossings, plan)
    return Report(NAME, document, content, pictures, [facts, *tables, *crossover.tables(crossings), summary])


def _summary(last: Sequence[Projection], errors: ErrorRange) -> str:
    """A sentence, the fastest strategy first. `last`: of the most GPUs. `errors`: with overlap."""
    most = last[0].gpus
    shares = "; ".join(
        f"{100 * each.efficiency:.1f}% with {each.title} ({100 * each.without_overlap:.1f}% without overlap)"
        for each in sorted(last, key=lambda each: each.step_s)
    )
    return (
        f"At {most} {'GPU' if most == 1 else 'GPUs'} the predicted efficiency is {shares}. Against published"
        f" throughputs the model was {100 * errors.least:.0f} to {100 * errors.most:.0f}% too"
        " high: see the validation."
    )


def _caption(plan: Plan, errors: Mapping[bool, ErrorRange]) -> str:
    ranges = [
        f"{off(range_.least)} to {off(range_.most)} with gradients {'during' if each else 'after'} the"
        " backward pass"
        for each, range_ in errors.items()
        if plan.workload.overlap or not each
    ]
    return (
        f"{plan.model}, {plan.batch}, {plan.precision}. Grey: where measurements would lie if the model were"
        f" off by as much as in the validation: {'; '.join(ranges)}. The band reaches from the lowest"
        " strategy to the highest."
    )


def _parameters(plan: Plan) -> Table:
    rows = []
    for field, source in plan.cluster.sources.items():
        value = getattr(plan.cluster, field)
        if isinstance(value, dict):
            shown = ", ".join(f"{speed:g} with {gpus}" for gpus, speed in value.items())
        else:
            shown = EMPTY if value is None else f"{value:g}"
        rows.append(Row([field, shown, "command line" if field in plan.given else source]))
    return Table("Parameters of the cluster", ("parameter", "value", "source"), rows, names=3)


COLUMNS: Mapping[str, Callable[[Projection], str]] = {
    "GPUs": lambda each: f"{each.gpus}",
    "hosts": lambda each: f"{each.hosts}",
    "s/step": lambda each: digits(each.step_s),
    "computing ms": lambda each: milliseconds(each.compute_s + each.optimizer_s),
    "communicating ms": lambda each: milliseconds(each.communication_s),
    "of it exposed ms": lambda each: milliseconds(each.exposed_s),
    "waiting ms": lambda each: milliseconds(each.waiting_s),
    "sequences/s": lambda each: digits(each.sequences_per_s),
    "tokens/s": lambda each: f"{each.tokens_per_s:,.0f}",
    "efficiency": lambda each: f"{100 * each.efficiency:.1f}%",
    "without overlap": lambda each: f"{100 * each.without_overlap:.1f}%",
    "sent by a host": lambda each: size(each.sent_bytes) if each.sent_bytes else "0",
}


def off(deviation: float) -> str:
    return f"{round(100 * deviation, 1) + 0.0:+.1f}%"  # the sum makes +0.0 of -0.0


def validation_tables(points: Sequence[Point], more: Sequence[Point]) -> list[Table]:
    """The validation, the same in projection.md and in docs/projection.md.

    After the points all of DLPerf's, with overlap and without, the deviation by case, to show which of the
    two predictions is nearer, the milliseconds by which steps become longer, from one GPU to a host and from
    one host to four, and the further points with the errors of all.

    Args:
        points: of CASES. more: of FURTHER.
    """
    means, losses, pairs = [], [], []
    for case in CASES:
        own = [point for point in points if point.case is case]
        predictions = sum(not point.calibrated for point in own)
        overlap, after = mean_deviation(own), mean_deviation(own, overlap=False)
        means.append(Row([case.title, str(predictions), f"{100 * overlap:.1f}%", f"{100 * after:.1f}%"]))
        if case.unit != THROUGHPUT:
            continue
        at, cells = {point.at: point for point in own}, [case.title]
        for few, many in ((1, 8), (8, 32)):
            for kind in PREDICTIONS:
                before, then = (count * case.sequences / getattr(at[count], kind) for count in (few, many))
                cells.append(f"{1e3 * (then - before):.1f}")
        losses.append(Row(cells))
        both = [f"{off(each.deviation())} / {off(each.deviation(False))}" for each in own if each.at > 1]
        pairs.append(Row([case.title, *both]))
    spans = [
        f"{span}: {name}"
        for span in ("1 to 8 GPUs", "8 to 32")
        for name in ("published", "predicted", "without overlap")
    ]
    held_out, new = is_held_out(more), [point for point in more if not point.calibrated]
    halves = [HALVES[held_out[point.name]] for point in new]
    errors = []
    for title, own in (
        ("the first ones", [point for point in points if not point.calibrated]),
        *((f"further, {half}", [each for each, its in zip(new, halves) if its == half]) for half in HALVES),
    ):
        cells = [title, str(len(own))]
        for overlapping in (True, False):
            near = sum(abs(point.deviation(overlapping)) <= NEAR for point in own)
            cells += [f"{100 * mean_deviation(own, overlapping):.1f}%", str(near)]
        errors.append(Row(cells))
    judged, within = [point for point in points if point.case in MAIN], f"within {NEAR:.0%}"
    dlperf = [f"{gpus} GPUs" for gpus in (2, 4, 8, 16, 32)]
    return [
        _points_table("the measurements the model is judged by", judged),
        Table("Validation: DLPerf's points, off by with overlap / without", ["measurement", *dlperf], pairs),
        Table(
            "Validation: mean absolute deviation",
            ["measurement", "predictions", "mean off", "without overlap"],
            means,
        ),
        Table(
            "Validation: what a step loses inside a host, and between hosts",
            ["ms a step, more", *spans],
            losses,
        ),
        _points_table("further measurements", new, halves),
        Table(
            "Validation: all errors",
            ["measurements", "predictions", "mean off", within, "without overlap", within],
            errors,
        ),
    ]


def _points_table(title: str, points: Sequence[Point], halves: Sequence[str] = ()) -> Table:
    """Points with their predictions. `halves`: a last column."""
    rows = []
    for place, point in enumerate(points):
        shown = SHOWN[point.case.unit].format
        cells = [point.case.title, str(point.at), shown(point.published)]
        if point.calibrated:
            rows.append(Row(cells, "compute time taken from it"))
            continue
        for predicted, overlap in ((point.predicted, True), (point.without_overlap, False)):
            cells += [shown(predicted), off(point.deviation(overlap))]
        rows.append(Row([*cells, *halves[place : place + 1]]))
    head = ("measurement", "GPUs", "published", "predicted", "off by", "without overlap", "off by")
    return Table(f"Validation: {title}", [*head, "half"] if halves else head, rows)


SHOWN = {  # of a value, by its unit
    EFFICIENCY: "{:.1%}",
    THROUGHPUT: "{:,.0f}",
    MINUTES: "{:.1f} min",
    STEP: "{:.2f} s",
    DAYS: "{:.2f} days",
}


def _as_object(point: Point) -> dict[str, Any]:
    return {
        "case": point.case.key,
        "title": point.case.title,
        "source": point.case.source,
        "gpus": point.at,
        "unit": point.case.unit,
        **{name: getattr(point, name) for name in (*PREDICTIONS, "calibrated")},
    }


PROJECTION, VALIDATION = "projection.png", "projection_validation.png"
BAND = "where measurements would lie, off as in the validation"


def projection_figure(
    plan: Plan, by_strategy: Mapping[str, Sequence[Projection]], points: Sequence[Point]
) -> Figure:
    """Efficiency, not throughput: on logarithmic axes strategies that are 10% apart are one line. A line for
    each, and a band around all where published measurements of such predictions lay."""
    figure = new_figure((11, 5.4))
    panels = [("efficiency", "gradients travel during the backward pass")] if plan.workload.overlap else []
    panels.append(("without_overlap", "gradients travel after the backward pass"))
    every = [each for own in by_strategy.values() for each in own]
    single = max(each.sequences_per_s / each.gpus / each.efficiency for each in every)
    gpus = np.array(plan.gpus)
    several = gpus > 1  # one GPU is what is calibrated
    drawn = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (field, title) in zip(drawn, panels):
        axes.axhline(100, label="linear", **ideal_style())
        shares = np.array([[100 * getattr(each, field) for each in own] for own in by_strategy.values()])
        for index, (name, own) in enumerate(zip(by_strategy, shares)):
            # The first ones are wider, so that they show around later ones that are equal.
            style = {"marker": "osD"[index], "markersize": 9 - 2.5 * index, "linewidth": 2.6 - 0.6 * index}
            axes.plot(gpus, own, color=COLOURS[index], label=name, **style)
        errors = error_range(points, field == "efficiency")
        band = (shares.min(0) / (1 + errors.most), shares.max(0) / (1 + errors.least))
        ends = [each[several] for each in (gpus, *band)]
        axes.fill_between(*ends, color="#DDDDDD", zorder=0, linewidth=0, label=BAND)
        axes.set_title(title)
        _count_axis(axes, plan.gpus)
    drawn[0].set_ylabel("scaling efficiency, %")
    drawn[0].set_ylim(5 * (drawn[0].get_ylim()[0] // 5), 105)
    rate = drawn[-1].secondary_yaxis(
        "right", functions=(lambda share: share * single / 100, lambda speed: 100 * speed / single)
    )
    rate.set_ylabel("sequences/s a GPU")
    title = f"{plan.model} on {plan.cluster.title}\n{plan.batch}; {plan.precision}"
    figure.suptitle(title, fontsize=11)
    legend_below(figure, drawn[:1], 2)
    return figure


def _validation(points: Sequence[Point]) -> Figure:
    figure = new_figure((11.5, 8.2))
    upper, lower = figure.subfigures(2, 1, height_ratios=(1.0, 0.95))
    main = [point for point in points if point.case in MAIN]
    speeds = [point for point in points if point.case.unit == THROUGHPUT]
    singles = {point.case.key: point.published for point in speeds if point.at == 1}
    lowest = min(100 * point.published / point.at / singles[point.case.key] for point in speeds)
    for axes, dtype in zip(upper.subplots(1, 2, sharey=True), ("float16", "float32")):
        _draw_efficiency(axes, [point for point in speeds if point.case.dtype == dtype], dtype)
        axes.set_ylim(5 * (lowest // 5), 101)
    claims, steps, days = lower.subplots(1, 3)
    _draw_claims(claims, [point for point in main if point.case.unit == EFFICIENCY])
    for axes, unit, name in ((steps, STEP, "seconds per step"), (days, DAYS, "days of training")):
        _draw_series(axes, [point for point in main if point.case.unit == unit], name)
        axes.set_title(f"a university, by its {'days' if unit == DAYS else 'step times'}", fontsize=10)
    legend_below(figure, [steps], 4)
    return figure


def _draw_efficiency(axes: Axes, points: Sequence[Point], dtype: str) -> None:
    """Efficiency by throughput: a plot of throughputs would need a logarithm, which hides 20%. A colour for
    each batch."""
    for index, key in enumerate(dict.fromkeys(point.case.key for point in points)):
        own = [point for point in points if point.case.key == key]
        case, one = own[0].case, next(point.published for point in own if point.at == 1)
        counts = [point.at for point in own]
        colour = COLOURS[(0, 5, 2)[index]]
        label = f"{case.sequences} sequences a GPU"
        for field, mark, style in (
            ("predicted", "-", {"linewidth": 1.3}),
            ("without_overlap", ":", {"linewidth": 1.7}),
            ("published", "osD"[index], {"label": label}),
        ):
            shares = [100 * getattr(point, field) / point.at / one for point in own]
            axes.plot(counts, shares, mark, color=colour, **style)
    axes.set(title=f"DLPerf: BERT-base, MXNet over Horovod, {dtype}", ylabel="efficiency, %")
    _count_axis(axes, sorted({point.at for point in points}))
    axes.legend(fontsize=9, frameon=False, loc="lower left")


def _draw_claims(axes: Axes, points: Sequence[Point]) -> None:
    for place, point in enumerate(points):
        low, high = sorted((point.predicted, point.without_overlap))
        axes.bar(place, 100 * (high - low), 0.5, 100 * low, color="#CCCCCC")
        for value, dash, width in ((point.predicted, "-", 1.4), (point.without_overlap, ":", 1.8)):
            ends = [place - 0.25, place + 0.25]
            axes.plot(ends, [100 * value] * 2, dash, color="black", linewidth=width)
        axes.plot(place, 100 * point.published, "o", color="black", markersize=6)
    names = {"byteps": "BytePS,\nservers apart", "hierarchical_ring": "Horovod,\nhierarchical"}
    axes.set_xticks(range(len(points)), [names[point.case.strategy.key] for point in points])
    axes.set_xlim(-0.6, len(points) - 0.4)
    axes.set(ylim=(0, 105), ylabel="efficiency, %")
    axes.set_title("BytePS's claim: BERT-large, 256 GPUs")
    plain(axes)


def _draw_series(axes: Axes, points: Sequence[Point], name: str) -> None:
    counts = [point.at for point in points]
    for field, mark, label in (
        ("published", "o", "published"),
        ("predicted", "-", "predicted"),
        ("without_overlap", ":", "predicted, without overlap"),
    ):
        values = [getattr(point, field) for point in points]
        axes.plot(counts, values, mark, markersize=6, linewidth=1.4, color="black", label=label)
    taken = [(point.at, point.published) for point in points if point.calibrated]
    axes.plot(
        *zip(*taken), "o", markersize=12, markerfacecolor="none", color="black",
        label="compute time taken from it",
    )  # fmt: skip
    axes.set_ylabel(name)
    axes.set_ylim(0, None)
    _count_axis(axes, counts)


def _count_axis(axes: Axes, counts: Sequence[int]) -> None:
    """Powers of two as they are, a few at most."""
    axes.set(xlabel="GPUs", xscale="log")
    shown = counts[:: 1 + len(counts) // 8]
    axes.set_xticks(shown, [str(count) for count in shown])
    axes.minorticks_off()
    plain(axes, "both")
