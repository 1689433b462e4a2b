"""Options of --project."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

from base.command_line import not_negative, positive, positive_int, share, whole
from base.options import option
from bert.configuration import MOST_LAYERS
from comparison.projection.clusters import CLUSTERS
from comparison.projection.model import COLOCATED, PLACEMENTS, STRATEGIES
from comparison.projection.workload import ELEMENT_BYTES, VOCABULARY
from training.pipeline.options import ONE_F_ONE_B, SCHEDULES
from training.pipeline.placement import PLACEMENTS as PIPELINE_PLACEMENTS

SEQUENCES = 64  # of a GPU and pass


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
