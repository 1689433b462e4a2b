"""Errors of the model: within stated bounds, and as docs/projection.md and the notebook say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from base.tables import markdown
from bert.configuration import named_config
from comparison.backends import BACKENDS
from comparison.options import parse_options
from comparison.projection.command import plan_of
from comparison.projection.model import project
from comparison.projection.report import off, validation_tables
from comparison.projection.validation import (
    CASES,
    EFFICIENCY,
    FURTHER,
    LARGE_FLOAT16,
    THROUGHPUT,
    error_range,
    is_held_out,
    mean_deviation,
    resnet50_parts,
    single_compute_seconds,
    validate,
    workload_of,
)
from comparison.projection.workload import bert_parts
from tests.processes import ROOT

PAGES = ("projection.md", "notebook/projection_points.md")
DOCS = "".join((ROOT / "docs" / page).read_text("utf-8") for page in PAGES)


@pytest.fixture(scope="module")
def shown():
    return validation_tables(validate(), validate(FURTHER))


@pytest.mark.parametrize("case", CASES, ids=lambda each: each.key)
def test_a_calibrated_point_is_met_and_others_promise_too_much(case):
    """By how much is compared with the documentation below. These others can change as they like; the
    predictions stay."""
    points, changed = validate([case]), dict(case.points)
    for point in points:
        if point.calibrated:
            assert point.predicted == pytest.approx(point.published, rel=1e-9)
            continue
        changed[point.at] *= 1.7
        if case.unit in (THROUGHPUT, EFFICIENCY):
            assert point.deviation() > 0
    again = validate([replace(case, points=changed)])
    assert [point.predicted for point in again] == [point.predicted for point in points]


def test_a_gpus_speed_carries_over_to_its_own_step():
    parts = bert_parts(named_config("bert_24_1024_16"))
    work = workload_of(next(case for case in CASES if case.key == "claim byteps"))
    seconds = single_compute_seconds(LARGE_FLOAT16, parts, 64, 900.0)
    assert seconds == work.compute_s
    assert seconds + work.optimizer_s == pytest.approx(64 / 171.52)
    assert single_compute_seconds(LARGE_FLOAT16, parts, 32, 900.0) == pytest.approx(seconds / 2)


def test_half_of_the_further_points_are_held_out_by_their_names():
    """Neither errors nor published values decide."""
    held_out = is_held_out(validate(FURTHER))
    assert {name for name, out in held_out.items() if out} == {
        "mxnet page 256", "gluon-nlp 665 64", "horovod 542 flat_ring 16", "horovod 542 flat_ring 64",
        "horovod 542 flat_ring 128", "horovod 542 hierarchical_ring 16", "horovod 542 hierarchical_ring 256",
    }  # fmt: skip
    assert len(held_out) == 14


def test_a_whole_trainings_minutes_are_those_of_its_steps():
    (point,) = [each for each in validate(FURTHER) if each.case.key == "aws"]
    minutes = 0.0
    for steps, words in ((7038, "--batch_size 32"), (1563, "--batch_size 16 --max_seq_length 512")):
        made = plan_of(parse_options(["--project", *words.split(), "--gpus", "2048"], BACKENDS))
        minutes += steps * project(made.workload, made.strategies[1], made.cluster, 2048).step_s / 60
    assert point.predicted == pytest.approx(minutes) and point.published == 62


def test_resnet_50_is_the_papers():
    parts = resnet50_parts()
    assert sum(part.elements for part in parts) == 25_557_032
    assert sum(len(part.gradients) for part in parts) == 161
    assert sum(part.flops for part in parts) / 2 == pytest.approx(3.86e9, rel=1e-3)


def test_the_documentation_has_the_numbers_of_now(shown):
    """Every row of every table, and no other row about these measurements."""
    rows = set()
    for table in shown:
        lines = markdown(table).strip().split("\n")[2:]
        own = {line for line in lines if line.startswith("| ") and not set(line) <= set("| -:")}
        missing = [line for line in own if f"\n{line}\n" not in DOCS]
        assert not missing, f"{table.title}: docs/ lacks\n" + "\n".join(missing)
        assert all(note in DOCS for note in table.notes)
        rows |= own
    titles = {case.title for case in (*CASES, *FURTHER)}
    for line in DOCS.split("\n"):
        if line.startswith("| ") and any(title in line for title in titles):
            assert line in rows, f"docs/ has a row of another time: {line}"


def test_the_documentations_sentences_have_the_numbers_of_now(shown):
    points = [point for point in validate() if not point.calibrated]
    of_dlperf = [point for point in points if point.case.key.startswith("dlperf")]
    off_by = [100 * point.deviation() for point in of_dlperf]
    claims = [100 * point.deviation() for point in points if point.case.key.startswith("claim")]
    nearer = sum(abs(point.deviation(False)) < abs(point.deviation()) for point in of_dlperf)
    without, with_it = (100 * mean_deviation(of_dlperf, overlap) for overlap in (False, True))
    during, after = (error_range(validate(), overlap) for overlap in (True, False))
    losses = shown[3]  # of steps of 1 to 8 GPUs, and of 8 to 32: published, predicted, without overlap
    columns = list(zip(*[[float(cell) for cell in row.cells[1:]] for row in losses.rows]))
    inside, explained, _, between, predicted, alone = columns
    low, high = (
        [value for value, row in zip(between, losses.rows) if row.cells[0].split(", ")[3] == dtype]
        for dtype in ("float16", "float32")
    )
    steps = [" and ".join(sorted({f"{each:.0f}" for each in own}, key=int)) for own in (predicted, alone)]
    text = " ".join(DOCS.split())
    for sentence in (
        f"by {min(off_by):.0f} to {max(off_by):.0f}% on DLPerf's measurements",
        f"nearer the curve without overlap at all {nearer} points: {without:.1f}% off on average against"
        f" {with_it:.1f}%",
        f"by {min(claims):.0f} and {max(claims):.0f}% on BytePS's claim",
        f"{off(during.least)} to {off(during.most)} with gradients during the backward pass;"
        f" {off(after.least)} to {off(after.most)} with gradients after the backward pass",
        f"steps grow by {min(inside):.0f} to {max(inside):.0f} ms from one GPU to eight",
        f"moving the bytes explains {min(explained):.0f} to {max(explained):.0f}.",
        f"grow by {min(low):.0f} to {max(low):.0f} ms in float16 and {min(high):.0f} to {max(high):.0f}",
        f"against {steps[0]} predicted; without overlap it would be {steps[1]}",
    ):
        assert sentence in text
