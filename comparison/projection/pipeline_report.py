"""Files of a projection of pipelines: pipelines.md, .json and .png; the text for the terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Sequence

from base.files import replacing
from base.quantities import digits
from base.tables import Row, Table, markdown, terminal
from comparison.projection.model import Plan
from comparison.projection.pipelines import Pipeline, PipelineProjection, project_pipeline, split_by
from comparison.projection.published_pipelines import (
    CASES,
    GPU,
    READINGS,
    SCRIPT,
    SOURCE,
    PipelinePoint,
    calibrate,
    pipeline_tables,
    validate_pipelines,
)
from comparison.reporting.canvas import COLOURS, new_figure, plain, save
from comparison.reporting.wording import size
from training.pipeline.shares import bubble

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKDOWN, JSON, PLOT = "pipelines.md", "pipelines.json", "pipelines.png"
SCHEMA = 1  # of pipelines.json
HEAD = (
    *("GPUs", "hosts", "s/step", "computing ms", "waiting ms", "gradients ms", "update ms"),
    *("sequences/s", "efficiency", "sent by a host"),
)

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


def write_pipelines(directory: Path, plan: Plan, pipelines: Sequence[Pipeline]) -> str:
    """Writes the three files; returns the text for the terminal.

    Args:
        plan: its strategies are not looked at.
        pipelines: of one number of stages and one schedule, one for each placement.

    Raises:
        OSError: a file cannot be written.
    """
    found = {
        pipeline: [project_pipeline(plan.workload, pipeline, plan.cluster, gpus) for gpus in plan.gpus]
        for pipeline in pipelines
    }
    points = {reading.title: validate_pipelines(reading) for reading in READINGS}
    tables = [_table(pipeline, own) for pipeline, own in found.items()]
    facts, validation = _facts(plan, pipelines[0]), pipeline_tables()
    text = [f"# Pipelines: {plan.model} on {plan.cluster.title}", facts, *map(markdown, tables)]
    text += ["## Validation", *map(markdown, validation), f"![published and predicted]({PLOT})", LIMITS]
    _write(directory / MARKDOWN, ("\n\n".join(part.strip("\n") for part in text) + "\n").encode())
    content = _content(plan, found, points)
    _write(directory / JSON, (json.dumps(content, indent=1) + "\n").encode())
    save(validation_figure(points), directory / PLOT)
    names = ", ".join(str(directory / name) for name in (MARKDOWN, JSON, PLOT))
    shown = [facts, *map(terminal, [*tables, *validation]), f"written: {names}"]
    return "\n\n".join(shown)


def validation_figure(points: dict[str, list[PipelinePoint]]) -> Figure:
    """Published seconds a step and the predictions under each reading, a panel for each placement."""
    figure = new_figure((11, 4.6))
    placements = list(dict.fromkeys(point.placement for point in next(iter(points.values()))))
    drawn = figure.subplots(1, len(placements), sharey=True)
    width = 0.8 / (len(points) + 1)
    for axes, placement in zip(drawn, placements):
        bars = {"published": [case.published[placements.index(placement)] for case in CASES]}
        for title, own in points.items():
            bars[title] = [point.predicted for point in own if point.placement == placement]
        for index, (title, values) in enumerate(bars.items()):
            places = [place + (index - len(points) / 2) * width for place in range(len(values))]
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
    handles, labels = drawn[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    return figure


def _table(pipeline: Pipeline, projections: Sequence[PipelineProjection]) -> Table:
    rows = []
    for each in projections:
        times = (each.compute_s, each.waiting_s, each.gradients_s, each.optimizer_s)
        rows.append(
            Row(
                [
                    f"{each.gpus}",
                    f"{each.hosts}",
                    digits(each.step_s),
                    *("0" if value < 1e-9 else digits(1e3 * value) for value in times),
                    digits(each.sequences_per_s),
                    f"{100 * each.efficiency:.1f}%",
                    size(each.sent_bytes) if each.sent_bytes else "0",
                ]
            )
        )
    return Table(f"{pipeline.stages} stages, {pipeline.placement}, {pipeline.schedule}", HEAD, rows)


def _facts(plan: Plan, pipeline: Pipeline) -> str:
    work = plan.workload
    split = split_by(work.parts, pipeline.stages, by_flops=True)
    lost = bubble(pipeline.stages, work.accumulate)
    return (
        f"{plan.model}, {work.elements / 1e6:.1f} M parameters in {pipeline.stages} stages of {split} "
        f"layers.\nBatch: {work.accumulate} micro-batches of {work.sequences:g} sequences of "
        f"{work.length:.4g} tokens a replica; the bubble is {100 * lost:.1f}%. Precision: {plan.precision}.\n"
        f"A pass of the whole model takes {digits(work.compute_s)} s on one GPU. Compute time from: "
        f"{plan.compute_source}.\nCluster: {plan.cluster.title}."
    )


def _content(
    plan: Plan,
    found: dict[Pipeline, list[PipelineProjection]],
    points: dict[str, list[PipelinePoint]],
) -> dict[str, Any]:
    work = plan.workload
    return {
        "schema": SCHEMA,
        "model": plan.model,
        "cluster": {**vars(plan.cluster), "replaced": list(plan.given)},
        "micro_batches": work.accumulate,
        "sequences": work.sequences,
        "length": work.length,
        "compute_s": work.compute_s,
        "projections": [each._asdict() for own in found.values() for each in own],
        "validation": [
            {
                "reading": reading.title,
                **calibrate(reading)._asdict(),
                "source": SOURCE,
                "layers": point.case.layers,
                "heads": point.case.heads,
                "hosts": point.case.hosts,
                "gpus": point.case.hosts**2,
                "placement": point.placement,
                "published": point.published,
                "predicted": point.predicted,
                "calibrated": point.calibrated,
            }
            for reading in READINGS
            for point in points[reading.title]
        ],
    }


def _write(path: Path, content: bytes) -> None:
    with replacing(str(path)) as handle:
        handle.write(content)
