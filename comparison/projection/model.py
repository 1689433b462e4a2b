"""A step's time on n GPUs, predicted: compute, and what of the communication the backward pass does not hide.

    step = max(the backward pass ends, the last gradient has arrived) + update
         = compute + exposed + waiting + update

After the backward pass gradients are on their way (exposed), or they are ready and the queue has not looked
for them yet (waiting): Horovod looks once a cycle. The queue of gradients is simulated, so what is hidden
follows from sizes, order and speed; no factor of overlap is assumed. All GPUs take the same time, always:
there are no stragglers in here.

Time that gradients travel by flat ring, hierarchical ring, and BytePS with k servers:

n GPUs in h hosts of g each, M bytes, per-direction bandwidths B_i inside a host and B_e of a host's network
(times its efficiency), latencies a_i and a_e of a step.

- Flat ring over all GPUs: 2 (n - 1) / n x M bytes pass every link
  (https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md), so the slowest one decides; of its
  2 (n - 1) steps 2 (h - 1) go between hosts.
- Hierarchical ring: reduce-scatter in each host, (g - 1) / g x M / B_i; rings between the hosts, one for
  each of the g shards through the same network interface, 2 (h - 1) / h x M / B_e; all-gather in each host
  as the first.
- BytePS: the GPUs of a host add up, one after the other cut into partitions; each host pushes M to k
  servers and pulls M. With the servers on machines of their own a host's interface carries M in each
  direction and a server's h M / k; the larger decides. With servers on the worker hosts, s = ceil(k / h) on
  the fullest, that host sends its gradients but for its own share, and the sums of its share to the others:
  M (1 + (h - 2) s / k); for k = h that is 2 (h - 1) / h x M, the ring's. "mixed" is the optimal division
  between k machines and all worker hosts, 2 h (h - 1) M / ((h^2 + k h - 2 k) B) for k <= h (Jiang et al., A
  Unified Architecture for Accelerating Distributed DNN Training, OSDI 2020, section 4.1).

Adding up on the servers' CPUs, and PCIe between GPU and network, are taken to keep up with the network.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, replace
from typing import Callable, ClassVar, Iterator, Mapping, NamedTuple, Sequence, Union

import numpy as np

from comm.numbering import Servers, even_numbers, server_of
from comparison.projection.clusters import Cluster
from comparison.projection.workload import Message, Workload
from training.profiling.intervals import Interval, union

SEPARATE, COLOCATED, MIXED = "separate", "colocated", "mixed"
PLACEMENTS = (COLOCATED, SEPARATE, MIXED)
# Latencies from the last byte of a push to the first of its sum: data, acknowledgement, request.
HALF_WAYS = 3
BUCKET_BYTES = 1 << 20  # comm.byteps packs smaller arrays together


class Shape(NamedTuple):
    """GPUs of a run on a cluster: `hosts` with `local` GPUs each."""

    gpus: int
    hosts: int
    local: int


def shape_of(gpus: int, gpus_per_host: int) -> Shape:
    """Hosts are filled one after the other; the last does not stay partly empty."""
    local = min(gpus, gpus_per_host)
    return Shape(gpus, gpus // local, local)


class Travel(NamedTuple):
    """Times in seconds from the start of the step.

    ends_s: when the last gradient has arrived everywhere. spans: when any was on its way, as intervals that
    follow each other without overlap. sent_bytes: out of the network interface of the busiest host.
    collectives: calls or partitions.
    """

    ends_s: float
    spans: Sequence[Interval]
    sent_bytes: float
    collectives: int

    def busy_after(self, start_s: float) -> float:
        """Seconds after a point in time in which any gradient was on its way; never more than after an
        earlier one, to the last bit."""
        return sum(max(0.0, end - max(begin, start_s)) for begin, end in self.spans)


class FlatRing:
    """An all-reduce in Horovod's queue: every cycle all gradients that are ready, fused up to a size, one
    collective after the other; gradients that become ready meanwhile wait for the next cycle."""

    key, title = "flat_ring", "flat ring"  # on the command line, and for people

    @staticmethod
    def seconds(nbytes: float, shape: Shape, cluster: Cluster) -> float:
        """Seconds of one all-reduce."""
        bandwidth = cluster.intra_bytes_s(shape.local)
        if shape.hosts > 1:
            bandwidth = min(bandwidth, cluster.inter_bytes_s) if shape.local > 1 else cluster.inter_bytes_s
        between = 2 * (shape.hosts - 1)
        inside = 2 * (shape.gpus - 1) - between
        latency = inside * cluster.intra_latency_us + between * cluster.inter_latency_us
        return (cluster.call_latency_us + latency) * 1e-6 + _sent_by_ring(shape.gpus) * nbytes / bandwidth

    @staticmethod
    def carried(shape: Shape) -> float:
        """Bytes out of a host for each byte of gradients."""
        return _sent_by_ring(shape.gpus) if shape.hosts > 1 else 0.0

    def travel(self, messages: Sequence[Message], shape: Shape, cluster: Cluster) -> Travel:
        """`messages`: in the order in which they become ready."""
        limit, cycle = cluster.fusion_mb * 2**20, cluster.cycle_ms * 1e-3
        now = 0.0
        calls = begin = 0
        spans = []
        while begin < len(messages):
            now = max(now, messages[begin].ready_s)
            if cycle > 1e-12:  # of a shorter one the count would not be finite
                # Ready at a cycle but for rounding is ready at it; the first is never later than its own.
                now = max(math.ceil(now / cycle - 1e-9) * cycle, now)
            fused, tick = 0, now
            while begin < len(messages) and messages[begin].ready_s <= tick:
                fused += messages[begin].nbytes
                begin += 1
                more = begin < len(messages) and messages[begin].ready_s <= tick
                if not more or fused + messages[begin].nbytes > limit:
                    took = self.seconds(fused, shape, cluster)
                    spans.append((now, now + took))
                    now, calls, fused = now + took, calls + 1, 0
        sent = self.carried(shape) * sum(message.nbytes for message in messages)
        return Travel(now, union(spans), sent, calls)


class HierarchicalRing(FlatRing):
    """The same queue; the three phases of a ring follow each other."""

    key, title = "hierarchical_ring", "hierarchical ring"

    @staticmethod
    def seconds(nbytes: float, shape: Shape, cluster: Cluster) -> float:
        calls = 1 if shape.hosts == 1 else 1 + 2 * (shape.local > 1)  # on one host it is an ordinary ring
        inside = 2 * (shape.local - 1) * cluster.intra_latency_us
        between = 2 * (shape.hosts - 1) * cluster.inter_latency_us
        latency = calls * cluster.call_latency_us + inside + between
        moved = _sent_by_ring(shape.local) / cluster.intra_bytes_s(shape.local)
        moved += _sent_by_ring(shape.hosts) / cluster.inter_bytes_s
        return latency * 1e-6 + nbytes * moved

    @staticmethod
    def carried(shape: Shape) -> float:
        return _sent_by_ring(shape.hosts)


class Exchange:
    """Pushes and pulls of a step; `advance` goes on to the next event.

    Workers are alike, so one stands for all of them. A server has one connection to each worker, on which
    partitions follow each other; it sends a sum when every worker's part has arrived. At any time all
    connections that have something to send share a link equally, and the slowest of a partition's counts.

    Args:
        servers: of two workers or more; those beside them are on their hosts in turn.
        bytes_s: of a host's link, in each direction. `latency_s`: of a message.
    """

    def __init__(self, servers: Servers, bytes_s: float, latency_s: float):
        workers, apart, beside, _ = servers
        self._workers, self._hosts = workers, workers + apart
        self._bytes_s, self._latency_s = bytes_s, latency_s
        count = apart + beside
        self._host = np.array([*range(workers, workers + apart), *(each % workers for each in range(beside))])
        # By direction, push and pull: partitions that wait at a server, and what is left of the first.
        self._waiting: list[list[list[tuple[int, int]]]] = [[[] for _ in range(count)] for _ in range(2)]
        self._left = np.zeros((2, count))
        self._rates = np.ones((2, count))  # bytes a second of each connection that has something to send
        self._coming: list[tuple[float, int, int, int, int]] = []  # when, direction, server, name, bytes
        self._now = 0.0

    def add(self, at: float, name: int, server: int, nbytes: int) -> None:
        """Has a partition pushed from `at` on, in seconds; later than all events so far."""
        heapq.heappush(self._coming, (at, 0, server, name, nbytes))

    @property
    def next_s(self) -> float:
        """Time of the next event; infinity without any."""
        return self._now + self._next()[1]

    def advance(self) -> Iterator[tuple[float, int]]:
        """Goes on to the next event. Yields the partitions that have arrived everywhere, and when."""
        times, step = self._next()
        ended = np.isfinite(times) & (times <= step * (1 + 1e-9))
        self._left = np.where(np.isfinite(times) & ~ended, self._left - self._rates * step, 0.0)
        self._now += step
        now = self._now
        for direction, server in zip(*np.nonzero(ended)):
            name, nbytes = self._waiting[direction][server].pop(0)
            if direction:
                yield now + self._latency_s, name
            else:
                begins = now + HALF_WAYS * self._latency_s
                heapq.heappush(self._coming, (begins, 1, int(server), name, nbytes))
        while self._coming and self._coming[0][0] <= now:
            _, direction, server, name, nbytes = heapq.heappop(self._coming)
            self._waiting[direction][server].append((name, nbytes))
        for direction, queues in enumerate(self._waiting):
            for server, queue in enumerate(queues):
                if queue and self._left[direction, server] == 0:
                    self._left[direction, server] = queue[0][1]
        self._share()

    def _next(self) -> tuple[np.ndarray, float]:
        """Seconds that the partitions on their way still take, infinity where there is none; and seconds
        until the next event."""
        times = np.where(self._left > 0, self._left / self._rates, np.inf)
        coming = self._coming[0][0] - self._now if self._coming else math.inf
        return times, max(0.0, min(coming, float(times.min())))

    def _share(self) -> None:
        """Max-min fair rates: all grow alike until a link is full, whose connections keep what they have."""
        free = self._left > 0
        self._rates = np.where(free, 0.0, 1.0)
        given = np.zeros_like(self._rates)
        while free.any():
            crowd, used = self._through(free.astype(float)), self._through(given)
            grown = float(((self._bytes_s - used)[crowd > 0] / crowd[crowd > 0]).min())
            given[free] += grown
            full = (crowd > 0) & (used + grown * crowd >= self._bytes_s * (1 - 1e-9))
            # A partition has a connection to each worker's host but that of its server.
            workers = full[:, : self._workers]
            for direction in (0, 1):
                elsewhere = workers[direction].sum() - np.where(
                    self._host < self._workers, workers[direction].take(self._host, mode="clip"), 0
                )
                free[direction] &= ~((elsewhere > 0) | full[1 - direction, self._host])
        self._rates += given

    def _through(self, rates: np.ndarray) -> np.ndarray:
        """Bytes a second that leave each host (0) and come to it (1), at the rates of connections given."""
        workers = self._workers
        own = np.array([np.bincount(self._host, each, self._hosts) for each in rates])
        moved = workers * own[::-1]  # of hosts without a worker
        moved[:, :workers] -= own[::-1, :workers]
        moved[:, :workers] += rates.sum(1, keepdims=True) - own[:, :workers]
        return moved


@dataclass(frozen=True)
class BytePS:
    """`servers`: how many; None: as many as hosts. `placement`: one of PLACEMENTS. `even`: whether arrays
    have the numbers of comm.numbering, not consecutive ones as with BytePS alone."""

    servers: int | None = None
    placement: str = COLOCATED
    even: bool = True
    key: ClassVar[str] = "byteps"

    @property
    def title(self) -> str:
        count = "a server for each host" if self.servers is None else f"{self.servers} servers"
        return f"BytePS, {count}, {self.placement}"

    def travel(self, messages: Sequence[Message], shape: Shape, cluster: Cluster) -> Travel:
        """A pipeline: every partition is added up inside its hosts, exchanged with its server, and handed out
        inside. `messages`: in the order in which they become ready."""
        count = shape.hosts if self.servers is None else self.servers
        apart = 0 if self.placement == COLOCATED else count
        beside = {COLOCATED: count, SEPARATE: 0, MIXED: shape.hosts}[self.placement]
        size = cluster.partition_of(apart + beside)
        servers = Servers(max(2, shape.hosts), apart, beside, size)
        pieces = _pieces(messages, servers, self.even)
        moved = (shape.local - 1) / shape.local / cluster.intra_bytes_s(shape.local)
        steps = (shape.local - 1) * cluster.intra_latency_us
        delay = (cluster.call_latency_us + steps) * 1e-6 if shape.local > 1 else 0.0
        exchange = Exchange(servers, cluster.inter_bytes_s, cluster.inter_latency_us * 1e-6)
        # Adding up and handing out share a host's links, and what comes first is served first. Several
        # partitions are on their way at once, so latency delays them and keeps nothing busy.
        inside = [(piece.ready_s, 0, number) for number, (piece, _) in enumerate(pieces)]
        heapq.heapify(inside)
        free = ends = 0.0
        spans: list[Interval] = []
        begun: dict[int, float] = {}
        while inside or exchange.next_s < math.inf:
            begin = max(inside[0][0], free) if inside else math.inf
            if exchange.next_s <= begin:
                for done, number in exchange.advance():
                    spans.append((begun[number], done))
                    heapq.heappush(inside, (done, 1, number))
                continue
            _, handed_out, number = heapq.heappop(inside)
            piece, server = pieces[number]
            free = begin + piece.nbytes * moved
            done = free + delay
            spans.append((begin, done))
            ends = max(ends, done)
            if not handed_out and shape.hosts == 1:
                heapq.heappush(inside, (done, 1, number))
            elif not handed_out:
                begun[number] = done
                exchange.add(done, number, server, piece.nbytes)
        carried = self.carried(shape.hosts) if shape.hosts > 1 else 0.0
        sent = carried * sum(piece.nbytes for piece, _ in pieces)
        return Travel(ends, union(spans), sent, len(pieces))

    def carried(self, hosts: int) -> float:
        """Bytes through the busiest interface in each direction, for each byte of gradients of a host."""
        servers = hosts if self.servers is None else self.servers
        if self.placement == SEPARATE:
            return max(1.0, hosts / servers)
        if self.placement == MIXED:
            servers = min(servers, hosts)
            return 2 * hosts * (hosts - 1) / (hosts**2 + servers * hosts - 2 * servers)
        return 1 + (hosts - 2) * math.ceil(servers / hosts) / servers


Strategy = Union[FlatRing, BytePS]  # ways to average gradients
STRATEGIES: Mapping[str, Callable[[], Strategy]] = {
    each.key: each for each in (FlatRing, HierarchicalRing, BytePS)
}


def _pieces(messages: Sequence[Message], servers: Servers, even: bool) -> list[tuple[Message, int]]:
    """Partitions and their servers. Small neighbours share a bucket, as comm.byteps packs them; a bucket is
    cut into partitions. Number 0 has been given to the ranks' votes."""
    buckets: list[Message] = []
    limit = 0  # of the last bucket, if it may take more
    for ready_s, nbytes in messages:
        if buckets and buckets[-1].nbytes + nbytes <= limit:
            buckets[-1] = Message(ready_s, buckets[-1].nbytes + nbytes)
        else:
            buckets.append(Message(ready_s, nbytes))
            limit = BUCKET_BYTES if nbytes < BUCKET_BYTES else 0
    numbers: Sequence[int] = range(1, len(buckets) + 1)
    if even:
        numbers = even_numbers([bucket.nbytes for bucket in buckets], servers, 1)
    size = servers.partition_bytes
    return [
        (Message(ready_s, min(size, nbytes - begin)), server_of(number, part, servers))
        for number, (ready_s, nbytes) in zip(numbers, buckets)
        for part, begin in enumerate(range(0, nbytes, size))
    ]


def _sent_by_ring(members: int) -> float:
    return 2 * (members - 1) / members


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
        gradient_dtype: of gradients on their way.
        given: fields of the cluster that the command line has replaced.
    """

    model: str
    cluster: Cluster
    workload: Workload
    strategies: Sequence[Strategy]
    gpus: Sequence[int]
    gradient_dtype: str
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
        if self.workload.dtype == self.gradient_dtype:
            return f"computing and gradients in {self.gradient_dtype}"
        computing = self.workload.dtype or "a precision that --compute_s leaves open"
        return f"computing in {computing}, gradients in {self.gradient_dtype}"


def project(workload: Workload, strategy: Strategy, cluster: Cluster, gpus: int) -> Projection:
    """Weak scaling: every GPU has the workload, whatever their number. `gpus`: as for `shape_of`."""
    shape = shape_of(gpus, cluster.gpus_per_host)
    compute = workload.backward_ends_s
    travel = after = Travel(0.0, [], 0.0, 0)
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
        communication_s=travel.busy_after(0.0),
        exposed_s=exposed,
        waiting_s=late - exposed,
        sequences_per_s=sequences,
        tokens_per_s=sequences * workload.length,
        efficiency=alone / step,
        without_overlap=alone / (alone + max(0.0, after.ends_s - compute)),
        sent_bytes=travel.sent_bytes,
        collectives=travel.collectives,
    )
