"""Clusters that a projection can be made for: their parameters, and the source of each.

Bandwidths are in Gbit/s, per direction, latencies in microseconds. Nothing in here was fitted to the
measurements of comparison.projection.validation; what no source states is marked "assumed".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Mapping

from comm.numbering import partition_bytes_of

NCCL_TOPOLOGY = (
    "https://github.com/NVIDIA/nccl/blob/069a3d4f95ca488dc63ba7ae659a2db77942a62e/src/graph/topo.h"
)
NCCL_TUNING = (
    "https://github.com/NVIDIA/nccl/blob/01afd20a77b5804e0ecf1042509dd9d20ebf9e93/src/graph/tuning.cc"
)
P3DN_EFA = "https://aws.amazon.com/blogs/compute/optimizing-deep-learning-on-p3-and-p3dn-with-efa/"
P3DN_NCCL = "https://github.com/NVIDIA/nccl/issues/235"
V100 = "https://www.nvidia.com/en-us/data-center/v100/"
DLPERF_HOSTS = (
    "https://github.com/Oneflow-Inc/DLPerf/blob/master/OneFlow/Classification/ConvNets/resnet50v1.5/reports/"
    "rn50_fp32_report_0821.md"
)
BYTEPS_README = "https://github.com/bytedance/byteps#performance"
HETSEQ = "https://github.com/yifding/hetseq#performance-table"
HOROVOD_0_21 = "https://github.com/horovod/horovod/releases/tag/v0.21.0"
BYTEPS_ENVIRONMENT = "https://github.com/bytedance/byteps/blob/master/docs/env.md"

NVLINK_GBPS = 8 * 20.0  # what NCCL reckons with for one of V100's links, of 25 GB/s on paper
# Links of V100's hybrid cube mesh that a ring of so many GPUs can use: GPUs 0 and 1 share one, the four of a
# half can form four rings, all eight GPUs six.
CUBE_MESH = {2: 1 * NVLINK_GBPS, 4: 4 * NVLINK_GBPS, 8: 6 * NVLINK_GBPS}
_MESH_SOURCE = (
    f"20 GB/s a link ({NCCL_TOPOLOGY}: SM70_NVLINK_BW), times the links that a ring over 2, 4 and 8 GPUs "
    f"finds in the hybrid cube mesh (`nvidia-smi topo -m` in {DLPERF_HOSTS}; {P3DN_EFA} shows the same mesh)"
)
_LATENCY_SOURCE = f"NCCL's own estimate of a ring step, Simple protocol ({NCCL_TUNING}: hwLat)"


@dataclass(frozen=True)
class Cluster:
    """A cluster of equal hosts.

    Attributes:
        gpus_per_host: filled before the next host is used.
        intra_gbps: what a ring inside a host reaches, by the GPUs in it (the next larger number counts).
        inter_gbps: the network interfaces of a host together, as advertised.
        network_efficiency: the share of it that collectives reach.
        intra_latency_us, inter_latency_us: of one step of a ring inside a host, and between two.
        call_latency_us: what a collective costs before its first byte.
        memory_gbytes_s: of a GPU, for the update.
        fusion_mb: gradients that are ready together travel together up to so many MiB (2**20 bytes).
        cycle_ms: how often Horovod looks for gradients that are ready.
        partition_bytes: BytePS cuts gradients into pieces of so many bytes; None: as ours does by the number
            of servers.
        sources: field -> where its value is from.
    """

    name: str
    title: str
    gpus_per_host: int
    intra_gbps: Mapping[int, float]
    inter_gbps: float
    network_efficiency: float
    intra_latency_us: float
    inter_latency_us: float
    call_latency_us: float
    memory_gbytes_s: float
    fusion_mb: float
    cycle_ms: float
    partition_bytes: int | None
    sources: Mapping[str, str]

    def intra_bytes_s(self, gpus: int) -> float:
        """Bandwidth of a ring over `gpus` GPUs of one host."""
        fitting = [count for count in sorted(self.intra_gbps) if count >= gpus]
        return self.intra_gbps[fitting[0] if fitting else max(self.intra_gbps)] * 1e9 / 8

    def partition_of(self, servers: int) -> int:
        """Bytes of a partition with so many servers."""
        return self.partition_bytes or partition_bytes_of(servers)

    @property
    def inter_bytes_s(self) -> float:
        return self.inter_gbps * self.network_efficiency * 1e9 / 8


def _cluster(name: str, title: str, base: Cluster | None = None, **given: tuple[Any, str]) -> Cluster:
    """`given`: parameters, each with its source. The others are those of `base`."""
    changes = {
        **{field: value for field, (value, _) in given.items()},
        "name": name,
        "title": title,
        "sources": {
            **(base.sources if base else {}),
            **{field: source for field, (_, source) in given.items()},
        },
    }
    return replace(base, **changes) if base else Cluster(**changes)


P3DN = _cluster(
    "p3dn",
    "p3dn.24xlarge: 8 V100 32 GB, NVLink, 100 Gbit/s EFA",
    gpus_per_host=(8, P3DN_EFA),
    intra_gbps=(CUBE_MESH, _MESH_SOURCE),
    inter_gbps=(100.0, P3DN_EFA),
    network_efficiency=(
        0.56,
        f"6 to 8 GB/s measured with NCCL on 8 to 32 p3dn hosts, the middle ({P3DN_NCCL}); assumed to hold for"
        " BytePS as well",
    ),
    intra_latency_us=(3.4, _LATENCY_SOURCE),
    inter_latency_us=(9.6, _LATENCY_SOURCE),
    call_latency_us=(8.4, f"NCCL's own estimate ({NCCL_TUNING}: baseLat)"),
    memory_gbytes_s=(900.0, f"900 GB/s ({V100})"),
    fusion_mb=(128.0, f"Horovod's default ({HOROVOD_0_21})"),
    cycle_ms=(1.0, f"Horovod's default ({HOROVOD_0_21})"),
    partition_bytes=(None, "by the number of servers (comm/numbering.py)"),
)

_NCCL_EFFICIENCY = 0.96, f"12 GB/s of 100 Gbit/s, what NCCL reckons with ({NCCL_TOPOLOGY}: NET_BW)"
_OLD_HOROVOD = f"the default before Horovod 0.21, they had 0.19.5 ({HOROVOD_0_21})"

DLPERF = _cluster(
    "dlperf",
    "DLPerf: 8 V100 16 GB, NVLink, 100 Gbit/s InfiniBand",
    P3DN,
    gpus_per_host=(8, DLPERF_HOSTS),
    inter_gbps=(100.0, f"one InfiniBand EDR adapter a host ({DLPERF_HOSTS})"),
    network_efficiency=_NCCL_EFFICIENCY,
    fusion_mb=(64.0, _OLD_HOROVOD),
    cycle_ms=(5.0, _OLD_HOROVOD),
)

BYTEPS = _cluster(
    "byteps",
    "BytePS's authors: 8 V100 32 GB, NVLink, 100 Gbit/s RDMA",
    P3DN,
    gpus_per_host=(8, BYTEPS_README),
    intra_gbps=(CUBE_MESH, _MESH_SOURCE + "; assumed for these hosts"),
    inter_gbps=(100.0, BYTEPS_README),
    network_efficiency=_NCCL_EFFICIENCY,
    fusion_mb=(64.0, f"the default before Horovod 0.21 ({HOROVOD_0_21})"),
    cycle_ms=(1.0, "https://github.com/ymjiang/gluon-nlp/blob/bert-byteps/scripts/bert/hvd.sh"),
    partition_bytes=(4_096_000, f"BytePS's default ({BYTEPS_ENVIRONMENT})"),
)

UNIVERSITY = _cluster(
    "university",
    "a university's: 4 GPUs on PCIe, 10 Gbit/s Ethernet",
    P3DN,
    gpus_per_host=(4, HETSEQ),
    intra_gbps=(
        {4: 8 * 12.0},
        f"PCIe 3.0 x16 as NCCL reckons with it ({NCCL_TOPOLOGY}: PCI_BW); assumed to be PCIe",
    ),
    inter_gbps=(10.0, "assumed: the source names no speed"),
    network_efficiency=(0.9, "assumed: TCP with large messages"),
    intra_latency_us=(5.7, _LATENCY_SOURCE),
    inter_latency_us=(50.0, "assumed: TCP through the kernel"),
    memory_gbytes_s=(480.0, "assumed: a GPU of 2017 with GDDR5X"),
    fusion_mb=(
        25.0,
        "PyTorch's default bucket (https://pytorch.org/docs/stable/generated/"
        "torch.nn.parallel.DistributedDataParallel.html)",
    ),
    cycle_ms=(0.0, "PyTorch starts a bucket as soon as it is full"),
)

CLUSTERS = {cluster.name: cluster for cluster in (P3DN, DLPERF, BYTEPS, UNIVERSITY)}
