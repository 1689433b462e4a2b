"""The model against published measurements: how far it is off at each point, what that rests on, and
tables of both.

One number of each case is calibrated, the compute time of a pass (Case.calibrated_on, Case.single); all
others come from comparison.projection.clusters. Each point is predicted twice: with gradients travelling
during the backward pass, as the model simulates it, and with all of them after it. These are the best and the
worst that a queue can do; what else software costs is in neither.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Iterable, NamedTuple, Sequence

from base.quantities import digits
from base.tables import EMPTY, Row, Table
from comparison.projection.clusters import Cluster
from comparison.projection.model import Projection, project
from comparison.projection.published import (
    CASES,
    DAYS,
    EFFICIENCY,
    STEP,
    THROUGHPUT,
    UNIVERSITY_DAYS,
    UNIVERSITY_STEPS,
    Case,
    SingleGpu,
)
from comparison.projection.workload import (
    ELEMENT_BYTES,
    Part,
    Workload,
    bert_parts,
    step_flops,
    update_seconds,
)

DAY = 86400.0
LINK_SPEEDS = (1.0, 10.0, 25.0)  # Gbit/s, as Ethernet of its time came


class Point(NamedTuple):
    """One published number and the two predictions of it, all in the case's unit."""

    case: Case
    gpus: int
    published: float
    predicted: float
    without_overlap: float

    @property
    def calibrated(self) -> bool:
        """True where the compute time was taken from this very number."""
        return self.gpus == self.case.calibrated_on

    @property
    def deviation(self) -> float:
        """Predicted over published, less one."""
        return self.predicted / self.published - 1

    @property
    def deviation_without_overlap(self) -> float:
        return self.without_overlap / self.published - 1


def validate(cases: Iterable[Case] = CASES) -> list[Point]:
    return [point for case in cases for point in points_of(case)]


def points_of(case: Case, cluster: Cluster | None = None) -> list[Point]:
    """`cluster` in the place of the case's own; the compute time is then taken from the point anew."""
    case = case if cluster is None else replace(case, cluster=cluster)
    work = workload_of(case)
    after = replace(work, overlap=False)
    return [
        Point(case, gpus, value, *(_in_unit(case, gpus, each) for each in (work, after)))
        for gpus, value in case.points.items()
    ]


def mean_deviation(points: Sequence[Point], overlap: bool = True) -> float:
    """Mean of the absolute deviations, of the points that are predictions."""
    deviations = [
        abs(p.deviation if overlap else p.deviation_without_overlap) for p in points if not p.calibrated
    ]
    return sum(deviations) / len(deviations)


class ErrorRange(NamedTuple):
    """The least and the greatest deviation of the predictions of throughput and efficiency, as Point has it:
    predicted over published, less one."""

    least: float
    most: float

    def published(self, predicted: float) -> tuple[float, float]:
        """The published values of such a prediction: lowest and highest."""
        return predicted / (1 + self.most), predicted / (1 + self.least)


def error_range(points: Sequence[Point], overlap: bool = True) -> ErrorRange:
    """Times and days are left out: they are of a network whose speed is assumed."""
    speeds = [p for p in points if not p.calibrated and p.case.unit in (THROUGHPUT, EFFICIENCY)]
    deviations = [p.deviation if overlap else p.deviation_without_overlap for p in speeds]
    return ErrorRange(min(deviations), max(deviations))


def workload_of(case: Case) -> Workload:
    """Workload of a step of the case, with the compute time from its one calibrated number."""
    parts = bert_parts(case.bert)
    update_s = update_seconds(sum(part.elements for part in parts), case.cluster.memory_gbytes_s)
    work = Workload(
        parts, 0.0, update_s, ELEMENT_BYTES[case.dtype], case.sequences, accumulate=case.accumulate
    )
    if case.single is not None:
        seconds = single_compute_seconds(case.single, parts, case.sequences, case.cluster.memory_gbytes_s)
        return replace(work, compute_s=seconds)
    wanted = _step_seconds(case, case.calibrated_on)
    low, high = 0.0, wanted
    while high - low > 1e-12 * wanted:  # the step grows with the compute time
        middle = (low + high) / 2
        projection = project(replace(work, compute_s=middle), case.strategy, case.cluster, case.calibrated_on)
        low, high = (middle, high) if projection.step_s < wanted else (low, middle)
    return replace(work, compute_s=high)


def single_compute_seconds(
    single: SingleGpu, parts: Sequence[Part], sequences: float, memory_gbytes_s: float
) -> float:
    """Compute time of a pass of another model or batch, at the operations a second that `single` sustained.

    The update is taken off the measured step before. That the rate does not depend on the batch is an
    assumption; a small batch keeps a GPU less busy.
    """
    own = bert_parts(single.bert, length=single.length, predictions=single.predictions)
    update_s = update_seconds(sum(part.elements for part in own), memory_gbytes_s)
    rate = step_flops(own, single.sequences) / (single.sequences / single.sequences_per_s - update_s)
    return step_flops(parts, sequences) / rate


def implied_gbps(case: Case, gpus: int) -> float | None:
    """The speed of the network, efficiency included, at which the simulated overlap would give the published
    value; None if none does. A measure of the deviation in other units: nothing uses it."""
    wanted = case.points[gpus]
    cluster = case.cluster
    work = workload_of(case)

    def predicted(gbps: float) -> float:
        own = replace(cluster, inter_gbps=gbps, network_efficiency=1.0)
        return _in_unit(replace(case, cluster=own), gpus, work)

    low, high = 1e-2, 1e6
    slower = -1 if case.unit in (STEP, DAYS) else 1  # the sign of what a faster network does to the value
    if not slower * predicted(low) <= slower * wanted <= slower * predicted(high):
        return None
    while high / low > 1 + 1e-5:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if slower * predicted(middle) < slower * wanted else (low, middle)
    return high


def _in_unit(case: Case, gpus: int, work: Workload) -> float:
    projection: Projection = project(work, case.strategy, case.cluster, gpus)
    values = {
        THROUGHPUT: projection.sequences_per_s,
        EFFICIENCY: projection.efficiency,
        STEP: projection.step_s,
        DAYS: projection.step_s * case.steps[gpus] / DAY if case.steps else 0.0,
    }
    return values[case.unit]


def _step_seconds(case: Case, gpus: int) -> float:
    """A published value as seconds a step."""
    value = case.points[gpus]
    if case.unit == DAYS:
        assert case.steps is not None
        return value * DAY / case.steps[gpus]
    if case.unit == THROUGHPUT:
        return gpus * case.sequences * case.accumulate / value
    return value


def tables() -> list[Table]:
    """The validation, the same in the terminal, in projection.md and in docs/projection.md."""
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
    """By case, to show which of the two predictions is nearer."""
    rows = []
    for case in CASES:
        own = [point for point in points if point.case is case]
        predictions = sum(not point.calibrated for point in own)
        overlap, after = mean_deviation(own), mean_deviation(own, overlap=False)
        rows.append(Row([case.title, str(predictions), f"{100 * overlap:.1f}%", f"{100 * after:.1f}%"]))
    head = ("measurement", "predictions", "mean off", "without overlap")
    return Table("Validation: mean absolute deviation", head, rows)


def _losses(points: Sequence[Point]) -> Table:
    """Milliseconds by which steps become longer, from one GPU to a host and from one host to four."""
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
            predictions = [point for point in points_of(case, cluster) if not point.calibrated]
            cells += [off(point.deviation) for point in predictions]
        rows.append(Row(cells))
    head = ["network"]
    for unit in (STEP, DAYS):
        head += [f"{'step times' if unit == STEP else 'days'}, {gpus} GPUs" for gpus in (8, 16, 32)]
    return Table("Validation: the university's step times or its days?", head, rows, notes=[_verdict()])


def _verdict() -> str:
    """The story that one network explains better: the one whose points imply nearly one speed."""
    spreads = {}
    for case in (UNIVERSITY_STEPS, UNIVERSITY_DAYS):
        implied = [implied_gbps(case, gpus) for gpus in case.points if gpus != case.calibrated_on]
        speeds = [speed for speed in implied if speed is not None]
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
