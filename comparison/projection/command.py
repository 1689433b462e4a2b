"""`python compare.py --project`: throughput and efficiency from 1 to 1024 GPUs, predicted by a small model.

    python compare.py --project
    python compare.py --project --model bert_12_768_12 --batch_size 128 --strategies flat_ring
    python compare.py --project --servers 16 --server_placement separate --inter_gbps 25
    python compare.py --project --crossover
    python compare.py --project --pipeline_stages 4 --accumulate 16

Under --output: projection.md, .html, .json and .png, projection_validation.png; with --crossover
crossover.png, too; with --pipeline_stages pipelines.md, .html, .json and .png. No MXNet, seconds; with
--crossover a minute.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Sequence

from base.command_line import not_negative, positive, positive_int, share, whole
from base.errors import InputError
from base.options import option
from bert.configuration import MOST_LAYERS, BertConfig, named_config
from comm.numbering import LEAST_PARTITION_BYTES
from comparison.projection import pipeline_report
from comparison.projection import report as strategy_report
from comparison.projection.clusters import CLUSTERS, Cluster
from comparison.projection.crossover import crossings
from comparison.projection.model import COLOCATED, GPUS, MIXED, PLACEMENTS, STRATEGIES, BytePS, Plan
from comparison.projection.pipelines import Pipeline
from comparison.projection.validation import BASE, LARGE, SINGLE_GPUS, single_compute_seconds
from comparison.projection.workload import (
    ELEMENT_BYTES,
    VOCABULARY,
    Workload,
    bert_parts,
    read_measured,
    update_seconds,
)
from training.pipeline.options import ONE_F_ONE_B, SCHEDULES
from training.pipeline.placement import PLACEMENTS as PIPELINE_PLACEMENTS
from training.pipeline.split import check_stages

MODEL, LENGTH = LARGE, 128
SEQUENCES = 64  # of a GPU and pass
SMALLER = BASE  # beside it for --crossover, unless the command line is about one model
MOST_GPUS = 1 << 20
MOST_PARTITIONS = 1 << 20  # of the gradients: a simulation of a minute
MOST_SERVERS = 1 << 13  # of BytePS: minutes
# Options about gradients without pipelines.
OF_STRATEGIES = (
    *("strategies", "servers", "server_placement", "fusion_mb", "cycle_ms", "partition_bytes", "measured"),
    "crossover",
)


@dataclass(frozen=True)
class ProjectionOptions:
    """Options of --project; None: left out. Those without a help are the comparison's, too."""

    output: str
    model: str | None
    max_seq_length: int | None
    accumulate: int | None
    gpus: Sequence[int] | None = option("numbers of GPUs (1 2 4 8 16 ... 1024)", positive_int, "N", nargs="+")
    strategies: Sequence[str] | None = option(
        "ways to average gradients (all)", nargs="+", choices=tuple(STRATEGIES)
    )
    servers: int | None = option("servers of BytePS (as many as hosts)", positive_int, "K")
    server_placement: str | None = option(
        f"servers on the worker hosts, on machines of their own, or best divided ({COLOCATED})",
        choices=PLACEMENTS,
    )
    cluster: str | None = option(
        "cluster whose parameters hold unless replaced (p3dn)", choices=sorted(CLUSTERS)
    )
    gpus_per_host: int | None = option("GPUs of a host (p3dn: 8)", positive_int, "G")
    intra_gbps: float | None = option(
        "bandwidth of a ring inside a host, Gbit/s (p3dn: 160 to 960)", positive, "X"
    )
    inter_gbps: float | None = option("bandwidth of a host's network, Gbit/s (p3dn: 100)", positive, "X")
    network_efficiency: float | None = option("share of it that collectives reach (p3dn: 0.56)", share, "X")
    intra_latency_us: float | None = option(
        "latency of a ring's step inside a host (p3dn: 3.4)", not_negative, "X"
    )
    inter_latency_us: float | None = option("latency of a step between hosts (p3dn: 9.6)", not_negative, "X")
    fusion_mb: float | None = option("MiB that Horovod fuses into one call (p3dn: 128)", not_negative, "X")
    cycle_ms: float | None = option("Horovod's cycle time (p3dn: 1)", not_negative, "X")
    partition_bytes: int | None = option("bytes of BytePS's partitions (by the servers)", positive_int, "N")
    compute_s: float | None = option("seconds of one forward and backward pass on one GPU", positive, "S")
    optimizer_s: float | None = option(
        "seconds of the update (from the GPU's memory bandwidth)", not_negative, "S"
    )
    measured: str | None = option("report.json of a comparison: compute time of this machine", metavar="FILE")
    gradient_dtype: str | None = option(
        "dtype of exchanged gradients (float16; --measured: float32)", choices=sorted(ELEMENT_BYTES)
    )
    overlap: str | None = option(
        "exchange during the backward pass, or after it (backward)", choices=("backward", "none")
    )
    crossover: bool | None = option(
        "also from how many servers on BytePS is faster (a minute)", action="store_const", const=True
    )
    pipeline_stages: int | None = option(
        "GPUs that share the layers of one model: pipelines in data-parallel replicas, in place of the "
        "strategies; --batch_size counts for a replica (docs/pipelines.md)",
        whole(2, MOST_LAYERS, "one for each layer of the deepest model"), "S",
    )  # fmt: skip
    placement: Sequence[str] | None = option(
        "of a pipeline's stages (both)", nargs="+", choices=PIPELINE_PLACEMENTS
    )
    pipeline_schedule: str | None = option(f"of a pipeline ({ONE_F_ONE_B})", choices=SCHEDULES)
    batch_size: int | None = option(f"sequences a GPU and pass ({SEQUENCES})", positive_int, "B")
    vocab_size: int | None = option(f"tokens in the vocabulary ({VOCABULARY})", positive_int, "V")


def project(options: ProjectionOptions) -> int:
    """Projects, prints the tables and writes the files; 0. Raises InputError before anything is written,
    and OSError where nothing can be."""
    pipelines = pipelines_of(options)
    plan = plan_of(options)
    directory = Path(options.output)
    directory.mkdir(parents=True, exist_ok=True)
    if pipelines:
        report = pipeline_report.report_of(plan, pipelines)
    else:
        plans = [plan] if options.crossover else []
        if plans and not (options.model or options.measured or options.compute_s):
            plans = [plan_of(replace(options, model=SMALLER)), plan]
        report = strategy_report.report_of(plan, crossings(plans))
    paths = report.ended(0).write(directory)
    print(f"{report.terminal}\n\nwritten: {', '.join(map(str, paths))}")
    return 0


def plan_of(options: ProjectionOptions) -> Plan:
    """The cluster, the workload, the strategies and the numbers of GPUs.

    Raises:
        InputError: values that contradict each other, or that no simulation can hold.
    """
    # An option of the name of one of the cluster's parameters replaces it.
    names = [each.name for each in fields(Cluster)]
    values = {name: value for name in names if (value := getattr(options, name, None)) is not None}
    if options.intra_gbps is not None:
        values["intra_gbps"] = {1: options.intra_gbps}
    cluster = replace(CLUSTERS[options.cluster or "p3dn"], **values)
    keys = options.strategies or list(STRATEGIES)
    if len(set(keys)) < len(keys):
        raise InputError("--strategies: one is named twice")
    if BytePS.key not in keys:
        reason = " is of BytePS, and --strategies leaves byteps out"
        _reject(options, ("servers", "server_placement"), reason)
    byteps = BytePS(options.servers, options.server_placement or COLOCATED)
    strategies = [byteps if key == BytePS.key else STRATEGIES[key]() for key in keys]
    gpus = _gpus(options, cluster)
    hosts = max(gpus) // cluster.gpus_per_host
    count = (options.servers or hosts) + (hosts if options.server_placement == MIXED else 0)
    if BytePS.key in keys and not options.pipeline_stages and count > MOST_SERVERS:
        given = f"--servers {options.servers}" if options.servers else f"--gpus {max(gpus)}"
        raise InputError(f"{given}: {count:,} servers of BytePS are too many to simulate")
    dtype = options.gradient_dtype or ("float32" if options.measured else "float16")
    if options.measured:
        flags = ("model", "vocab_size", "max_seq_length", "batch_size", "compute_s")
        _reject(options, flags, " and --measured exclude each other: the report has the measured one")
        bert, step = read_measured(options.measured)
    else:
        bert = named_config(options.model or MODEL)
        step = _published(options, bert, cluster, dtype)
    workload = replace(
        step,
        optimizer_s=step.optimizer_s if options.optimizer_s is None else options.optimizer_s,
        gradient_bytes=ELEMENT_BYTES[dtype],
        accumulate=options.accumulate or 4 * (options.pipeline_stages or 0) or step.accumulate,
        overlap=options.overlap != "none",
    )
    least = cluster.partition_bytes or LEAST_PARTITION_BYTES
    pieces = workload.total_bytes / least + sum(len(part.gradients) for part in workload.parts)
    if pieces > MOST_PARTITIONS:
        raise InputError(f"--model {bert.name}: {pieces:,.0f} messages a step are too many to simulate")
    return Plan(bert.description, cluster, workload, strategies, gpus, dtype, sorted(values))


def _published(options: ProjectionOptions, bert: BertConfig, cluster: Cluster, dtype: str) -> Workload:
    """The step of a GPU whose speed is given, or was published. Raises InputError where none was."""
    sequences, length = float(options.batch_size or SEQUENCES), options.max_seq_length or LENGTH
    parts = bert_parts(bert, options.vocab_size or VOCABULARY, length)
    update_s = update_seconds(parts, cluster.memory_gbytes_s)
    work = Workload(parts, options.compute_s or 0.0, update_s, ELEMENT_BYTES[dtype], sequences, length)
    if options.compute_s is not None:
        return replace(work, source="--compute_s")
    single = SINGLE_GPUS[cluster.name].get(dtype)
    if single is None:
        raise InputError(f"--gradient_dtype {dtype}: no speed of a GPU is known for it; give --compute_s")
    source = (
        f"the operations a second of {single.model.rpartition('_')[0]} in {single.dtype}, "
        f"{single.sequences_per_s:.4g} sequences/s on one GPU ({single.source})"
    )
    compute_s = single_compute_seconds(single, parts, sequences, cluster.memory_gbytes_s)
    return replace(work, compute_s=compute_s, dtype=dtype, source=source)


def pipelines_of(options: ProjectionOptions) -> list[Pipeline]:
    """The pipelines to project, one for each placement; empty without --pipeline_stages.

    Raises:
        InputError: an option of the one kind of projection beside the other's.
    """
    stages = options.pipeline_stages
    if stages is None:
        _reject(options, ("placement", "pipeline_schedule"), " is of pipelines: give --pipeline_stages too")
        return []
    reason = " is of strategies without pipelines: leave it or --pipeline_stages out"
    _reject(options, OF_STRATEGIES, reason)
    check_stages(stages, named_config(options.model or MODEL).layers)
    placements = list(dict.fromkeys(options.placement or PIPELINE_PLACEMENTS))
    return [Pipeline(stages, each, options.pipeline_schedule or ONE_F_ONE_B) for each in placements]


def _reject(options: ProjectionOptions, flags: Sequence[str], reason: str) -> None:
    """Raises InputError where one of these was given."""
    for flag in flags:
        if getattr(options, flag) is not None:
            raise InputError(f"--{flag}{reason}")


def _gpus(options: ProjectionOptions, cluster: Cluster) -> list[int]:
    size, stages = cluster.gpus_per_host, options.pipeline_stages or 1
    if not options.gpus:
        inside = [count for count in GPUS if count <= size]
        counts = sorted({*inside, *(size * count for count in GPUS if size * count <= GPUS[-1])})
        least = size * stages // math.gcd(size, stages)  # whole hosts and whole replicas
        return [count for count in counts if count % stages == 0] or [least]
    if len(set(options.gpus)) < len(options.gpus):
        raise InputError("--gpus: a number is named twice")
    for count in options.gpus:
        if count > MOST_GPUS:
            raise InputError(f"--gpus {count}: at most {MOST_GPUS}")
        if count > size and count % size:
            raise InputError(f"--gpus {count}: does not fill hosts of {size} GPUs (--gpus_per_host)")
        if count % stages:
            raise InputError(f"--gpus {count}: no multiple of --pipeline_stages {stages}")
    return sorted(options.gpus)
