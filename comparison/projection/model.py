"""A step's time on n GPUs, predicted: compute, and what of the communication the backward pass does not hide.

    step = max(the backward pass ends, the last gradient has arrived) + update
         = compute + exposed + waiting + update

After the backward pass gradients are on their way (exposed), or they are ready and the queue has not looked
for them yet (waiting): Horovod looks once a cycle.

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

    communication_s: in which gradients were on their way. exposed_s: the part of it after the backward pass,
    which nothing hides. waiting_s: after the backward pass, too, but with nothing on its way: the last
    gradients wait for the next cycle of Horovod's queue. The step is the sum of compute_s, exposed_s,
    waiting_s and optimizer_s. efficiency: throughput over that of one GPU times `gpus`;
    without_overlap: the same if gradients travelled only after the backward pass. sent_bytes: by the busiest
    host into the network. collectives: calls (rings) or partitions (BytePS).
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
    waiting_s: float
    sequences_per_s: float
    tokens_per_s: float
    efficiency: float
    without_overlap: float
    sent_bytes: float
    collectives: int


@dataclass(frozen=True)
class Plan:
    """Subject of a projection.

    Attributes:
        gradient_dtype: of gradients on their way. compute_dtype: of the passes that the compute time is of;
            None where the command line gives the time.
        compute_source: where the compute time is from, for people.
        given: fields of the cluster that the command line has replaced.
    """

    model: str
    cluster: Cluster
    workload: Workload
    strategies: Sequence[Strategy]
    gpus: Sequence[int]
    gradient_dtype: str
    compute_dtype: str | None
    compute_source: str
    given: Sequence[str]

    @property
    def batch(self) -> str:
        """Work of a GPU in a step, for people."""
        work = self.workload
        passes = f", {work.accumulate} passes a step" if work.accumulate > 1 else ""
        return f"{work.sequences:g} sequences of {work.length:.4g} tokens a GPU{passes}"

    @property
    def precision(self) -> str:
        """Precision of computing and of gradients on their way, for people."""
        if self.compute_dtype is None:
            return (
                f"computing in a precision that --compute_s leaves open, gradients in {self.gradient_dtype}"
            )
        if self.compute_dtype == self.gradient_dtype:
            return f"computing and gradients in {self.gradient_dtype}"
        return f"computing in {self.compute_dtype}, gradients in {self.gradient_dtype}"


def project(workload: Workload, strategy: Strategy, cluster: Cluster, gpus: int) -> Projection:
    """Weak scaling: every GPU has the workload, whatever their number.

    Raises:
        ValueError: a number of GPUs that leaves a host partly empty.
    """
    shape = shape_of(gpus, cluster.gpus_per_host)
    compute = workload.backward_ends_s
    travel = after = Travel(0.0, (), 0.0, 0)
    if gpus > 1:
        travel = strategy.travel(workload.messages(), shape, cluster)
        after = travel
        if workload.overlap:
            after = strategy.travel(replace(workload, overlap=False).messages(), shape, cluster)
    late = max(0.0, travel.ends_s - compute)
    exposed = min(late, travel.busy_after(compute))  # the sum may be more by a rounding
    alone = compute + workload.optimizer_s
    step = alone + late
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
        waiting_s=late - exposed,
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
