"""Files of a projection: projection.md, projection.json, two plots, the text for the terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Sequence

from base.files import replacing
from base.quantities import digits
from base.tables import Row, Table, markdown, terminal
from comparison.projection import plot as projection_plot
from comparison.projection.model import Plan, Projection
from comparison.projection.published import CASES
from comparison.projection.validation import Point, error_range, off, tables, validate
from comparison.reporting.wording import size

MARKDOWN, JSON = "projection.md", "projection.json"
SCHEMA = 2  # of projection.json; it grows where the meaning of a field changes
HEAD = (
    "GPUs",
    "hosts",
    "s/step",
    "computing ms",
    "communicating ms",
    "of it exposed ms",
    "waiting ms",
    "sequences/s",
    "tokens/s",
    "efficiency",
    "without overlap",
    "sent by a host",
)

LIMITS = """\
- All GPUs are equally fast in every step: no stragglers, no noise, no waiting for data. Real runs of many
  GPUs wait for the slowest.
- A process that takes part in a run of several pays something even inside one host: DLPerf's steps grow by 28
  to 36 ms from one GPU to eight, whatever the bytes or the batch. The model knows of that only what the bytes
  take, 4 to 6 ms.
- Rings only. NCCL changes to trees where they are faster, on many hosts above all: beyond some 256 GPUs the
  latency of a flat ring here is more than a run would have.
- The network between the hosts is never shared or oversubscribed, and a collective reaches the same share of
  it at every size and number of hosts.
- PCIe between GPU and network, and the servers' CPUs that add up, keep up with the network. Horovod's own
  hierarchical mode sends through the hosts' memory, which is slower than the ring here.
- A gradient is ready when the backward pass leaves its layer; a framework that runs many operators as one
  keeps gradients back for longer.
- The rate of a GPU does not depend on the batch: a projection far from the batch that the rate was measured
  with is too fast for small batches.
"""


def write_projection(directory: Path, plan: Plan, projections: Sequence[Projection]) -> str:
    """Writes the four files; returns the text for the terminal. OSError when a file cannot be written."""
    own = [_table(plan, projections, key) for key in dict.fromkeys(each.strategy for each in projections)]
    points = validate()
    drawn = projection_plot.draw_all(directory, plan, projections, points)
    validation = tables()
    first = _summary(plan, projections, points)
    text = [f"# Projection: {plan.model} on {plan.cluster.title}", first, _facts(plan)]
    text += [markdown(each) for each in own]
    text += [f"![efficiency by the number of GPUs]({projection_plot.PROJECTION})", _caption(plan, points)]
    text += [markdown(_parameters(plan)), "## Validation", _validation_words()]
    text += [markdown(each) for each in validation]
    text += [f"![published and predicted]({projection_plot.VALIDATION})"]
    text += ["## Where it must fail", LIMITS, "## Sources of the measurements", _sources()]
    _write(directory / MARKDOWN, "\n\n".join(part.strip("\n") for part in text) + "\n")
    _write(directory / JSON, json.dumps(_content(plan, projections, points), indent=1) + "\n")
    names = ", ".join(str(directory / name) for name in (MARKDOWN, JSON, *drawn))
    return "\n\n".join([_facts(plan), *(terminal(each) for each in own), first, f"written: {names}"])


def _table(plan: Plan, projections: Sequence[Projection], strategy: str) -> Table:
    own = [each for each in projections if each.strategy == strategy]
    rows = [
        Row(
            [
                f"{each.gpus}",
                f"{each.hosts}",
                digits(each.step_s),
                _milliseconds(each.compute_s + each.optimizer_s),
                _milliseconds(each.communication_s),
                _milliseconds(each.exposed_s),
                _milliseconds(each.waiting_s),
                f"{each.sequences_per_s:,.0f}"
                if each.sequences_per_s >= 100
                else digits(each.sequences_per_s),
                f"{each.tokens_per_s:,.0f}",
                f"{100 * each.efficiency:.1f}%",
                f"{100 * each.without_overlap:.1f}%",
                size(each.sent_bytes) if each.sent_bytes else "0",
            ]
        )
        for each in own
    ]
    return Table(own[0].title[0].upper() + own[0].title[1:], HEAD, rows)


def _summary(plan: Plan, projections: Sequence[Projection], points: Sequence[Point]) -> str:
    errors = error_range(points)
    most = max(each.gpus for each in projections)
    last = sorted((each for each in projections if each.gpus == most), key=lambda each: each.step_s)
    shares = "; ".join(
        f"{100 * each.efficiency:.1f}% with {each.title} ({100 * each.without_overlap:.1f}% without overlap)"
        for each in last
    )
    unit = "GPU" if most == 1 else "GPUs"
    return (
        f"At {most} {unit} the predicted efficiency is {shares}. Against published throughputs the model was"
        f" {100 * errors.least:.0f} to {100 * errors.most:.0f}% too high: see the validation."
    )


def _facts(plan: Plan) -> str:
    work = plan.workload
    overlap = "during the backward pass" if work.overlap else "after the backward pass"
    return (
        f"{plan.model}, {work.elements / 1e6:.1f} M parameters, {size(work.total_bytes)} of gradients that "
        f"travel {overlap}.\nBatch: {plan.batch}. Precision: {plan.precision}.\n"
        f"A pass takes {digits(work.compute_s)} s, the update {_milliseconds(work.optimizer_s)} ms. "
        f"Compute time from: {plan.compute_source}.\n"
        f"Cluster: {plan.cluster.title}."
    )


def _caption(plan: Plan, points: Sequence[Point]) -> str:
    """Of the plot."""
    ranges = []
    for overlap in (True, False) if plan.workload.overlap else (False,):
        errors = error_range(points, overlap)
        when = "during" if overlap else "after"
        ranges.append(f"{off(errors.least)} to {off(errors.most)} with gradients {when} the backward pass")
    return (
        f"{plan.model}, {plan.batch}, {plan.precision}. Grey: where measurements would lie if the model were"
        f" off by as much as in the validation: {'; '.join(ranges)}. The band reaches from the lowest"
        " strategy to the highest."
    )


def _parameters(plan: Plan) -> Table:
    """The cluster's, with where each is from."""
    rows = []
    for field, value in vars(plan.cluster).items():
        if field in ("name", "title", "sources"):
            continue
        shown = (
            f"{value:g}"
            if not isinstance(value, dict)
            else ", ".join(f"{speed:g} with {gpus}" for gpus, speed in value.items())
        )
        source = "command line" if field in plan.given else plan.cluster.sources.get(field, "")
        rows.append(Row([field, shown, source]))
    return Table("Parameters of the cluster", ("parameter", "value", "source"), rows, names=3)


def _validation_words() -> str:
    return (
        "Of each measurement one number is used, the compute time of a pass (marked, or from a single GPU);\n"
        "all other parameters come from the sources of the cluster. Predicted: gradients travel during the\n"
        "backward pass, as simulated. Without overlap: all of them after it."
    )


def _sources() -> str:
    lines = []
    for case in CASES:
        single = f"; compute time: {case.single.source}" if case.single else ""
        assumed = f"; assumed: {case.assumed}" if case.assumed else ""
        lines.append(f"- {case.title}: {case.source}{single}; cluster {case.cluster.title}{assumed}")
    return "\n".join(lines)


def _content(plan: Plan, projections: Sequence[Projection], points: Sequence[Point]) -> dict[str, Any]:
    work = plan.workload
    return {
        "schema": SCHEMA,
        "model": plan.model,
        "cluster": {**vars(plan.cluster), "replaced": list(plan.given)},
        "workload": {
            "parameters": work.elements,
            "gradient_bytes": work.total_bytes,
            "gradient_dtype": plan.gradient_dtype,
            "compute_dtype": plan.compute_dtype,
            "parts": [
                {"name": part.name, "elements": part.elements, "forward_flops": part.flops}
                for part in work.parts
            ],
            "compute_s": work.compute_s,
            "compute_source": plan.compute_source,
            "optimizer_s": work.optimizer_s,
            "sequences": work.sequences,
            "length": work.length,
            "accumulate": work.accumulate,
            "overlap": work.overlap,
        },
        "projections": [each._asdict() for each in projections],
        "validation_error": {
            name: error_range(points, overlap)._asdict()
            for name, overlap in (("predicted", True), ("without_overlap", False))
        },
        "validation": [
            {
                "case": point.case.key,
                "title": point.case.title,
                "source": point.case.source,
                "gpus": point.gpus,
                "unit": point.case.unit,
                "published": point.published,
                "predicted": point.predicted,
                "without_overlap": point.without_overlap,
                "calibrated": point.calibrated,
            }
            for point in points
        ],
    }


def _milliseconds(seconds: float) -> str:
    return "0" if seconds < 1e-9 else digits(seconds * 1e3)  # less is rounding


def _write(path: Path, text: str) -> None:
    with replacing(str(path)) as handle:
        handle.write(text.encode("utf-8"))
