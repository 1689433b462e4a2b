"""From the options of `--project` to what is projected: cluster, workload, strategies, numbers of GPUs."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from typing import Sequence

from base.errors import InputError
from bert.configuration import parse_model
from comparison.projection.clusters import CLUSTERS, Cluster
from comparison.projection.measured import Measured, read_measured
from comparison.projection.model import GPUS
from comparison.projection.published import SINGLE_GPUS
from comparison.projection.strategies import COLOCATED, BytePS, FlatRing, HierarchicalRing, Strategy
from comparison.projection.validation import single_compute_seconds
from comparison.projection.workload import ELEMENT_BYTES, VOCABULARY, Workload, bert_parts, update_seconds
from lamb_paper import LONGEST

STRATEGIES = (FlatRing.key, HierarchicalRing.key, BytePS.key)
MODEL, LENGTH, SEQUENCES = "bert_24_1024_16", 128, 64
MOST_GPUS = 1 << 20
MOST_PARTITIONS = 1 << 20  # of the gradients: a simulation of a minute
# Options that replace a value of the cluster: flag -> field.
OVERRIDES = {
    "gpus_per_host": "gpus_per_host",
    "inter_gbps": "inter_gbps",
    "network_efficiency": "network_efficiency",
    "intra_latency_us": "intra_latency_us",
    "inter_latency_us": "inter_latency_us",
    "fusion_mb": "fusion_mb",
    "cycle_ms": "cycle_ms",
    "partition_bytes": "partition_bytes",
}


@dataclass(frozen=True)
class Plan:
    """What is projected.

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
        """What a GPU computes in a step, for people."""
        work = self.workload
        passes = f", {work.accumulate} passes a step" if work.accumulate > 1 else ""
        return f"{work.sequences:g} sequences of {work.length:.4g} tokens a GPU{passes}"

    @property
    def precision(self) -> str:
        """Of computing and of gradients on their way, for people."""
        if self.compute_dtype is None:
            return (
                f"computing in a precision that --compute_s leaves open, gradients in {self.gradient_dtype}"
            )
        if self.compute_dtype == self.gradient_dtype:
            return f"computing and gradients in {self.gradient_dtype}"
        return f"computing in {self.compute_dtype}, gradients in {self.gradient_dtype}"


def plan_of(options: argparse.Namespace) -> Plan:
    """Raises InputError for values that contradict each other, or that no simulation can hold."""
    cluster, given = _cluster(options)
    strategies = _strategies(options)
    gpus = _gpus(options, cluster)
    measured = read_measured(options.measured) if options.measured else None
    if measured:
        for flag in ("model", "vocab_size", "max_seq_length", "batch_size", "compute_s"):
            if getattr(options, flag) is not None:
                raise InputError(
                    f"--{flag} and --measured exclude each other: the report has the measured one"
                )
    model = measured.model if measured else options.model or MODEL
    dtype = options.gradient_dtype or ("float32" if measured else "float16")
    workload, source = _workload(options, cluster, model, dtype, measured)
    pieces = workload.total_bytes / cluster.partition_bytes + sum(
        len(part.gradients) for part in workload.parts
    )
    if pieces > MOST_PARTITIONS:
        raise InputError(f"--model {model}: {pieces:,.0f} messages a step are too many to simulate")
    computing = measured.dtype if measured else None if options.compute_s is not None else dtype
    return Plan(model, cluster, workload, strategies, gpus, dtype, computing, source, given)


def _cluster(options: argparse.Namespace) -> tuple[Cluster, list[str]]:
    cluster = CLUSTERS[options.cluster or "p3dn"]
    values = {field: getattr(options, flag) for flag, field in OVERRIDES.items()}
    values = {field: value for field, value in values.items() if value is not None}
    if options.intra_gbps is not None:
        values["intra_gbps"] = {1: options.intra_gbps}
    return replace(cluster, **values), sorted(values)


def _strategies(options: argparse.Namespace) -> list[Strategy]:
    keys = options.strategies or list(STRATEGIES)
    if len(set(keys)) < len(keys):
        raise InputError("--strategies: one is named twice")
    if BytePS.key not in keys:
        for flag in ("servers", "server_placement"):
            if getattr(options, flag) is not None:
                raise InputError(f"--{flag} is of BytePS, and --strategies leaves byteps out")
    made: dict[str, Strategy] = {
        FlatRing.key: FlatRing(),
        HierarchicalRing.key: HierarchicalRing(),
        BytePS.key: BytePS(options.servers, options.server_placement or COLOCATED),
    }
    return [made[key] for key in keys]


def _gpus(options: argparse.Namespace, cluster: Cluster) -> list[int]:
    size = cluster.gpus_per_host
    if not options.gpus:
        inside = [count for count in GPUS if count <= size]
        return sorted({*inside, *(size * count for count in GPUS if size * count <= GPUS[-1])})
    if len(set(options.gpus)) < len(options.gpus):
        raise InputError("--gpus: a number is named twice")
    for count in options.gpus:
        if count > MOST_GPUS:
            raise InputError(f"--gpus {count}: at most {MOST_GPUS}")
        if count > size and count % size:
            raise InputError(f"--gpus {count}: does not fill hosts of {size} GPUs (--gpus_per_host)")
    return sorted(options.gpus)


def _workload(
    options: argparse.Namespace, cluster: Cluster, model: str, dtype: str, measured: Measured | None
) -> tuple[Workload, str]:
    layers, units, _ = parse_model(model)
    if layers > 10_000 or units > 1_000_000:
        raise InputError(f"--model {model}: at most 10,000 layers and 1,000,000 units")
    length = options.max_seq_length or LENGTH
    if length > LONGEST:
        raise InputError(f"--max_seq_length {length}: BERT has {LONGEST} positions")
    predictions = round(0.15 * length) + (length == 128)  # 20 of 128, as everybody has it
    vocab_size = measured.vocab_size if measured else options.vocab_size or VOCABULARY
    parts = bert_parts(layers, units, vocab_size, length, predictions)
    elements = sum(part.elements for part in parts)
    sequences = measured.sequences if measured else float(options.batch_size or SEQUENCES)
    update_s = measured.optimizer_s if measured else update_seconds(elements, cluster.memory_gbytes_s)
    if options.optimizer_s is not None:
        update_s = options.optimizer_s
    if measured:
        compute_s, source = measured.compute_s, measured.what
    elif options.compute_s is not None:
        compute_s, source = options.compute_s, "--compute_s"
    else:
        singles = SINGLE_GPUS[cluster.name]
        if dtype not in singles:
            raise InputError(f"--gradient_dtype {dtype}: no speed of a GPU is known for it; give --compute_s")
        single = singles[dtype]
        compute_s = single_compute_seconds(single, parts, sequences, cluster.memory_gbytes_s)
        source = (
            f"the operations a second of bert_{single.layers}_{single.units} in {single.dtype}, "
            f"{single.sequences_per_s:.4g} sequences/s on one GPU ({single.source})"
        )
    return (
        Workload(
            parts=parts,
            compute_s=compute_s,
            optimizer_s=update_s,
            gradient_bytes=ELEMENT_BYTES[dtype],
            sequences=sequences,
            length=measured.length if measured else length,
            accumulate=options.accumulate or (measured.accumulate if measured else 1),
            overlap=(options.overlap or "backward") == "backward",
        ),
        source,
    )
