"""The time of a step in which stages on several GPUs hold the layers, in data-parallel replicas: predicted.

    step = the last backward pass ends + gradients that travel after it + update

Every stage follows its schedule (1F1B or GPipe) in order; a micro-batch's activations, and on the way back
their gradients, of rows x length x units numbers, arrive a transfer later, one after the other on a link.
Replicas whose stages meet at the same hosts share the hosts' network. When a stage's last backward pass has
ended, its gradients are averaged by a ring over the ranks that hold the same layers; rings that leave a host
take turns on its network. Where first and last stage share the word embedding, its averaged gradient then
travels between them. All GPUs are equally fast, and nothing of a backward pass travels before it has ended.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from typing import NamedTuple, Sequence

from comparison.projection.clusters import Cluster
from comparison.projection.model import FlatRing, Shape, shape_of
from comparison.projection.workload import FORWARD_SHARE, UPDATE_ACCESSES, Part, Workload
from training.pipeline.options import ONE_F_ONE_B
from training.pipeline.placement import replica_groups
from training.pipeline.schedule import passes
from training.pipeline.split import Costs, Split, balanced_split


@dataclass(frozen=True)
class Pipeline:
    """Stages, and how they are placed and take turns.

    Attributes:
        split: layers of each stage; None: balanced by operations.
        tied: whether the first and the last stage share the word embedding. Else they have one each.
        update_accesses: of the memory for each parameter (comparison.projection.workload).
    """

    stages: int
    placement: str
    schedule: str = ONE_F_ONE_B
    split: Split | None = None
    tied: bool = True
    update_accesses: int = UPDATE_ACCESSES


class PipelineProjection(NamedTuple):
    """A pipeline on `gpus` GPUs. Times in seconds, of one step, which is the sum of compute_s, waiting_s,
    gradients_s and optimizer_s.

    compute_s: of the stage that ends last. waiting_s: its waiting for the others, the bubble and transfers.
    gradients_s: after the last backward pass. efficiency: throughput over `gpus` times that of one GPU that
    would hold the whole model. sent_bytes: by the busiest host into the network.
    """

    placement: str
    schedule: str
    stages: int
    gpus: int
    hosts: int
    step_s: float
    compute_s: float
    waiting_s: float
    gradients_s: float
    optimizer_s: float
    sequences_per_s: float
    tokens_per_s: float
    efficiency: float
    sent_bytes: float


def simulate(
    schedule: str, micro_batches: int, compute_s: Sequence[float], transfer_s: Sequence[float]
) -> tuple[list[float], list[float]]:
    """Runs the stages of one replica. Returns the ends of each stage's last backward pass, in seconds from
    the start of the step, and the seconds that it has computed until then.

    Args:
        compute_s: of a micro-batch's forward and backward pass together, by stage.
        transfer_s: of a micro-batch's activations from each stage to the next, one fewer.
    """
    stages = len(compute_s)
    orders = [deque(passes(schedule, stage, stages, micro_batches)) for stage in range(stages)]
    now, busy = [0.0] * stages, [0.0] * stages
    arrived = {(True, 0, number): 0.0 for number in range(micro_batches)}
    free: dict[tuple[bool, int], float] = {}
    while any(orders):
        for stage, order in enumerate(orders):
            while order and (order[0][0], stage, order[0][1]) in arrived:
                forward, number = order.popleft()
                took = compute_s[stage] * (FORWARD_SHARE if forward else 1 - FORWARD_SHARE)
                now[stage] = max(now[stage], arrived[forward, stage, number]) + took
                busy[stage] += took
                to = stage + 1 if forward else stage - 1
                if to == stages:
                    arrived[False, stage, number] = now[stage]
                elif to >= 0:
                    begin = max(now[stage], free.get((forward, stage), 0.0))
                    free[forward, stage] = begin + transfer_s[min(stage, to)]
                    arrived[forward, to, number] = free[forward, stage]
    return now, busy


def stages_of(workload: Workload, pipeline: Pipeline) -> tuple[list[float], list[int]]:
    """Each stage's seconds of a micro-batch in both directions together, of a workload whose `compute_s` is
    the whole model's, and the numbers that it trains. The last stage has a word embedding too, of which it
    trains a copy or, where it is not tied, another one."""
    embeddings, *layers, heads = workload.parts
    split = pipeline.split or split_by(workload.parts, pipeline.stages, by_flops=True)
    shares = [layers[begin:end] for begin, end in split.ranges]
    shares[0].insert(0, embeddings)
    shares[-1].append(heads)
    flops = sum(part.flops for part in workload.parts)
    compute_s = [workload.compute_s * sum(part.flops for part in own) / flops for own in shares]
    elements = [sum(part.elements for part in own) for own in shares]
    if split.stages > 1:
        elements[-1] += word_embedding(workload.parts)
    return compute_s, elements


def split_by(parts: Sequence[Part], stages: int, by_flops: bool) -> Split:
    """The split that evens out operations, or parameters."""
    embeddings, *layers, heads = parts
    costs = [part.flops if by_flops else part.elements for part in (embeddings, layers[0], heads)]
    if not by_flops:
        costs[2] += word_embedding(parts)
    return balanced_split(Costs(costs[0], costs[1], costs[1], costs[2]), stages, len(layers))


def word_embedding(parts: Sequence[Part]) -> int:
    """Numbers of the word embedding."""
    return parts[0].gradients[0]


def project_pipeline(
    workload: Workload, pipeline: Pipeline, cluster: Cluster, gpus: int
) -> PipelineProjection:
    """Weak scaling over replicas: every replica has the workload, whatever their number.

    Args:
        workload: of a replica; `compute_s` of a micro-batch on one GPU that would hold the whole model,
            `accumulate` the micro-batches of a step; with `overlap` a stage's gradients travel as soon as its
            own backward passes have ended, else after those of all stages.
        gpus: a multiple of the stages that leaves no host partly empty.
    """
    shape = shape_of(gpus, cluster.gpus_per_host)
    wires = _Wires(cluster, shape, pipeline)
    stages = pipeline.stages
    compute_s, elements = stages_of(workload, pipeline)
    units = workload.parts[1].gradients[1]
    activations = workload.sequences * workload.length * units * workload.gradient_bytes
    transfers = [wires.transfer_s(stage, stage + 1, activations) for stage in range(stages - 1)]
    ends_s, busy_s = simulate(pipeline.schedule, workload.accumulate, compute_s, transfers)
    ends = max(ends_s)
    last = ends_s.index(ends)
    sizes = [each * workload.gradient_bytes for each in elements]
    ready = ends_s if workload.overlap else [ends] * stages
    averages = wires.averages_s(sizes, ready)
    averaged = max(averages)
    shared = word_embedding(workload.parts) * workload.gradient_bytes if pipeline.tied and stages > 1 else 0
    if shared:
        both = wires.transfer_s(0, stages - 1, shared)  # as much both ways
        averaged = max(averaged, max(averages[0], averages[-1]) + both)
    per_element = workload.optimizer_s / workload.elements * pipeline.update_accesses / UPDATE_ACCESSES
    update = per_element * max(elements)
    gradients = max(0.0, averaged - ends)
    step = ends + gradients + update
    sequences = gpus // stages * workload.sequences * workload.accumulate / step
    alone = workload.accumulate * workload.compute_s + per_element * workload.elements
    single = workload.sequences * workload.accumulate / alone
    return PipelineProjection(
        placement=pipeline.placement,
        schedule=pipeline.schedule,
        stages=stages,
        gpus=gpus,
        hosts=shape.hosts,
        step_s=step,
        compute_s=busy_s[last],
        waiting_s=ends - busy_s[last],
        gradients_s=gradients,
        optimizer_s=update,
        sequences_per_s=sequences,
        tokens_per_s=sequences * workload.length,
        efficiency=sequences / gpus / single,
        sent_bytes=wires.sent_bytes(sizes, activations * workload.accumulate, shared),
    )


class _Wires:
    """Links between the ranks of a placement."""

    def __init__(self, cluster: Cluster, shape: Shape, pipeline: Pipeline) -> None:
        self._cluster = cluster
        groups = replica_groups([shape.local] * shape.hosts, pipeline.stages, pipeline.placement)
        self._replicas = [[rank // shape.local for rank in ranks] for ranks in groups]  # hosts of the stages

    def transfer_s(self, one: int, other: int, nbytes: float) -> float:
        """So many bytes between two stages, in the slowest replica."""
        leaving = [hosts[one] for hosts in self._replicas if hosts[one] != hosts[other]]
        crowd = max((leaving.count(host) for host in set(leaving)), default=0)
        inside = self._cluster.intra_latency_us * 1e-6 + nbytes / self._cluster.intra_bytes_s(2)
        if not crowd:
            return inside
        between = self._cluster.inter_latency_us * 1e-6 + crowd * nbytes / self._cluster.inter_bytes_s
        return between if len(leaving) == len(self._replicas) else max(between, inside)

    def averages_s(self, sizes: Sequence[float], ready_s: Sequence[float]) -> list[float]:
        """Seconds until the gradients of each stage have been averaged over the ranks that hold it."""
        if len(self._replicas) == 1:
            return list(ready_s)
        free: dict[int, float] = {}
        ends = [0.0] * len(sizes)
        for stage in sorted(range(len(sizes)), key=ready_s.__getitem__):
            hosts = {replica[stage] for replica in self._replicas}
            ranks, count = len(self._replicas), len(hosts)
            seconds = FlatRing.seconds(sizes[stage], Shape(ranks, count, -(-ranks // count)), self._cluster)
            begin = ready_s[stage]
            if count > 1:
                begin = max([begin, *(free.get(host, 0.0) for host in hosts)])
                free.update((host, begin + seconds) for host in hosts)
            ends[stage] = begin + seconds
        return ends

    def sent_bytes(self, sizes: Sequence[float], activations: float, shared: float) -> float:
        """By the busiest host into the network in a step: its rings, activations and their gradients, and
        between the first and the last stage what they share."""
        sent: dict[int, float] = defaultdict(float)
        ranks = len(self._replicas)
        for nbytes, holders in zip(sizes, zip(*self._replicas)):
            hosts = set(holders)
            for host in hosts if len(hosts) > 1 else ():
                sent[host] += 2 * (ranks - 1) / ranks * nbytes
        for replica in self._replicas:
            links = [(*pair, activations) for pair in zip(replica, replica[1:])]
            for one, other, nbytes in [*links, (replica[0], replica[-1], shared)]:
                if one != other:
                    sent[one] += nbytes
                    sent[other] += nbytes
        return max(sent.values(), default=0.0)
