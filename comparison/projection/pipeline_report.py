"""Pipelines: published step times on several GPUs, the model's errors on them, and the files of a projection:
pipelines.md, .json and .png; the text for the terminal.

The source gives six: BERT of three sizes on as many hosts as GPUs in each, in both placements. It names the
GPU, the batch of all replicas and no network. So two numbers are calibrated, on the smallest model: the rate
of a GPU on its inter_first time, the network on its intra_first time. The other four are predictions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Callable, Mapping, NamedTuple, Sequence

from base.drawing import COLOURS, new_figure
from base.quantities import digits
from base.tables import Row, Table
from bert.configuration import named_config
from comparison.canvas import legend_below, plain
from comparison.projection.clusters import UNIVERSITY
from comparison.projection.model import Plan
from comparison.projection.pipelines import Pipeline, PipelineProjection, project_pipeline, split_by
from comparison.projection.validation import Point, mean_deviation
from comparison.projection.workload import Workload, bert_parts, step_flops, update_seconds
from comparison.report import Part, Report, column_table, milliseconds, size
from training.pipeline.placement import INTER_FIRST, INTRA_FIRST, PLACEMENTS
from training.pipeline.schedule import bubble

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOURCE = "https://github.com/muzhailong/pddl#readme"
SCRIPT = "https://github.com/muzhailong/pddl/blob/master/bert/run_distribute.sh"
GPU = "https://www.microway.com/hpc-tech-tips/nvidia-tesla-m40-24gb-gpu-accelerator-maxwell-gm200-close"
BATCH, LENGTH = 24, 128  # of all replicas together; tokens
ADAM_ACCESSES = 7  # gradient, weight and two moments are read, the last three written

M40 = replace(
    UNIVERSITY,
    name="m40",
    title="Tesla M40 24 GB on PCIe, a network of unknown speed",
    intra_gbps={16: 8 * 12.0},  # PCIe 3.0 x16 as NCCL reckons with it; assumed to be shared by no other GPU
    network_efficiency=1.0,  # its speed is calibrated: the source names none
    memory_gbytes_s=288.0,  # see GPU
)


class PipelineCase(NamedTuple):
    """A model on as many hosts as stages and GPUs a host, and its published seconds a step by placement."""

    layers: int
    heads: int
    hosts: int
    published: tuple[float, float]  # intra_first, inter_first


CASES = (
    PipelineCase(24, 16, 2, (1.20, 0.80)),
    PipelineCase(24, 32, 3, (5.25, 2.84)),
    PipelineCase(48, 32, 4, (10.96, 5.23)),
)


class Reading(NamedTuple):
    """An assumption about the batch, and whether a stage's gradients travel while others still compute.

    rows: sequences of a replica, None: BATCH divided by the replicas.
    """

    title: str
    rows: int | None
    overlap: bool


READINGS = (
    Reading("24 sequences in all, as the source says", None, False),
    Reading("24 in all, gradients travel when their stage has ended", None, True),
    Reading("12 a replica, as the smallest case has", 12, False),
)


class Calibration(NamedTuple):
    """Operations a second of a GPU, and Gbit/s of a host's network."""

    flops_s: float
    inter_gbps: float


def calibrate(reading: Reading) -> Calibration:
    """Both parameters from the two times of the smallest model, in turns until neither changes."""
    intra, inter = CASES[0].published
    found = Calibration(4e12, 25.0)
    for _ in range(50):
        before = found
        for name, placement, wanted, low, high in (
            ("flops_s", INTER_FIRST, inter, 1e10, 1e15),
            ("inter_gbps", INTRA_FIRST, intra, 1e-2, 1e5),
        ):
            while high / low > 1 + 1e-12:  # in whose growth the time falls
                middle = (low * high) ** 0.5
                step_s = seconds(CASES[0], placement, reading, found._replace(**{name: middle}))
                low, high = (middle, high) if step_s > wanted else (low, middle)
            found = found._replace(**{name: high})
        if sum(abs(new / old - 1) for new, old in zip(found, before)) < 1e-9:
            return before
    return found


def seconds(case: PipelineCase, placement: str, reading: Reading, calibration: Calibration) -> float:
    """The predicted step.

    The source's decoder is a weight of its own and multiplies every position, masked or not; its layers are
    divided by numbers of parameters; Adam updates them, in float32.
    """
    bert = named_config(f"bert_{case.layers}_{64 * case.heads}_{case.heads}")  # 64 units a head
    parts = bert_parts(bert, length=LENGTH, predictions=LENGTH)
    rows = reading.rows or BATCH / case.hosts
    cluster = replace(M40, gpus_per_host=case.hosts, inter_gbps=calibration.inter_gbps)
    work = Workload(
        parts=parts,
        compute_s=step_flops(parts, rows) / calibration.flops_s,
        optimizer_s=update_seconds(parts, cluster.memory_gbytes_s),
        gradient_bytes=4,
        sequences=rows,
        length=LENGTH,
        overlap=reading.overlap,
    )
    split = split_by(parts, case.hosts, by_flops=False)
    pipeline = Pipeline(case.hosts, placement, split=split, tied=False, update_accesses=ADAM_ACCESSES)
    return project_pipeline(work, pipeline, cluster, case.hosts**2).step_s


class Validation(NamedTuple):
    """All six under a reading, with the parameters that the first two give."""

    reading: Reading
    calibration: Calibration
    points: Sequence[Point]


def validate_pipelines() -> list[Validation]:
    found = []
    for reading in READINGS:
        calibration = calibrate(reading)
        points = [
            Point(case, place, published, seconds(case, place, reading, calibration), case is CASES[0])
            for case in CASES
            for place, published in zip(PLACEMENTS, case.published)
        ]
        found.append(Validation(reading, calibration, points))
    return found


def pipeline_tables(validations: Sequence[Validation]) -> list[Table]:
    """The six and their predictions under each reading, and what the readings rest on."""
    rows = []
    for same in zip(*(each.points for each in validations)):
        case, placement, published, _, calibrated, _ = same[0]
        cells = [f"{case.layers} layers, {case.heads} heads", f"{case.hosts} x {case.hosts}", placement]
        cells.append(f"{published:.2f} s")
        for point in () if calibrated else same:
            cells += [f"{point.predicted:.2f} s", f"{100 * point.deviation():+.0f}%"]
        rows.append(Row(cells, "rate and network taken from these two" if calibrated else ""))
    head = ["model", "hosts x GPUs", "placement", "published"]
    calibrations = []
    for letter, (reading, (rate, speed), points) in zip("ABC", validations):
        head += [letter, "off by"]
        cells = [letter, reading.title, f"{rate / 1e12:.2f} TFLOP/s", f"{speed:.1f} Gbit/s"]
        calibrations.append(Row([*cells, f"{100 * mean_deviation(points):.0f}%"]))
    first = Table("Pipelines: the published six", head, rows, names=3)
    names = ("", "reading", "a GPU's rate", "a host's network", "mean off")
    return [first, Table("Pipelines: what the predictions rest on", names, calibrations, names=2)]


NAME, PLOT = "pipelines", "pipelines.png"
SCHEMA = 1  # of pipelines.json
COLUMNS: Mapping[str, Callable[[PipelineProjection], str]] = {
    "GPUs": lambda each: f"{each.gpus}",
    "hosts": lambda each: f"{each.hosts}",
    "s/step": lambda each: digits(each.step_s),
    "computing ms": lambda each: milliseconds(each.compute_s),
    "waiting ms": lambda each: milliseconds(each.waiting_s),
    "gradients ms": lambda each: milliseconds(each.gradients_s),
    "update ms": lambda each: milliseconds(each.optimizer_s),
    "sequences/s": lambda each: digits(each.sequences_per_s),
    "efficiency": lambda each: f"{100 * each.efficiency:.1f}%",
    "sent by a host": lambda each: size(each.sent_bytes) if each.sent_bytes else "0",
}

LIMITS = f"""\
- The source ({SOURCE}) names the GPU ({GPU}) and the sequences of a step, 24, and neither the network nor a
  time on one GPU: the rate of a GPU and the speed of the network are taken from the two times of the smallest
  model, so that four predictions remain. PCIe is taken to reach 12 GB/s for each GPU.
- Its script ({SCRIPT}) adds nothing up (one micro-batch a step): the stages compute one after the other, and
  no activation travels while its replica computes. The decoder multiplies all positions and has a weight of
  its own, layers are divided by parameters, and Adam updates them, in float32.
- With 24 sequences in all (A, B) every prediction is too short, and the more so, the more replicas share
  them. With 12 sequences a replica on all three clusters (C) all four are within 10%. So either the batch
  grew with the cluster, or smaller shares of a batch kept these GPUs less busy; the source decides neither.
- The number of hosts, GPUs and layers grows from row to row together; no single cause is measured.
"""


def report_of(plan: Plan, pipelines: Sequence[Pipeline]) -> Report:
    """pipelines.md, pipelines.json, the picture, and what a terminal shows.

    Args:
        plan: its strategies are not looked at.
        pipelines: of one number of stages and one schedule, one for each placement.
    """
    work, first = plan.workload, pipelines[0]
    found = [
        [project_pipeline(work, pipeline, plan.cluster, gpus) for gpus in plan.gpus] for pipeline in pipelines
    ]
    own = [
        column_table(
            f"{pipeline.stages} stages, {pipeline.placement}, {pipeline.schedule}", COLUMNS, projections
        )
        for pipeline, projections in zip(pipelines, found)
    ]
    validations = validate_pipelines()
    validated = pipeline_tables(validations)
    facts = (
        f"{plan.model}, {work.elements / 1e6:.1f} M parameters in {first.stages} stages of "
        f"{split_by(work.parts, first.stages, by_flops=True)} layers.\n"
        f"Batch: {work.accumulate} micro-batches of {work.sequences:g} sequences of {work.length:.4g} tokens "
        f"a replica; the bubble is {100 * bubble(first.stages, work.accumulate):.1f}%. "
        f"Precision: {plan.precision}.\n"
        f"A pass of the whole model takes {digits(work.compute_s)} s on one GPU. Compute time from: "
        f"{work.source}.\nCluster: {plan.cluster.title}."
    )
    document: list[Part] = [
        f"# Pipelines: {plan.model} on {plan.cluster.title}",
        facts,
        *own,
        "## Validation",
        *validated,
        f"![published and predicted]({PLOT})",
        LIMITS,
    ]
    content = {
        "schema": SCHEMA,
        "model": plan.model,
        "cluster": {**vars(plan.cluster), "replaced": list(plan.given)},
        "micro_batches": work.accumulate,
        "sequences": work.sequences,
        "length": work.length,
        "compute_s": work.compute_s,
        "projections": [each for projections in found for each in projections],
        "validation": [
            {
                "reading": reading.title,
                **calibration._asdict(),
                "source": SOURCE,
                "layers": point.case.layers,
                "heads": point.case.heads,
                "hosts": point.case.hosts,
                "gpus": point.case.hosts**2,
                "placement": point.at,
                "published": point.published,
                "predicted": point.predicted,
                "calibrated": point.calibrated,
            }
            for reading, calibration, points in validations
            for point in points
        ],
    }
    return Report(NAME, document, content, {PLOT: validation_figure(validations)}, [facts, *own, *validated])


def validation_figure(validations: Sequence[Validation]) -> Figure:
    """Published seconds a step and the predictions under each reading, a panel for each placement."""
    figure = new_figure((11, 4.6))
    drawn = figure.subplots(1, 2, sharey=True)
    width = 0.8 / (len(validations) + 1)
    for axes, placement in zip(drawn, PLACEMENTS):
        bars = {"published": [each.published for each in validations[0].points if each.at == placement]}
        for reading, _, points in validations:
            bars[reading.title] = [point.predicted for point in points if point.at == placement]
        for index, (title, values) in enumerate(bars.items()):
            places = [place + (index - len(validations) / 2) * width for place in range(len(values))]
            colour = "#444444" if not index else COLOURS[(0, 5, 2)[index - 1]]
            axes.bar(places, values, 0.92 * width, color=colour, label=title)
        names = [
            f"{case.layers} layers, {case.heads} heads\n{case.hosts} x {case.hosts} GPUs" for case in CASES
        ]
        axes.set_xticks(range(len(CASES)), names)
        axes.set_title(placement, fontsize=10)
        plain(axes)
    drawn[0].set_ylabel("seconds a step")
    figure.suptitle(
        "Tesla M40: published and predicted; the first model's two times are calibrated", fontsize=11
    )
    legend_below(figure, drawn[:1], 2)
    return figure
