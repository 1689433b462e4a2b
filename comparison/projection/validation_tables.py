"""The validation as tables, the same in the terminal, in projection.md and in docs/projection.md."""

from __future__ import annotations

from dataclasses import replace
from typing import Sequence

from comparison.projection.published import (
    CASES,
    DAYS,
    EFFICIENCY,
    STEP,
    THROUGHPUT,
    UNIVERSITY_DAYS,
    UNIVERSITY_STEPS,
)
from comparison.projection.validation import DAY, Point, implied_gbps, mean_deviation, points_of, validate
from comparison.reporting.tables import EMPTY, Row, Table
from comparison.reporting.wording import digits

LINK_SPEEDS = (1.0, 10.0, 25.0)  # Gbit/s, as Ethernet of its time came


def tables() -> list[Table]:
    points = validate()
    return [
        _points("Validation: the measurements the model is judged by", [p for p in points if p.case.main]),
        _points("Validation: the same code at other batch sizes", [p for p in points if not p.case.main]),
        _means(points),
        _speeds(),
        _stories(),
        _losses(points),
    ]


def shown(unit: str, value: float) -> str:
    """A value in its unit."""
    if unit == EFFICIENCY:
        return f"{100 * value:.1f}%"
    if unit == THROUGHPUT:
        return f"{value:,.0f}"
    return f"{value:.2f} {'s' if unit == STEP else 'days'}"


def off(deviation: float) -> str:
    return f"{round(100 * deviation, 1) + 0.0:+.1f}%"  # the sum makes +0.0 of -0.0


def _points(title: str, points: Sequence[Point]) -> Table:
    rows = []
    for point in points:
        first = [point.case.title, str(point.gpus), shown(point.case.unit, point.published)]
        if point.calibrated:
            rows.append(Row(first, "compute time taken from it"))
            continue
        rows.append(
            Row(
                [
                    *first,
                    shown(point.case.unit, point.predicted),
                    off(point.deviation),
                    shown(point.case.unit, point.without_overlap),
                    off(point.deviation_without_overlap),
                ]
            )
        )
    head = ("measurement", "GPUs", "published", "predicted", "off by", "without overlap", "off by")
    return Table(title, head, rows)


def _means(points: Sequence[Point]) -> Table:
    """By case, so that a look tells which of the two predictions is nearer."""
    rows = []
    for case in CASES:
        own = [point for point in points if point.case is case]
        predictions = sum(not point.calibrated for point in own)
        overlap, after = mean_deviation(own), mean_deviation(own, overlap=False)
        rows.append(Row([case.title, str(predictions), f"{100 * overlap:.1f}%", f"{100 * after:.1f}%"]))
    head = ("measurement", "predictions", "mean off", "without overlap")
    return Table("Validation: mean absolute deviation", head, rows)


def _losses(points: Sequence[Point]) -> Table:
    """How much longer steps become, from one GPU to a host and from one host to four."""
    rows = []
    for case in CASES:
        if case.unit != THROUGHPUT:
            continue
        own = {point.gpus: point for point in points if point.case is case}
        cells = [case.title]
        for few, many in ((1, 8), (8, 32)):
            for field in ("published", "predicted", "without_overlap"):
                before, after = (count * case.sequences / getattr(own[count], field) for count in (few, many))
                cells.append(f"{1e3 * (after - before):.1f}")
        rows.append(Row(cells))
    head = ["ms a step, more"]
    for span in ("1 to 8 GPUs", "8 to 32"):
        head += [f"{span}: {name}" for name in ("published", "predicted", "without overlap")]
    return Table("Validation: what a step loses inside a host, and between hosts", head, rows)


def _speeds() -> Table:
    rows = []
    for case in CASES:
        if case.unit == THROUGHPUT:
            continue
        for gpus in case.points:
            if gpus == case.calibrated_on:
                continue
            assumed = case.cluster.inter_gbps * case.cluster.network_efficiency
            implied = implied_gbps(case, gpus)
            text = EMPTY if implied is None else digits(implied)
            rows.append(Row([case.title, str(gpus), digits(assumed), text]))
    head = ("measurement", "GPUs", "Gbit/s reckoned with", "Gbit/s that would give the published value")
    return Table("Validation: the deviation as a speed of the network", head, rows)


def _stories() -> Table:
    """The university's two stories at several speeds of its network, which no source names."""
    rows = []
    for speed in LINK_SPEEDS:
        cells = [f"{speed:.0f} Gbit/s"]
        for case in (UNIVERSITY_STEPS, UNIVERSITY_DAYS):
            cluster = replace(case.cluster, inter_gbps=speed)
            found = [point for point in points_of(case, cluster) if not point.calibrated]
            cells += [off(point.deviation) for point in found]
        rows.append(Row(cells))
    head = ["network"]
    for unit in (STEP, DAYS):
        head += [f"{'step times' if unit == STEP else 'days'}, {gpus} GPUs" for gpus in (8, 16, 32)]
    return Table("Validation: the university's step times or its days?", head, rows, notes=[_verdict()])


def _verdict() -> str:
    """Which of the two stories one network explains better: the one whose points imply nearly one speed."""
    spreads = {}
    for case in (UNIVERSITY_STEPS, UNIVERSITY_DAYS):
        found = [implied_gbps(case, gpus) for gpus in case.points if gpus != case.calibrated_on]
        speeds = [speed for speed in found if speed is not None]
        spreads[case.unit] = (min(speeds), max(speeds))
    ratios = {unit: high / low for unit, (low, high) in spreads.items()}
    better, worse = sorted(ratios, key=lambda unit: ratios[unit])
    names = {STEP: "step times", DAYS: "days"}
    assert UNIVERSITY_DAYS.steps is not None
    total = UNIVERSITY_STEPS.points[4] * UNIVERSITY_DAYS.steps[4] / DAY
    return (
        f"The two differ in the first row only: its step time times its steps is {total:.2f} days, not"
        f" {UNIVERSITY_DAYS.points[4]:.2f}; on 8, 16 and 32 GPUs they agree within 4%. The {names[better]}"
        f" fit one network better ({_range(spreads[better])}, a factor of {ratios[better]:.1f}) than the"
        f" {names[worse]} ({_range(spreads[worse])}, a factor of {ratios[worse]:.1f}). A network faster than"
        " 10 Gbit/s would speak for the step times on 8 and 16 GPUs. Its speed is not published, so this is"
        " no proof."
    )


def _range(speeds: tuple[float, float]) -> str:
    return f"{digits(speeds[0], 2)} to {digits(speeds[1], 2)} Gbit/s"
