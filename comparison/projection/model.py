"""A step's time on n GPUs, predicted: compute, and what of the communication the backward pass does not hide.

    step = max(the backward pass ends, the last gradient has arrived) + update

The queue of gradients is simulated (comparison.projection.strategies), so what is hidden follows from sizes,
order and speed; no factor of overlap is assumed. All GPUs take the same time, always: there are no stragglers
in here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Iterable, NamedTuple, Sequence

from comparison.projection.clusters import Cluster
from comparison.projection.strategies import Strategy, Travel, shape_of
from comparison.projection.workload import Workload

GPUS = tuple(2**power for power in range(11))  # 1 to 1024


class Projection(NamedTuple):
    """A strategy on `gpus` GPUs. Times in seconds, of one step.

    communication_s: in which gradients were on their way. exposed_s: the part of the step that waits for
    them. efficiency: throughput over that of one GPU times `gpus`; without_overlap: the same if gradients
    travelled only after the backward pass. sent_bytes: by the busiest host into the network. collectives:
    calls (rings) or partitions (BytePS).
    """

    strategy: str
    title: str
    gpus: int
    hosts: int
    step_s: float
    compute_s: float
    optimizer_s: float
    communication_s: float
    exposed_s: float
    sequences_per_s: float
    tokens_per_s: float
    efficiency: float
    without_overlap: float
    sent_bytes: float
    collectives: int


@dataclass(frozen=True)
class Plan:
    """`compute_source`: where the compute time is from, for people. `given`: fields of the cluster that the
    command line has replaced."""

    model: str
    cluster: Cluster
    workload: Workload
    strategies: Sequence[Strategy]
    gpus: Sequence[int]
    dtype: str
    compute_source: str
    given: Sequence[str]


def project(workload: Workload, strategy: Strategy, cluster: Cluster, gpus: int) -> Projection:
    """Weak scaling: every GPU has the workload, whatever their number.

    Raises:
        ValueError: a number of GPUs that leaves a host partly empty.
    """
    shape = shape_of(gpus, cluster.gpus_per_host)
    compute = workload.backward_ends_s
    travel = after = Travel(0.0, 0.0, 0.0, 0)
    if gpus > 1:
        travel = strategy.travel(workload.messages(), shape, cluster)
        after = travel
        if workload.overlap:
            after = strategy.travel(replace(workload, overlap=False).messages(), shape, cluster)
    exposed = max(0.0, travel.ends_s - compute)
    alone = compute + workload.optimizer_s
    step = alone + exposed
    sequences = gpus * workload.sequences * workload.accumulate / step
    return Projection(
        strategy=strategy.key,
        title=strategy.title,
        gpus=gpus,
        hosts=shape.hosts,
        step_s=step,
        compute_s=compute,
        optimizer_s=workload.optimizer_s,
        communication_s=travel.busy_s,
        exposed_s=exposed,
        sequences_per_s=sequences,
        tokens_per_s=sequences * workload.length,
        efficiency=alone / step,
        without_overlap=alone / (alone + max(0.0, after.ends_s - compute)),
        sent_bytes=travel.sent_bytes,
        collectives=travel.collectives,
    )


def project_all(
    workload: Workload, strategies: Sequence[Strategy], cluster: Cluster, gpus: Iterable[int] = GPUS
) -> list[Projection]:
    """Every strategy at every number of GPUs; the strategies one after the other."""
    counts = list(gpus)
    return [project(workload, strategy, cluster, count) for strategy in strategies for count in counts]
