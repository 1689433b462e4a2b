"""Published measurements of training on several GPUs, and how far the model is off at each point.

Every case has one number that the compute time of a pass is taken from, its first point or Case.single; no
other parameter comes from the measurements, all others are those of comparison.projection.clusters. "assumed"
marks what no source states. Each point is predicted twice: with gradients travelling during the backward
pass, as the model simulates it, and with all of them after it. These are the best and the worst that a queue
can do; what else software costs is in neither.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from typing import Any, Mapping, NamedTuple, Sequence

from bert.configuration import named_config
from comparison.projection.clusters import (
    BYTEPS,
    BYTEPS_README,
    DLPERF,
    HETSEQ,
    NVLINK_GBPS,
    P3DN,
    UNIVERSITY,
    Cluster,
)
from comparison.projection.model import SEPARATE, BytePS, FlatRing, HierarchicalRing, Strategy, project
from comparison.projection.workload import (
    ELEMENT_BYTES,
    Part,
    Workload,
    bert_parts,
    step_flops,
    update_seconds,
)

DLPERF_README = "https://github.com/Oneflow-Inc/DLPerf/blob/master/MxNet/BERT/README.md"
NVIDIA_BERT = (
    "https://github.com/microsoft/onnxruntime/blob/d7adc011a0a07e3f0e453a08d1b653e673b9568f/orttraining/"
    "pytorch_frontend_examples/nvidia-bert/README.md#training-performance-nvidia-dgx-1-8x-v100-32g"
)
BYTEPS_SCRIPTS = "https://github.com/ymjiang/gluon-nlp/blob/bert-byteps/scripts/bert/hvd.sh"

THROUGHPUT, STEP, DAYS, EFFICIENCY, MINUTES = "sequences/s", "s/step", "days", "efficiency", "minutes"
BASE, LARGE = "bert_12_768_12", "bert_24_1024_16"


class SingleGpu(NamedTuple):
    """A measured throughput of one GPU without communication, in sequences of 128 tokens a second."""

    model: str
    dtype: str
    sequences: int
    sequences_per_s: float
    source: str


@dataclass(frozen=True)
class Case:
    """A series of measurements at growing numbers of GPUs.

    Attributes:
        key, title: for tables, plots and tests.
        unit: of `points`: THROUGHPUT, STEP, DAYS, EFFICIENCY or MINUTES.
        points: GPUs -> what was published, in the order of their numbers.
        sequences, length: of one pass on one GPU. accumulate: passes of a step.
        network: the parts of one that is no BERT.
        single: where the compute time of a pass comes from, if from another source, and the model; without it
            they are the first point and BERT-base.
    """

    key: str
    title: str
    source: str
    cluster: Cluster
    strategy: Strategy
    sequences: float
    unit: str
    points: Mapping[int, float]
    dtype: str = "float16"
    accumulate: int = 1
    length: int = 128
    network: tuple[Part, ...] = ()
    single: SingleGpu | None = None
    assumed: str = ""

    @property
    def calibrated_on(self) -> int:
        """The number of GPUs whose point gives the compute time; 0 if `single` does."""
        return 0 if self.single else min(self.points)

    @property
    def parts(self) -> tuple[Part, ...]:
        bert = named_config(self.single.model if self.single else BASE)
        return self.network or bert_parts(bert, length=self.length)


def _dlperf(dtype: str, sequences: int, *speeds: float) -> Case:
    """A table of DLPerf's: 1, 2, 4, 8, 16 and 32 GPUs."""
    return Case(
        key=f"dlperf {dtype} {sequences}",
        title=f"BERT-base, MXNet, Horovod, {dtype}, {sequences} sequences a GPU",
        source=DLPERF_README,
        cluster=DLPERF,
        strategy=FlatRing(),
        dtype=dtype,
        sequences=sequences,
        unit=THROUGHPUT,
        points=dict(zip((1, 2, 4, 8, 16, 32), speeds)),
        assumed="gradients travel in the dtype of the model (GluonNLP casts it to float16)",
    )


# NVIDIA's PyTorch code on a DGX-1: the same GPU as p3dn's, batch size and length as BytePS's authors had.
# Their own speed on one GPU is in no text; MXNet's may differ.
LARGE_FLOAT16 = SingleGpu(LARGE, "float16", 64, 171.52, NVIDIA_BERT)
LARGE_FLOAT32 = SingleGpu(LARGE, "float32", 32, 40.32, NVIDIA_BERT)
BASE_FLOAT16 = SingleGpu(BASE, "float16", 128, 544.31, DLPERF_README)
SINGLE_GPUS: Mapping[str, Mapping[str, SingleGpu]] = {  # cluster -> dtype
    "p3dn": {"float16": LARGE_FLOAT16, "float32": LARGE_FLOAT32},
    "byteps": {"float16": LARGE_FLOAT16, "float32": LARGE_FLOAT32},
    "dlperf": {
        "float16": BASE_FLOAT16,
        "float32": SingleGpu(BASE, "float32", 64, 156.76, DLPERF_README),
    },
    # 128 sequences on four GPUs times 4 passes in 2.60 s.
    "university": {"float32": SingleGpu(BASE, "float32", 32, 4 * 32 / 2.60, HETSEQ)},
}

_CLAIM = "no servers' number or place is given: as many as worker hosts, on machines of their own; length 128"


def _claim(name: str, strategy: Strategy, efficiency: float, assumed: str) -> Case:
    return Case(
        key=f"claim {strategy.key}",
        title=f"BERT-large, MXNet, {name}, float16, 64 sequences a GPU",
        source=BYTEPS_README,
        cluster=BYTEPS,
        strategy=strategy,
        sequences=64,
        unit=EFFICIENCY,
        points={256: efficiency},
        single=LARGE_FLOAT16,
        assumed=assumed,
    )


# Steps of five epochs. Its steps and days are of the same four runs.
UNIVERSITY_RUNS = {4: 267_139, 8: 133_570, 16: 66_785, 32: 33_393}


def _university(unit: str, *values: float) -> Case:
    return Case(
        key=f"university {unit}",
        title=f"BERT-base, PyTorch, by its {'days' if unit == DAYS else 'step times'}",
        source=HETSEQ,
        cluster=UNIVERSITY,
        strategy=FlatRing(),
        dtype="float32",
        sequences=32,
        accumulate=4,
        unit=unit,
        points=dict(zip(UNIVERSITY_RUNS, values)),
        assumed="10 Gbit/s; length 128; the 4 passes a step of the commands in its README",
    )


MAIN = (  # what the model is judged by
    _dlperf("float16", 128, 544.31, 1000.15, 1970.59, 3825.21, 7327.5, 14822.31),
    _claim("BytePS", BytePS(None, SEPARATE, even=False), 0.90, _CLAIM),
    _claim(
        "Horovod", HierarchicalRing(), 0.70, f"hierarchical as in their script ({BYTEPS_SCRIPTS}); length 128"
    ),
    _university(STEP, 2.60, 2.69, 2.794, 3.126),
    _university(DAYS, 7.19, 4.19, 2.23, 1.21),
)
CASES = (
    *MAIN,
    _dlperf("float16", 96, 516.54, 925.52, 1837.08, 3579.0, 6684.57, 13376.76),
    _dlperf("float16", 64, 473.76, 811.6, 1623.56, 3107.1, 5723.26, 11269.14),
    _dlperf("float32", 64, 156.76, 295.42, 587.71, 1153.08, 2172.62, 4340.89),
    _dlperf("float32", 48, 153.75, 287.77, 572.64, 1127.41, 2067.72, 4105.29),
    _dlperf("float32", 32, 150.11, 270.28, 538.5, 1058.6, 1845.65, 3671.45),
)

# Looked at when the model was finished; nothing in it comes from them.
MXNET_BENCHMARK = "https://github.com/apeforest/mxnet-benchmark/blob/16236bdb4ebc6587716923c5ac6656b2cac4ac05/Bert/README.md"
GLUON_NLP_665 = "https://github.com/dmlc/gluon-nlp/pull/665"
HOROVOD_542 = "https://github.com/horovod/horovod/pull/542"
NVIDIA_53 = "https://developer.nvidia.com/blog/nvidia-slashes-bert-training-and-inference-times/"
AWS_62 = (
    "https://aws.amazon.com/blogs/machine-learning/"
    "amazon-web-services-achieves-fastest-training-times-for-bert-and-mask-r-cnn/"
)
# Steps, sequences of one on all GPUs together, and their tokens: the LAMB paper's largest batches, in the
# form in which NVIDIA's code has them.
PAPER = ((7038, 65536, 128), (1563, 32768, 512))
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
        sequences=PAPER[0][1] / gpus,
        unit=MINUTES,
        points={gpus: minutes},
        single=LARGE_FLOAT16,
        assumed=f"{assumed}; 7038 steps of 65536 x 128 and 1563 of 32768 x 512 tokens, no accumulation",
    )


FURTHER = (
    Case(
        key="mxnet page",
        title="BERT-large, MXNet, Horovod, two passes a step",
        source=MXNET_BENCHMARK,
        cluster=P3DN,
        strategy=HierarchicalRing(),
        sequences=64,
        unit=THROUGHPUT,
        points={256: 5300e3 / 128},
        accumulate=2,
        single=LARGE_FLOAT16,
        assumed="5300 are thousands of tokens a second; float16; 64 sequences of 128 tokens; of two rows of"
        " stage 1 the one with two passes",
    ),
    Case(
        key="gluon-nlp 665",
        title="BERT-base, MXNet, Horovod, length 512",
        source=GLUON_NLP_665,
        cluster=_OLD,
        strategy=FlatRing(),
        sequences=24,
        unit=EFFICIENCY,
        points={64: 58 / 64},
        length=512,
        single=BASE_FLOAT16,
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


DAY = 86400.0


class Point(NamedTuple):
    """One published number and its prediction, in the case's unit.

    `case`: a Case, or one of comparison.projection.pipeline_report. `at`: the number of GPUs, or the
    placement of a pipeline. `calibrated`: a parameter was taken from this very number. `without_overlap`: the
    prediction with all gradients after the backward pass.
    """

    case: Any
    at: Any
    published: float
    predicted: float
    calibrated: bool
    without_overlap: float = math.nan

    @property
    def name(self) -> str:
        return f"{self.case.key} {self.at}"

    def deviation(self, overlap: bool = True) -> float:
        """Predicted over published, less one."""
        return (self.predicted if overlap else self.without_overlap) / self.published - 1


def validate(cases: Sequence[Case] = CASES) -> list[Point]:
    points = []
    for case in cases:
        work = workload_of(case)
        for gpus, value in case.points.items():
            during, after = (_in_unit(case, gpus, replace(work, overlap=each)) for each in (True, False))
            points.append(Point(case, gpus, value, during, gpus == case.calibrated_on, after))
    return points


def is_held_out(points: Sequence[Point]) -> dict[str, bool]:
    """Of the further predictions by name, by a rule that was written down before any error was known: in the
    order of the SHA-256 of the names the second half. Whoever mends the model looks at the others alone."""
    names = [point.name for point in points if not point.calibrated]
    names.sort(key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    return {name: place >= len(names) / 2 for place, name in enumerate(names)}


def mean_deviation(points: Sequence[Point], overlap: bool = True) -> float:
    """Mean of the absolute deviations, of the points that are predictions."""
    deviations = [abs(point.deviation(overlap)) for point in points if not point.calibrated]
    return sum(deviations) / len(deviations)


class ErrorRange(NamedTuple):
    """The least and the greatest deviation of the predictions of throughput and efficiency, as Point has it:
    predicted over published, less one."""

    least: float
    most: float


def error_range(points: Sequence[Point], overlap: bool = True) -> ErrorRange:
    """Times and days are left out: they are of a network whose speed is assumed."""
    speeds = [each for each in points if not each.calibrated and each.case.unit in (THROUGHPUT, EFFICIENCY)]
    deviations = [each.deviation(overlap) for each in speeds]
    return ErrorRange(min(deviations), max(deviations))


def workload_of(case: Case) -> Workload:
    """Workload of a step of the case, with the compute time from its one calibrated number."""
    parts, memory = case.parts, case.cluster.memory_gbytes_s
    nbytes = ELEMENT_BYTES[case.dtype]
    update_s = update_seconds(parts, memory)
    work = Workload(parts, 0.0, update_s, nbytes, case.sequences, case.length, case.accumulate)
    if case.single is not None:
        seconds = single_compute_seconds(case.single, parts, case.sequences, memory)
        return replace(work, compute_s=seconds)
    gpus, value = case.calibrated_on, case.points[case.calibrated_on]
    wanted = {
        STEP: value,
        DAYS: value * DAY / UNIVERSITY_RUNS.get(gpus, 1),
        THROUGHPUT: gpus * case.sequences * case.accumulate / value,
    }[case.unit]
    low, high = 0.0, wanted
    while high - low > 1e-12 * wanted:  # the step grows with the compute time
        middle = (low + high) / 2
        projection = project(replace(work, compute_s=middle), case.strategy, case.cluster, gpus)
        low, high = (middle, high) if projection.step_s < wanted else (low, middle)
    return replace(work, compute_s=high)


def single_compute_seconds(
    single: SingleGpu, parts: Sequence[Part], sequences: float, memory_gbytes_s: float
) -> float:
    """Compute time of a pass of another model or batch, at the operations a second that `single` sustained.

    The update is taken off the measured step before. That the rate does not depend on the batch is an
    assumption; a small batch keeps a GPU less busy.
    """
    own = bert_parts(named_config(single.model))
    alone_s = single.sequences / single.sequences_per_s - update_seconds(own, memory_gbytes_s)
    rate = step_flops(own, single.sequences) / alone_s
    return step_flops(parts, sequences) / rate


def _in_unit(case: Case, gpus: int, work: Workload) -> float:
    if case.unit == MINUTES:
        seconds = 0.0
        for steps, sequences, length in PAPER:
            own = workload_of(replace(case, sequences=sequences / gpus, length=length))
            found = project(replace(own, overlap=work.overlap), case.strategy, case.cluster, gpus)
            seconds += steps * found.step_s
        return seconds / 60
    found = project(work, case.strategy, case.cluster, gpus)
    return {
        THROUGHPUT: found.sequences_per_s,
        EFFICIENCY: found.efficiency,
        STEP: found.step_s,
        DAYS: found.step_s * UNIVERSITY_RUNS.get(gpus, 0) / DAY,
    }[case.unit]
