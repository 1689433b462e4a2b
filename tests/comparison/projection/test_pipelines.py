"""The projection of pipelines: against closed formulas, the published six, and what the guide says."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from base.errors import InputError
from base.tables import markdown
from bert.configuration import named_config
from compare import main
from comparison.backends import BACKENDS
from comparison.options import parse_options
from comparison.projection.clusters import P3DN
from comparison.projection.command import pipelines_of, plan_of
from comparison.projection.pipeline_report import pipeline_tables, validate_pipelines
from comparison.projection.pipelines import (
    Pipeline,
    project_pipeline,
    simulate,
    split_by,
    stages_of,
    word_embedding,
)
from comparison.projection.workload import Workload, bert_parts, update_seconds
from tests.processes import ROOT
from training.pipeline.options import GPIPE, ONE_F_ONE_B
from training.pipeline.placement import INTER_FIRST, INTRA_FIRST
from training.pipeline.schedule import bubble

DOCS = (ROOT / "docs" / "projection.md").read_text("utf-8")
# A network that costs nothing.
FREE = replace(
    P3DN, gpus_per_host=4, intra_gbps={4: 1e12}, inter_gbps=1e12, intra_latency_us=0, inter_latency_us=0,
    call_latency_us=0,
)  # fmt: skip


def work(layers: int = 4, **changes: object) -> Workload:
    parts = bert_parts(named_config(f"bert_{layers}_256_4"), vocab_size=1000)
    return replace(Workload(parts, 0.1, update_seconds(parts, 900.0), 4, sequences=8), **changes)


@pytest.mark.parametrize("schedule", [ONE_F_ONE_B, GPIPE])
@pytest.mark.parametrize("stages, micro_batches", [(1, 3), (2, 1), (2, 8), (3, 7), (4, 16)])
def test_even_stages_wait_for_the_bubble(schedule: str, stages: int, micro_batches: int) -> None:
    """(p - 1) / (m + p - 1) of the time (Narayanan et al., section 2.2)."""
    ends_s, busy_s = simulate(schedule, micro_batches, [0.3] * stages, [0.0] * (stages - 1))
    assert max(ends_s) == pytest.approx((micro_batches + stages - 1) * 0.3)
    for busy in busy_s:
        assert 1 - busy / max(ends_s) == pytest.approx(bubble(stages, micro_batches))


def test_the_slowest_stage_sets_the_pace_and_transfers_delay() -> None:
    ends_s, _ = simulate(ONE_F_ONE_B, 50, [0.1, 0.4, 0.1], [0.0, 0.0])
    assert max(ends_s) == pytest.approx(50 * 0.4 + 0.1)
    ends_s, _ = simulate(ONE_F_ONE_B, 1, [0.1, 0.2, 0.3], [0.01, 0.02])
    assert max(ends_s) == ends_s[0] == pytest.approx(0.6 + 2 * 0.03)


def test_one_stage_on_one_gpu_is_the_workload() -> None:
    found = project_pipeline(work(accumulate=3), Pipeline(1, INTRA_FIRST), FREE, 1)
    assert found.step_s == pytest.approx(0.3 + work().optimizer_s)
    assert found.efficiency == pytest.approx(1) and found.sent_bytes == 0
    assert found.sequences_per_s == pytest.approx(24 / found.step_s)


@pytest.mark.parametrize("placement", [INTRA_FIRST, INTER_FIRST])
def test_a_step_is_the_sum_of_its_parts(placement: str) -> None:
    found = project_pipeline(work(accumulate=4), Pipeline(2, placement), P3DN, 16)
    parts = (found.compute_s, found.waiting_s, found.gradients_s, found.optimizer_s)
    assert found.step_s == pytest.approx(sum(parts)) and min(parts) >= 0
    assert found.hosts == 2 and 0 < found.efficiency < 1


def test_a_network_that_costs_nothing_leaves_the_bubble() -> None:
    even = work(layers=8)
    found = project_pipeline(replace(even, accumulate=8), Pipeline(2, INTER_FIRST), FREE, 8)
    slowest = max(stages_of(even, Pipeline(2, INTER_FIRST))[0])
    assert found.step_s - found.optimizer_s == pytest.approx(8 * slowest + 0.1 - slowest, rel=0.02)
    assert found.gradients_s == pytest.approx(0, abs=1e-6)


def test_the_stages_share_all_numbers_and_the_word_embedding_twice() -> None:
    compute_s, elements = stages_of(work(), Pipeline(3, INTRA_FIRST))
    assert sum(compute_s) == pytest.approx(0.1)
    assert sum(elements) == work().elements + word_embedding(work().parts)
    heavy = bert_parts(named_config("bert_4_256_4"), vocab_size=30522)
    assert split_by(heavy, 2, by_flops=False).counts == (2, 2)


def test_placements_by_what_crosses_the_network() -> None:
    """Two hosts of two GPUs: intra_first sends all gradients once, inter_first activations."""
    small = replace(P3DN, gpus_per_host=2)
    own = work(accumulate=4)
    sizes = [4 * each for each in stages_of(own, Pipeline(2, INTRA_FIRST))[1]]
    intra = project_pipeline(own, Pipeline(2, INTRA_FIRST), small, 4)
    assert intra.sent_bytes == pytest.approx(sum(sizes))
    inter = project_pipeline(own, Pipeline(2, INTER_FIRST), small, 4)
    activations, word = 4 * 8 * 128 * 256 * 4, 4 * word_embedding(own.parts)
    assert inter.sent_bytes == pytest.approx(2 * (activations + word))
    untied = project_pipeline(own, Pipeline(2, INTER_FIRST, tied=False), small, 4)
    assert untied.sent_bytes == pytest.approx(2 * activations)
    slow = replace(small, inter_gbps=1.0)
    few, many = work(sequences=1), work(sequences=500)
    for load, better in ((few, INTER_FIRST), (many, INTRA_FIRST)):
        times = {
            placement: project_pipeline(load, Pipeline(2, placement, tied=False), slow, 4).step_s
            for placement in (INTRA_FIRST, INTER_FIRST)
        }
        assert min(times, key=lambda each: times[each]) == better


def test_the_published_six() -> None:
    """A Tesla M40 has 6.8 TFLOP/s, and inter_first wins in every case, as published. The errors are compared
    with the guide."""
    validations = validate_pipelines()
    for _, (rate, speed), points in validations:
        assert [point.published for point in points] == [1.20, 0.80, 5.25, 2.84, 10.96, 5.23]
        for point in points[:2]:
            assert point.calibrated and point.deviation() == pytest.approx(0, abs=1e-6)
        assert 3e12 < rate < 6.8e12 and 10 < speed < 56
        for intra, inter in zip(points[::2], points[1::2]):
            assert (intra.at, inter.at) == (INTRA_FIRST, INTER_FIRST) and inter.predicted < intra.predicted
    for table in pipeline_tables(validations):
        rows = [line for line in markdown(table).splitlines() if line.startswith("| ")]
        assert len(rows) > 3
        for row in rows[2:]:
            assert row in DOCS


def test_the_command(tmp_path, capsys) -> None:
    words = ["--project", "--pipeline_stages", "4", "--gpus", "8", "16", "--output", str(tmp_path)]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "4 stages of 6,6,6,6 layers" in shown and "the bubble is 15.8%" in shown
    assert "4 stages, intra_first, 1f1b" in shown and "4 stages, inter_first, 1f1b" in shown
    assert {path.name for path in tmp_path.iterdir()} == {
        f"pipelines.{kind}" for kind in ("html", "json", "md", "png")
    }
    content = json.loads((tmp_path / "pipelines.json").read_text("utf-8"))
    assert [each["gpus"] for each in content["projections"]] == [8, 16, 8, 16]
    assert content["micro_batches"] == 16 and len(content["validation"]) == 18
    assert (tmp_path / "pipelines.png").read_bytes()[:4] == b"\x89PNG"
    assert re.search(r"\| 16 \| 2 \| \d", (tmp_path / "pipelines.md").read_text("utf-8"))


def test_options_of_the_other_kind_are_rejected() -> None:
    def plan(*words: str):
        options = parse_options(["--project", *words], BACKENDS)
        return pipelines_of(options), plan_of(options)

    pipelines, _ = plan(
        "--pipeline_stages", "2", "--placement", "inter_first", "--pipeline_schedule", "gpipe"
    )
    assert pipelines == [Pipeline(2, INTER_FIRST, GPIPE)]
    for words, message in (
        (("--placement", "inter_first"), "--placement is of pipelines: give --pipeline_stages too"),
        (("--pipeline_stages", "2", "--servers", "3"), "--servers is of strategies without pipelines"),
        (("--pipeline_stages", "25"), "the model has 24 layers"),
        (("--pipeline_stages", "3", "--gpus", "8"), "--gpus 8: no multiple of --pipeline_stages 3"),
    ):
        with pytest.raises(InputError, match=message):
            plan(*words)
    assert plan("--pipeline_stages", "3")[1].gpus == [24]
    with pytest.raises(InputError, match="--pipeline_stages: '1' is not"):
        parse_options(["--project", "--pipeline_stages", "1"], BACKENDS)
    with pytest.raises(InputError, match="--project"):
        parse_options(["--pipeline_stages", "2"], BACKENDS)
