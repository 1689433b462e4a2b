"""Errors of the model: within stated bounds, and as docs/projection.md says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from base.tables import markdown
from bert.configuration import named_config
from comparison.projection.validation import (
    CASES,
    EFFICIENCY,
    LARGE_FLOAT16,
    THROUGHPUT,
    UNIVERSITY_DAYS,
    UNIVERSITY_STEPS,
    error_range,
    off,
    points_of,
    single_compute_seconds,
    tables,
    validate,
    workload_of,
)
from comparison.projection.workload import bert_parts
from tests.processes import ROOT

DOCS = (ROOT / "docs" / "projection.md").read_text("utf-8")


@pytest.fixture(scope="module")
def shown():
    return tables(validate())


@pytest.mark.parametrize("case", CASES, ids=lambda each: each.key)
def test_a_calibrated_point_is_met_and_others_promise_too_much(case):
    """By how much is compared with the documentation below."""
    points = points_of(case)
    assert [point.published for point in points] == list(case.points.values())
    for point in points:
        if point.calibrated:
            assert point.predicted == pytest.approx(point.published, rel=1e-9)
        elif case.unit in (THROUGHPUT, EFFICIENCY):
            assert point.deviation() > 0


@pytest.mark.parametrize("case", [case for case in CASES if case.calibrated_on], ids=lambda each: each.key)
def test_only_the_calibrated_point_is_used(case):
    """Other published numbers can change as they like; the predictions stay."""
    changed = {
        gpus: value * (1 if gpus == case.calibrated_on else 1.7) for gpus, value in case.points.items()
    }
    before = [point.predicted for point in points_of(case)]
    assert [point.predicted for point in points_of(replace(case, points=changed))] == before


def test_the_universitys_table_contradicts_itself_in_one_row():
    assert UNIVERSITY_STEPS.steps == UNIVERSITY_DAYS.steps is not None
    for gpus, steps in UNIVERSITY_STEPS.steps.items():
        ratio = UNIVERSITY_STEPS.points[gpus] * steps / 86400 / UNIVERSITY_DAYS.points[gpus]
        assert (abs(ratio - 1) > 0.1) == (gpus == 4), (gpus, ratio)
        # Five epochs over the same text: every GPU more is as many steps fewer.
        assert steps * gpus == pytest.approx(267_139 * 4, rel=1e-4)


def test_a_gpus_speed_carries_over_to_its_own_step():
    parts = bert_parts(named_config("bert_24_1024_16"))
    work = workload_of(next(case for case in CASES if case.key == "claim byteps"))
    seconds = single_compute_seconds(LARGE_FLOAT16, parts, 64, 900.0)
    assert seconds == work.compute_s
    assert seconds + work.optimizer_s == pytest.approx(64 / 171.52)
    assert single_compute_seconds(LARGE_FLOAT16, parts, 32, 900.0) == pytest.approx(seconds / 2)


def test_the_documentation_has_the_numbers_of_now(shown):
    """Every row of every table, and no other row about these measurements."""
    rows = set()
    for table in shown:
        lines = markdown(table).strip().split("\n")[2:]
        own = {line for line in lines if line.startswith("| ") and not set(line) <= set("| -:")}
        missing = [line for line in own if f"\n{line}\n" not in DOCS]
        assert not missing, f"{table.title}: docs/projection.md lacks\n" + "\n".join(missing)
        assert all(note in DOCS for note in table.notes)
        rows |= own
    titles = {case.title for case in CASES}
    for line in DOCS.split("\n"):
        if line.startswith("| ") and any(title in line for title in titles):
            assert line in rows, f"docs/projection.md has a row of another time: {line}"


def test_the_documentations_sentences_have_the_numbers_of_now(shown):
    points = [point for point in validate() if not point.calibrated]
    of_dlperf = [100 * point.deviation() for point in points if point.case.key.startswith("dlperf")]
    assert f"by {min(of_dlperf):.0f} to {max(of_dlperf):.0f}% on DLPerf's\nmeasurements" in DOCS
    claims = [100 * point.deviation() for point in points if point.case.key.startswith("claim")]
    assert f"by {min(claims):.0f} and {max(claims):.0f}% on BytePS's claim" in DOCS
    during, after = (error_range(validate(), overlap) for overlap in (True, False))
    assert (
        f"{off(during.least)} to {off(during.most)} with gradients during the backward pass;"
        f" {off(after.least)} to {off(after.most)} with gradients after the backward pass"
    ) in " ".join(DOCS.split())
    losses = shown[-1]
    assert losses.head[1:] == [
        f"{span}: {name}"
        for span in ("1 to 8 GPUs", "8 to 32")
        for name in ("published", "predicted", "without overlap")
    ]
    columns = list(zip(*[[float(cell) for cell in row.cells[1:]] for row in losses.rows]))
    halves = [row.cells[0].split(", ")[3] for row in losses.rows]
    inside, explained = columns[0], columns[1]
    text = " ".join(DOCS.split())
    assert f"steps grow by {min(inside):.0f} to {max(inside):.0f} ms from one GPU to eight" in text
    assert f"moving the bytes explains {min(explained):.0f} to {max(explained):.0f}." in text
    between = {
        dtype: [value for value, own in zip(columns[3], halves) if own == dtype]
        for dtype in ("float16", "float32")
    }
    low, high = between["float16"], between["float32"]
    assert (
        f"grow by {min(low):.0f} to {max(low):.0f} ms in float16 and {min(high):.0f} to {max(high):.0f}"
        in text
    )
    predicted = sorted({f"{value:.0f}" for value in columns[4]}, key=int)
    without = sorted({f"{value:.0f}" for value in columns[5]}, key=int)
    assert (
        f"against {' and '.join(predicted)} predicted; without overlap it would be {' and '.join(without)}"
        in text
    )
