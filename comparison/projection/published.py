"""Published measurements of BERT's pretraining on several GPUs, and what their sources leave open.

Every case names one point that the compute time of a pass is taken from; no other parameter comes from the
measurements. "assumed" marks what no source states.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping

from bert.configuration import BertConfig, named_config
from comparison.projection.clusters import BYTEPS, BYTEPS_README, DLPERF, HETSEQ, UNIVERSITY, Cluster
from comparison.projection.strategies import SEPARATE, BytePS, FlatRing, HierarchicalRing, Strategy

DLPERF_README = "https://github.com/Oneflow-Inc/DLPerf/blob/master/MxNet/BERT/README.md"
NVIDIA_BERT = (
    "https://github.com/microsoft/onnxruntime/blob/d7adc011a0a07e3f0e453a08d1b653e673b9568f/orttraining/"
    "pytorch_frontend_examples/nvidia-bert/README.md#training-performance-nvidia-dgx-1-8x-v100-32g"
)
BYTEPS_SCRIPTS = "https://github.com/ymjiang/gluon-nlp/blob/bert-byteps/scripts/bert/hvd.sh"

THROUGHPUT, STEP, DAYS, EFFICIENCY = "sequences/s", "s/step", "days", "efficiency"


@dataclass(frozen=True)
class SingleGpu:
    """A measured throughput of one GPU without communication, in sequences a second."""

    layers: int
    units: int
    dtype: str
    sequences: int
    sequences_per_s: float
    source: str
    length: int = 128
    predictions: int = 20

    @property
    def bert(self) -> BertConfig:
        """The model, with heads of 64 units, as all of these have."""
        return named_config(f"bert_{self.layers}_{self.units}_{self.units // 64}")


@dataclass(frozen=True)
class Case:
    """A series of measurements at growing numbers of GPUs.

    Attributes:
        key, title: for tables, plots and tests.
        unit: of `points`: THROUGHPUT, STEP, DAYS or EFFICIENCY.
        points: GPUs -> what was published, in the order of their numbers.
        sequences: of one pass on one GPU. accumulate: passes of a step.
        single: where the compute time of a pass comes from, if from another source.
        calibrated_on: the number of GPUs whose point gives it; 0 if `single` does.
        steps: GPUs -> steps of the whole training, for DAYS.
        main: whether it is one of the measurements that the model is judged by, or one beside them.
    """

    key: str
    title: str
    source: str
    cluster: Cluster
    strategy: Strategy
    layers: int
    units: int
    dtype: str
    sequences: int
    unit: str
    points: Mapping[int, float]
    accumulate: int = 1
    single: SingleGpu | None = None
    calibrated_on: int = 0
    steps: Mapping[int, int] | None = None
    main: bool = True
    assumed: str = ""

    @property
    def bert(self) -> BertConfig:
        """The model, with heads of 64 units, as all of these have."""
        return named_config(f"bert_{self.layers}_{self.units}_{self.units // 64}")


def _dlperf(dtype: str, sequences: int, *speeds: float) -> Case:
    """A table of DLPerf's: 1, 2, 4, 8, 16 and 32 GPUs."""
    return Case(
        key=f"dlperf {dtype} {sequences}",
        title=f"BERT-base, MXNet, Horovod, {dtype}, {sequences} sequences a GPU",
        source=DLPERF_README,
        cluster=DLPERF,
        strategy=FlatRing(),
        layers=12,
        units=768,
        dtype=dtype,
        sequences=sequences,
        unit=THROUGHPUT,
        points=dict(zip((1, 2, 4, 8, 16, 32), speeds)),
        calibrated_on=1,
        main=(dtype, sequences) == ("float16", 128),
        assumed="gradients travel in the dtype of the model (GluonNLP casts it to float16)",
    )


# NVIDIA's PyTorch code on a DGX-1: the same GPU as p3dn's, batch size and length as BytePS's authors had.
# Their own speed on one GPU is in no text; MXNet's may differ.
LARGE_FLOAT16 = SingleGpu(24, 1024, "float16", 64, 171.52, NVIDIA_BERT)
LARGE_FLOAT32 = SingleGpu(24, 1024, "float32", 32, 40.32, NVIDIA_BERT)
BASE_FLOAT16 = SingleGpu(12, 768, "float16", 128, 544.31, DLPERF_README)
BASE_FLOAT32 = SingleGpu(12, 768, "float32", 64, 156.76, DLPERF_README)
# 128 sequences on four GPUs times 4 passes in 2.60 s.
UNIVERSITY_FLOAT32 = SingleGpu(12, 768, "float32", 32, 4 * 32 / 2.60, HETSEQ)

SINGLE_GPUS: Mapping[str, Mapping[str, SingleGpu]] = {  # cluster -> dtype
    "p3dn": {"float16": LARGE_FLOAT16, "float32": LARGE_FLOAT32},
    "byteps": {"float16": LARGE_FLOAT16, "float32": LARGE_FLOAT32},
    "dlperf": {"float16": BASE_FLOAT16, "float32": BASE_FLOAT32},
    "university": {"float32": UNIVERSITY_FLOAT32},
}

_CLAIM = "no servers' number or place is given: as many as worker hosts, on machines of their own; length 128"


def _claim(name: str, strategy: Strategy, efficiency: float, assumed: str) -> Case:
    return Case(
        key=f"claim {strategy.key}",
        title=f"BERT-large, MXNet, {name}, float16, 64 sequences a GPU",
        source=BYTEPS_README,
        cluster=BYTEPS,
        strategy=strategy,
        layers=24,
        units=1024,
        dtype="float16",
        sequences=64,
        unit=EFFICIENCY,
        points={256: efficiency},
        single=LARGE_FLOAT16,
        assumed=assumed,
    )


def _university(unit: str, *values: float) -> Case:
    """Steps and days are of the same four runs of five epochs, so both have the same numbers of steps."""
    return Case(
        key=f"university {unit}",
        title=f"BERT-base, PyTorch, by its {'days' if unit == DAYS else 'step times'}",
        source=HETSEQ,
        cluster=UNIVERSITY,
        strategy=FlatRing(),
        layers=12,
        units=768,
        dtype="float32",
        sequences=32,
        accumulate=4,
        unit=unit,
        points=dict(zip((4, 8, 16, 32), values)),
        calibrated_on=4,
        steps=dict(zip((4, 8, 16, 32), (267_139, 133_570, 66_785, 33_393))),
        assumed="10 Gbit/s; length 128; the 4 passes a step of the commands in its README",
    )


UNIVERSITY_STEPS = _university(STEP, 2.60, 2.69, 2.794, 3.126)
UNIVERSITY_DAYS = _university(DAYS, 7.19, 4.19, 2.23, 1.21)

CASES = (
    _dlperf("float16", 128, 544.31, 1000.15, 1970.59, 3825.21, 7327.5, 14822.31),
    _claim("BytePS", BytePS(None, SEPARATE), 0.90, _CLAIM),
    _claim(
        "Horovod", HierarchicalRing(), 0.70, f"hierarchical as in their script ({BYTEPS_SCRIPTS}); length 128"
    ),
    UNIVERSITY_STEPS,
    UNIVERSITY_DAYS,
    _dlperf("float16", 96, 516.54, 925.52, 1837.08, 3579.0, 6684.57, 13376.76),
    _dlperf("float16", 64, 473.76, 811.6, 1623.56, 3107.1, 5723.26, 11269.14),
    _dlperf("float32", 64, 156.76, 295.42, 587.71, 1153.08, 2172.62, 4340.89),
    _dlperf("float32", 48, 153.75, 287.77, 572.64, 1127.41, 2067.72, 4105.29),
    _dlperf("float32", 32, 150.11, 270.28, 538.5, 1058.6, 1845.65, 3671.45),
)
