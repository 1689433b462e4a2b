"""The model against published measurements: how far it is off at each point, and what that rests on.

One number of each case is calibrated, the compute time of a pass (Case.calibrated_on, Case.single); all
others come from comparison.projection.clusters. Each point is predicted twice: with gradients travelling
during the backward pass, as the model simulates it, and with all of them after it. These are the best and the
worst that a queue can do; what else software costs is in neither.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Iterable, NamedTuple, Sequence

from comparison.projection.clusters import Cluster
from comparison.projection.model import Projection, project
from comparison.projection.published import CASES, DAYS, EFFICIENCY, STEP, THROUGHPUT, Case, SingleGpu
from comparison.projection.workload import (
    ELEMENT_BYTES,
    Part,
    Workload,
    bert_parts,
    step_flops,
    update_seconds,
)

DAY = 86400.0


class Point(NamedTuple):
    """One published number and the two predictions of it, all in the case's unit."""

    case: Case
    gpus: int
    published: float
    predicted: float
    without_overlap: float

    @property
    def calibrated(self) -> bool:
        """Whether the compute time was taken from this very number."""
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
    found = [abs(p.deviation if overlap else p.deviation_without_overlap) for p in points if not p.calibrated]
    return sum(found) / len(found)


class ErrorRange(NamedTuple):
    """The least and the greatest deviation of the predictions of throughput and efficiency, as Point has it:
    predicted over published, less one."""

    least: float
    most: float

    def published(self, predicted: float) -> tuple[float, float]:
        """Where the published value of such a prediction lay: lowest and highest."""
        return predicted / (1 + self.most), predicted / (1 + self.least)


def error_range(points: Sequence[Point], overlap: bool = True) -> ErrorRange:
    """Times and days are left out: they are of a network whose speed is assumed."""
    speeds = [p for p in points if not p.calibrated and p.case.unit in (THROUGHPUT, EFFICIENCY)]
    found = [p.deviation if overlap else p.deviation_without_overlap for p in speeds]
    return ErrorRange(min(found), max(found))


def workload_of(case: Case) -> Workload:
    """Of a step of the case, with the compute time from its one calibrated number."""
    parts = bert_parts(case.layers, case.units)
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
        found = project(replace(work, compute_s=middle), case.strategy, case.cluster, case.calibrated_on)
        low, high = (middle, high) if found.step_s < wanted else (low, middle)
    return replace(work, compute_s=high)


def single_compute_seconds(
    single: SingleGpu, parts: Sequence[Part], sequences: float, memory_gbytes_s: float
) -> float:
    """Compute time of a pass of another model or batch, at the operations a second that `single` sustained.

    The update is taken off the measured step before. That the rate does not depend on the batch is an
    assumption; a small batch keeps a GPU less busy.
    """
    own = bert_parts(single.layers, single.units, length=single.length, predictions=single.predictions)
    update_s = update_seconds(sum(part.elements for part in own), memory_gbytes_s)
    rate = step_flops(own, single.sequences) / (single.sequences / single.sequences_per_s - update_s)
    return step_flops(parts, sequences) / rate


def implied_gbps(case: Case, gpus: int) -> float | None:
    """The speed of the network, efficiency included, at which the simulated overlap would give the published
    value; None if none does. A measure of the deviation in other units: nothing uses it."""
    wanted = case.points[gpus]
    cluster = case.cluster
    work = workload_of(case)

    def found(gbps: float) -> float:
        own = replace(cluster, inter_gbps=gbps, network_efficiency=1.0)
        return _in_unit(replace(case, cluster=own), gpus, work)

    low, high = 1e-2, 1e6
    slower = -1 if case.unit in (STEP, DAYS) else 1  # the sign of what a faster network does to the value
    if not slower * found(low) <= slower * wanted <= slower * found(high):
        return None
    while high / low > 1 + 1e-5:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if slower * found(middle) < slower * wanted else (low, middle)
    return high


def _in_unit(case: Case, gpus: int, work: Workload) -> float:
    found: Projection = project(work, case.strategy, case.cluster, gpus)
    values = {
        THROUGHPUT: found.sequences_per_s,
        EFFICIENCY: found.efficiency,
        STEP: found.step_s,
        DAYS: found.step_s * case.steps[gpus] / DAY if case.steps else 0.0,
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
