"""Further published measurements, looked at when the model was finished; nothing in it comes from them.

Half of them are shown and half held out, by a rule that was written down before any error was known: in the
order of the SHA-256 of a point's name the second half is held out. Whoever mends the model looks at the shown
half alone. The band of projection.png and the picture of the validation are of the first 38 points.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Sequence

from base.tables import Row, Table
from comparison.projection.clusters import NVLINK_GBPS, P3DN
from comparison.projection.model import FlatRing, HierarchicalRing, Strategy
from comparison.projection.validation import (
    BASE_FLOAT16,
    EFFICIENCY,
    LARGE,
    LARGE_FLOAT16,
    MINUTES,
    THROUGHPUT,
    Case,
    Phase,
    Point,
    mean_deviation,
    points_of,
    points_table,
)
from comparison.projection.workload import Part

MXNET_BENCHMARK = "https://github.com/apeforest/mxnet-benchmark/blob/16236bdb4ebc6587716923c5ac6656b2cac4ac05/Bert/README.md"
GLUON_NLP_665 = "https://github.com/dmlc/gluon-nlp/pull/665"
HOROVOD_542 = "https://github.com/horovod/horovod/pull/542"
NVIDIA_53 = "https://developer.nvidia.com/blog/nvidia-slashes-bert-training-and-inference-times/"
AWS_62 = (
    "https://aws.amazon.com/blogs/machine-learning/"
    "amazon-web-services-achieves-fastest-training-times-for-bert-and-mask-r-cnn/"
)
# The LAMB paper's largest batches, in the form in which NVIDIA's code has them.
PAPER = (Phase(7038, 65536, 128), Phase(1563, 32768, 512))
NEAR = 0.15
HALVES = ("shown", "held out")

_OLD = replace(P3DN, fusion_mb=64.0, cycle_ms=5.0)  # Horovod before 0.21
_P3 = replace(
    _OLD,
    title="p3.16xlarge: 8 V100 16 GB, NVLink, 25 Gbit/s, TCP",
    inter_gbps=25.0,
    network_efficiency=0.9,  # this and the latency as for the university's TCP
    inter_latency_us=50.0,
)
_SUPERPOD = replace(
    P3DN,
    title="DGX-2H: 16 V100 32 GB, NVSwitch, 8 x 100 Gbit/s InfiniBand",
    gpus_per_host=16,
    intra_gbps={16: 6 * NVLINK_GBPS},
    inter_gbps=800.0,
    network_efficiency=0.96,
)


def resnet50_parts() -> tuple[Part, ...]:
    """ResNet-50 for 1,000 classes and images of 224 x 224 (He et al., 2016), in forward order: the weights of
    a convolution, then scale and shift of its normalization."""
    parts = [Part("stem", (3 * 49 * 64, 64, 64), 2 * 3 * 49 * 64 * 112**2)]
    channels = 64
    for blocks, width, side in ((3, 64, 56), (4, 128, 28), (6, 256, 14), (3, 512, 7)):
        for block in range(blocks):
            layers = [(channels, width, 1), (width, width, 9), (width, 4 * width, 1)]
            layers += [(channels, 4 * width, 1)] if block == 0 else []
            sizes = [(before * after * kernel, after) for before, after, kernel in layers]
            arrays = tuple(each for size, after in sizes for each in (size, after, after))
            parts.append(
                Part(f"{width}, block {block}", arrays, 2 * side**2 * sum(each for each, _ in sizes))
            )
            channels = 4 * width
    return (*parts, Part("classifier", (1000 * channels, 1000), 2 * 1000 * channels))


def _resnet(name: str, strategy: Strategy, *speeds: float) -> Case:
    """A column of Horovod's table: 8 to 256 GPUs."""
    return Case(
        key=f"horovod 542 {strategy.key}",
        title=f"ResNet-50, MXNet, Horovod, {name}",
        source=HOROVOD_542,
        cluster=_P3,
        strategy=strategy,
        network=resnet50_parts(),
        length=1,
        dtype="float32",
        sequences=128,
        unit=THROUGHPUT,
        points=dict(zip((8, 16, 32, 64, 128, 256), speeds)),
        calibrated_on=8,
        main=False,
        assumed="GPU, hosts, network and batch: p3.16xlarge over TCP, 128 images a GPU",
    )


def _training(key: str, title: str, source: str, gpus: int, minutes: float, assumed: str) -> Case:
    """A whole training of BERT-large. The speed of a GPU is a DGX-1's."""
    return Case(
        key=key,
        title=title,
        source=source,
        cluster=_SUPERPOD if key == "nvidia" else P3DN,
        strategy=HierarchicalRing(),
        model=LARGE,
        dtype="float16",
        sequences=PAPER[0].sequences / gpus,
        unit=MINUTES,
        points={gpus: minutes},
        phases=PAPER,
        single=LARGE_FLOAT16,
        main=False,
        assumed=f"{assumed}; 7038 steps of 65536 x 128 and 1563 of 32768 x 512 tokens, no accumulation",
    )


CASES = (
    Case(
        key="mxnet page",
        title="BERT-large, MXNet, Horovod, two passes a step",
        source=MXNET_BENCHMARK,
        cluster=P3DN,
        strategy=HierarchicalRing(),
        model=LARGE,
        dtype="float16",
        sequences=64,
        unit=THROUGHPUT,
        points={256: 5300e3 / 128},
        accumulate=2,
        single=LARGE_FLOAT16,
        main=False,
        assumed="5300 are thousands of tokens a second; float16; 64 sequences of 128 tokens; of two rows of"
        " stage 1 the one with two passes",
    ),
    Case(
        key="gluon-nlp 665",
        title="BERT-base, MXNet, Horovod, length 512",
        source=GLUON_NLP_665,
        cluster=_OLD,
        strategy=FlatRing(),
        dtype="float16",
        sequences=24,
        unit=EFFICIENCY,
        points={64: 58 / 64},
        length=512,
        single=BASE_FLOAT16,
        main=False,
        assumed="the script's model, BERT-base; float16; its batch of 24 is a GPU's; a flat ring",
    ),
    _resnet("flat", FlatRing(), 3072, 6027, 12030, 22346, 40938, 64998),
    _resnet("hierarchical", HierarchicalRing(), 3078, 5859, 11675, 23166, 45972, 89858),
    _training(
        "nvidia", "BERT-large, PyTorch, DGX-2H, a whole training", NVIDIA_53, 1472, 53,
        "8 of its 10 InfiniBand adapters carry gradients",
    ),
    _training("aws", "BERT-large, TensorFlow, p3dn, a whole training", AWS_62, 2048, 62, "the model"),
)  # fmt: skip


def is_held_out(points: Sequence[Point[Case]]) -> dict[str, bool]:
    """By name, of the predictions among the points."""
    names = [name_of(point) for point in points if not point.calibrated]
    names.sort(key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    return {name: place >= len(names) / 2 for place, name in enumerate(names)}


def name_of(point: Point[Case]) -> str:
    return f"{point.case.key} {point.at}"


def further() -> list[Point[Case]]:
    return [point for case in CASES for point in points_of(case)]


def tables(first: Sequence[Point[Case]], points: Sequence[Point[Case]]) -> list[Table]:
    """The further points, and the errors of the first ones (all of `validate`), of the shown and of the held
    out ones. `points`: all of `further`."""
    held_out = is_held_out(points)
    new = [point for point in points if not point.calibrated]
    halves = [HALVES[held_out[name_of(point)]] for point in new]
    errors = []
    for title, own in (
        ("the first ones", [point for point in first if not point.calibrated]),
        *((f"further, {half}", [each for each, its in zip(new, halves) if its == half]) for half in HALVES),
    ):
        cells = [title, str(len(own))]
        for overlap in (True, False):
            near = sum(abs(point.deviation(overlap)) <= NEAR for point in own)
            cells += [f"{100 * mean_deviation(own, overlap):.1f}%", str(near)]
        errors.append(Row(cells))
    within = f"within {100 * NEAR:.0f}%"
    error_head = ("measurements", "predictions", "mean off", within, "without overlap", within)
    return [
        points_table("Validation: further measurements", new, halves),
        Table("Validation: all errors", error_head, errors),
    ]
