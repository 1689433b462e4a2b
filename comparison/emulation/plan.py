"""Settings of an emulation, the scale, and the processes of a launch.

The hosts have one rank each: what a host's GPUs exchange among themselves is not emulated. A step of a model
takes the times at which its gradients become ready from the projection (comparison.projection.workload), or
from a trace; a message is an exchange without computing.

The cluster is emulated on a scale: with `--scale 100 10` arrays have a hundredth of their elements,
everything takes ten times as long, and links have a thousandth of their rate. Sizes and times in Horovod's
and BytePS's settings are scaled as well. What the software itself needs for a message is not, so that it
weighs a tenth.
"""

from __future__ import annotations

import re
import statistics
import sys
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Sequence

from base.command_line import at_least, path_name, positive, positive_int, whole
from base.errors import InputError
from base.options import option
from bert.configuration import recorded_config
from comm.options import COMPRESSIONS
from comparison.backends import BYTEPS, HOROVODRUN, ROOT, Backend
from comparison.emulation.network import INTERFACE, PAYLOAD, PRIVATE, Layout, Process, address
from comparison.messages.plan import parse_message
from comparison.projection.clusters import Cluster
from comparison.projection.model import COLOCATED, MIXED, PLACEMENTS, BytePS, FlatRing, Strategy
from comparison.projection.workload import ELEMENT_BYTES, Part, Workload, bert_parts
from hosts.launching.parts import Rendezvous, plan_parts
from hosts.mpirun import AS_ROOT
from training.profiling.trace import COMMUNICATION, OPTIMIZER, read_trace

RANK = ROOT / "comparison" / "emulation" / "rank.py"
MOST_HOSTS = 64
TRACE = "trace"  # the work of a setting that replays one
PAGE = 4096  # bytes to which BytePS rounds its partitions up
EXACT = ("none", "fp16")  # compressions under which the values that are sent arrive unchanged
SECONDS, LEAST_STEPS, MOST_STEPS = 5.0, 4, 20  # of a launch, after a first step that is kept apart
BUCKET_MB = 1.0  # --bucket_mb's default, which is scaled
PORT = 9091  # of BytePS's scheduler; no other program uses the network of the emulated hosts
_SERVERS = re.compile(rf"({'|'.join(PLACEMENTS)}):(?:(\d*)n(?:/([1-9]\d*))?|(\d+))")


@dataclass(frozen=True)
class OfEmulation:
    """Options that only --emulate takes. Every combination of the first seven with --backends is emulated."""

    hosts: Sequence[int] = option(
        "emulated hosts (default: 2 4 8); 1, computing alone, is in every report and launches nothing",
        whole(1, MOST_HOSTS, "more are no work for one machine"), "N", nargs="+", default=(2, 4, 8),
    )  # fmt: skip
    rates: Sequence[float] = option(
        "rate of a host's link, Gbit/s (default: 10 25 100)", positive, "X", nargs="+", default=(10, 25, 100)
    )
    server_sets: Sequence[str] = option(
        "servers of BytePS on N hosts: colocated:N beside the workers in turn, separate:K on hosts of their"
        " own, mixed:K on K hosts of their own and beside each worker; a number may be n (hosts), 2n, n/2"
        " (default: colocated:n separate:n/2 separate:n separate:2n mixed:n/2)",
        metavar="SET", nargs="+",
        default=("colocated:n", "separate:n/2", "separate:n", "separate:2n", "mixed:n/2"),
    )  # fmt: skip
    work: Sequence[str] = option(
        "a step: bert_LAYERS_UNITS_HEADS, its computing and its gradients; or a message as in --sizes, an"
        " exchange alone (default: 256MB)",
        metavar="WORK", nargs="+", default=("256MB",),
    )  # fmt: skip
    gradient_dtypes: Sequence[str] = option(
        "dtypes of exchanged gradients (default: float16)",
        nargs="+", choices=sorted(ELEMENT_BYTES), default=("float16",),
    )  # fmt: skip
    accumulations: Sequence[int] = option(
        "micro-batches of a step (default: 1)", positive_int, "N", nargs="+", default=(1,)
    )
    compressions: Sequence[str] = option(
        "compression of gradients (default: none)", nargs="+", choices=COMPRESSIONS, default=("none",)
    )
    scale: Sequence[int] = option(
        "divide sizes by the first number and multiply times by the second (default: 100 10)",
        at_least(1), "N", nargs=2, default=(100, 10),
    )  # fmt: skip
    trace: str | None = option(
        "replay the ready times of --profile's trace in place of --work", path_name, "FILE"
    )


class Group(NamedTuple):
    """Settings that exchange the same: they differ in the backend and its servers only. `work`: as in --work,
    or TRACE."""

    hosts: int
    gbps: float
    work: str
    dtype: str
    accumulate: int
    compression: str

    @property
    def place(self) -> str:
        """Hosts and links, for people."""
        return f"{self.hosts} hosts, {self.gbps:g} Gbit/s"

    @property
    def exchanged(self) -> str:
        """Arrays, for people."""
        more = f", {self.accumulate} micro-batches" if self.accumulate > 1 else ""
        more += f", compression {self.compression}" if self.compression != "none" else ""
        return f"{self.work}, gradients in {self.dtype}{more}"


class Setting(NamedTuple):
    """`backend`: a key of comparison.backends.BACKENDS. `servers`: as in --server_sets; "" for Horovod."""

    backend: str
    servers: str
    group: Group

    @property
    def contender(self) -> str:
        return f"{self.backend} {self.servers}".strip()

    def title(self, titles: Mapping[str, str]) -> str:
        """The contender, for people. `titles`: of backends."""
        return f"{titles[self.backend]} {self.servers}".strip()

    @property
    def name(self) -> str:
        """For directories."""
        text = "-".join(map(str, (self.backend, *([self.servers] if self.servers else []), *self.group)))
        return text.replace("/", "_").replace(":", "_")

    @property
    def placement(self) -> str:
        return self.servers.partition(":")[0]

    @property
    def num_servers(self) -> int:
        """On hosts of their own, or beside workers if all are there; 0 without servers."""
        return servers_of(self.servers, self.group.hosts) if self.servers else 0

    @property
    def all_servers(self) -> int:
        """With those beside workers in the mixed mode; 1 without servers."""
        return self.num_servers + (self.group.hosts if self.placement == MIXED else 0) or 1

    @property
    def strategy(self) -> Strategy:
        """The projection's."""
        return BytePS(self.num_servers, self.placement) if self.servers else FlatRing()


def servers_of(text: str, num_hosts: int) -> int:
    """The number in a word of --server_sets. Raises InputError."""
    match = _SERVERS.fullmatch(text)
    if not match:
        raise InputError(
            f"--server_sets {text}: write it like separate:4, colocated:n, separate:2n, mixed:n/2"
        )
    placement, factor, divisor, number = match.groups()
    count = Fraction(number) if number else Fraction(int(factor or 1), int(divisor or 1)) * num_hosts
    if count.denominator > 1 or count < 1:
        raise InputError(f"--server_sets {text}: {count} servers at --hosts {num_hosts}; give a whole number")
    if placement == MIXED and count > num_hosts:
        raise InputError(f"--server_sets {text}: BytePS mixes at most as many extra servers as workers")
    if max(count, num_hosts + (0 if placement == COLOCATED else count)) > MOST_HOSTS:
        raise InputError(f"--server_sets {text}: at most {MOST_HOSTS} hosts in all, and as many servers")
    return int(count)


class Scale(NamedTuple):
    """Divisor of sizes, factor of times."""

    sizes: int
    times: int

    def bits_per_s(self, gbps: float) -> float:
        """The emulated rate of a link."""
        return gbps * 1e9 / (self.sizes * self.times)

    def partition(self, nbytes: int) -> int:
        """Bytes of BytePS's partitions in the emulation, to which `nbytes` of the cluster come."""
        return max(1, -(-nbytes // (self.sizes * PAGE))) * PAGE

    def __str__(self) -> str:
        return (
            f"1/{self.sizes} of the bytes, {self.times} times the time, 1/{self.sizes * self.times} the rate"
        )


def settings_of(options: OfEmulation, backends: Mapping[str, Backend]) -> list[Setting]:
    """Every combination, the contenders of a group one after the other.

    Raises:
        InputError: an axis has a value twice, or one that does not go with another.
    """
    for name in ("hosts", "rates", "server_sets", "work", "gradient_dtypes", "accumulations", "compressions"):
        values = getattr(options, name)
        for value in values:
            if list(values).count(value) > 1:
                raise InputError(f"--{name}: {value} is named twice")
    for key, backend in backends.items():
        if key not in ("hvd_mpi", "hvd_gloo") and backend.launcher != BYTEPS:
            raise InputError(f"--backends {key}: --emulate takes hvd_mpi, hvd_gloo, byteps")
    groups = [
        Group(count, gbps, work, dtype, accumulate, compression)
        for work in (options.work if options.trace is None else [TRACE])
        for dtype in options.gradient_dtypes
        for accumulate in options.accumulations
        for compression in options.compressions
        for count in options.hosts
        if count > 1  # one exchanges nothing
        for gbps in options.rates
    ]
    if not groups:
        raise InputError("--hosts 1: has nothing to exchange; add 2 or more")
    settings = [
        Setting(key, servers, group)
        for group in groups
        for key, backend in backends.items()
        if backend.launcher == BYTEPS or group.compression in EXACT  # the others are BytePS's
        for servers in (options.server_sets if backend.launcher == BYTEPS else [""])
    ]
    for setting in settings:
        if setting.servers:
            servers_of(setting.servers, setting.group.hosts)
    if not settings:
        raise InputError(f"--compressions {' '.join(options.compressions)}: need --backends byteps")
    return settings


def message_workload(text: str, dtype: str) -> Workload:
    """An exchange alone: arrays that are all ready at once. Raises ValueError."""
    elements = tuple(each // ELEMENT_BYTES[dtype] for each in parse_message(text, dtype).array_bytes)
    return Workload((Part(text, elements, 1),), 0.0, 0.0, ELEMENT_BYTES[dtype], 1, 1)


def traced_workload(path: str, dtype: str) -> Workload:
    """The step of a trace: when each gradient array began to travel, which is when it was ready, when the
    backward pass ended, and how long the update and what follows took; medians over the steps.

    Raises:
        InputError: no trace, or one in which gradients do not travel array by array.
    """
    trace = read_trace(path)
    config, vocab_size = recorded_config(trace.facts, f"--trace {path}"), trace.facts.get("vocab_size")
    if not isinstance(vocab_size, int) or vocab_size < 1:
        raise InputError(f"--trace {path}: vocab_size {vocab_size}, where a trace has the vocabulary's size")
    parts = bert_parts(config, vocab_size)
    wanted = sum(len(part.gradients) for part in parts)
    times = []  # of each step: of the update, of the backward pass, and when each array was ready
    for step in trace.steps:
        own = [each for each in trace.operators if step.start <= each.start < step.end]
        end = max((each.end for each in own if each.backward), default=step.end)
        begin = min((each.start for each in own if each.backward), default=end)
        updates = [each.start for each in own if each.kind == OPTIMIZER and each.start >= end]
        update = min(updates, default=end)
        starts = sorted(
            each.start for each in own if each.kind == COMMUNICATION and begin <= each.start < update
        )
        if len(starts) != wanted:
            raise InputError(
                f"--trace {path}: {step.name} has {len(starts)} exchanges of gradients, the model {wanted} "
                "arrays; trace run_pretraining_hvd.py on two ranks, without --accumulate"
            )
        since = [each - step.start for each in (max(end, starts[-1]), *starts)]
        times.append([step.end - update, *since])
    optimizer_s, compute_s, *ready_s = (statistics.median(each) * 1e-6 for each in zip(*times))
    return Workload(parts, compute_s, optimizer_s, ELEMENT_BYTES[dtype], sequences=1, ready_s=tuple(ready_s))


def cluster_of(cluster: Cluster, setting: Setting, scale: Scale) -> Cluster:
    """The cluster as it is emulated, for the projection: hosts of one rank."""
    return replace(
        cluster,
        gpus_per_host=1,
        inter_gbps=setting.group.gbps,
        network_efficiency=PAYLOAD,
        partition_bytes=scale.partition(cluster.partition_of(setting.all_servers)) * scale.sizes,
    )


def replay_of(
    setting: Setting, workload: Workload, scale: Scale, seed: int, timeout_s: float
) -> dict[str, Any]:
    """The plan that comparison/emulation/rank.py reads. Arrays are in the order of the forward pass."""
    messages = workload.messages()[::-1]
    buckets = setting.servers and setting.group.compression in EXACT
    return {
        "backend": "byteps" if setting.servers else "hvd",
        "dtype": setting.group.dtype,
        "communication": {
            "comm_timeout": timeout_s,
            "bucket_mb": max(1e-3, BUCKET_MB / scale.sizes) if buckets else None,
            "compression": setting.group.compression,
            "compression_k": None,
            "error_feedback": False,
            "reproducible": False,
        },
        "exact": setting.group.compression in EXACT,
        "ranks": setting.group.hosts,
        "seed": seed,
        "seconds": SECONDS,
        "least_steps": LEAST_STEPS,
        "most_steps": MOST_STEPS,
        "elements": [max(1, round(each.nbytes / workload.gradient_bytes / scale.sizes)) for each in messages],
        "ready_s": [each.ready_s * scale.times for each in messages],
        "computed_s": workload.backward_ends_s * scale.times,
        "optimizer_s": workload.optimizer_s * scale.times,
    }


def layout_of(setting: Setting, backend: Backend, cluster: Cluster, scale: Scale, directory: Path) -> Layout:
    """Hosts, links and processes of a launch.

    Args:
        cluster: as in the projection.
        directory: of the ranks' plan, `plan.json`, and of what they write; and of `yield.so`.
    """
    count, own = setting.group.hosts, setting.num_servers
    hosts = count + (own if setting.placement != COLOCATED else 0)
    addresses = [address(each) for each in range(hosts)]
    rank = [sys.executable, str(RANK), str(directory / "plan.json"), str(directory)]
    environ = {
        **AS_ROOT,
        "OMP_NUM_THREADS": "1",
        "MXNET_CPU_WORKER_NTHREADS": "2",  # one sleeps in place of computing, one packs
        "TMPDIR": PRIVATE,
        "HOROVOD_CYCLE_TIME": f"{cluster.cycle_ms * scale.times:g}",
        "HOROVOD_FUSION_THRESHOLD": str(round(cluster.fusion_mb * 2**20 / scale.sizes)),
        "BYTEPS_SERVER_ENGINE_THREAD": "1",
        **backend.variables,
    }
    if setting.group.compression in EXACT:  # the others have pieces of their own size
        environ["BYTEPS_PARTITION_BYTES"] = str(scale.partition(cluster.partition_of(setting.all_servers)))
    bits_per_s = scale.bits_per_s(setting.group.gbps)
    if setting.servers:
        return Layout(hosts, bits_per_s, _byteps_processes(setting, addresses, rank, environ))
    slots = ",".join(f"{each}:1" for each in addresses)
    if backend.launcher == HOROVODRUN:
        words = [sys.executable, "-m", "horovod.runner.launch", "--gloo", "-np", str(count)]
        words += ["--network-interfaces", INTERFACE, "-H", slots]
    else:  # all variables reach the other hosts: the remote shell is a child of mpirun
        environ["LD_PRELOAD"] = str(directory / "yield.so")
        words = ["mpirun", "-np", str(count), "--host", slots, "--bind-to", "none"]
        words += ["-mca", "mpi_yield_when_idle", "1", "-mca", "pml", "ob1", "-mca", "btl", "tcp,self"]
        words += ["-mca", "btl_tcp_if_include", INTERFACE, "-mca", "oob_tcp_if_include", INTERFACE]
    return Layout(hosts, bits_per_s, [Process(0, (*words, *rank), environ)])


def _byteps_processes(
    setting: Setting, addresses: Sequence[str], rank: Sequence[str], environ: Mapping[str, str]
) -> list[Process]:
    """The parts as hosts/launch.py has them, and servers on hosts of their own."""
    count, own = setting.group.hosts, setting.num_servers
    places, mode = list(range(count, count + own)), {}
    if setting.placement == COLOCATED:
        places = [each % count for each in range(own)]
    elif setting.placement == MIXED:
        places += range(count)
        mode = {"BYTEPS_ENABLE_MIXED_MODE": "1"}
    known = {each: each for each in addresses}
    rendezvous = Rendezvous(addresses[0], addresses[0], PORT)
    workers = [(each, 1) for each in addresses[:count]]
    processes = []
    for part in plan_parts(workers, len(places), rendezvous, known, rank, "emulated"):
        host = places[part.index] if part.role == "server" else addresses.index(part.host)
        variables = {**environ, **part.environment, **mode}
        if part.role == "server":
            variables["DMLC_NODE_HOST"] = addresses[host]
        processes.append(Process(host, part.command, variables, part.role == "rank"))
    return processes
