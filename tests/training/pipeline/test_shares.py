"""Work, parameters and memory of the stages, and --estimate's table of them."""

from __future__ import annotations

import re

import pytest

from base.tables import terminal
from bert.configuration import named_config
from bert.memory import FUSED, MXNET, Batch, activation_bytes, parameter_count
from tests.faults.test_bad_values import parts_of
from tests.processes import ROOT
from training.estimate import estimate
from training.pipeline.options import PipelineConfig
from training.pipeline.shares import (
    bubble,
    ends_of,
    micro_batches_kept,
    run_split,
    shares_of_work,
    slowest_share,
    stage_table,
)

LARGE = named_config("bert_24_1024_16")
BATCH = Batch(8, 128, 20)


def test_micro_batches_kept() -> None:
    """1F1B's grow with p - i, GPipe's with m."""
    one, two = PipelineConfig(4), PipelineConfig(4, schedule="gpipe")
    assert [micro_batches_kept(one, 8, stage) for stage in range(4)] == [4, 3, 2, 1]
    assert [micro_batches_kept(one, 2, stage) for stage in range(4)] == [2, 2, 2, 1]
    assert [micro_batches_kept(two, 8, stage) for stage in range(4)] == [8, 8, 8, 8]
    assert micro_batches_kept(PipelineConfig(), 8, 0) == 1


def test_the_bubble() -> None:
    assert bubble(1, 3) == 0 and bubble(2, 1) == 1 / 2 and bubble(2, 8) == 1 / 9 and bubble(4, 1) == 3 / 4


def test_the_split_of_a_run_follows_its_operators() -> None:
    five = PipelineConfig(5)
    assert run_split(five, LARGE, 30522, BATCH, MXNET)[0].counts == (5, 5, 5, 5, 4)
    assert run_split(five, LARGE, 30522, BATCH, FUSED)[0].counts == (4, 5, 5, 5, 5)
    given = PipelineConfig(5, split=(1, 2, 3, 4, 14))
    split, costs = run_split(given, LARGE, 30522, BATCH, MXNET)
    assert split.counts == (1, 2, 3, 4, 14)
    assert sum(shares_of_work(split, costs)) == pytest.approx(1)
    assert slowest_share(split, costs) == pytest.approx(24.39 / 5 / 14.39, rel=1e-3)


@pytest.mark.parametrize("operators", [FUSED, MXNET])
def test_activations_of_the_stages_add_up_to_the_models(operators: str) -> None:
    """But for what is received, and the gradients of one layer, of which every stage has its own."""
    whole = activation_bytes(LARGE, 30522, BATCH, operators, 4)
    stages = []
    for stage in range(4):
        layers = named_config("bert_6_1024_16")
        stages.append(activation_bytes(layers, 30522, BATCH, operators, 4, ends_of(stage, 4)))
    received, backward = (1.2 * 4 * 8 * 128 * each for each in (2 * 1024, 2 * 1024 + 3 * 4096))
    assert sum(stages) == pytest.approx(whole + 3 * (received + backward), rel=1e-6)
    twice = activation_bytes(named_config("bert_6_1024_16"), 30522, BATCH._replace(kept=2), operators, 4)
    once = activation_bytes(named_config("bert_6_1024_16"), 30522, BATCH, operators, 4)
    assert twice == pytest.approx(2 * once - backward, rel=1e-6)


def test_the_table_of_stages() -> None:
    split, costs = run_split(PipelineConfig(4), LARGE, 30522, BATCH, MXNET)
    text = terminal(stage_table(LARGE, 30522, split, costs, [1 << 30, 2 << 20, 3 << 20, 4 << 20], 4))
    assert "--pipeline_split 6,6,6,6" in text
    lines = text.splitlines()
    assert lines[2].split() == ["0", "embeddings,", "0", "to", "5", "6", "107", "M", "24.6%", "1,024", "MiB"]
    assert lines[5].split()[:6] == ["3", "18", "to", "23,", "heads", "6"] and "26.2%" in lines[5]
    assert "takes 4.8% more than the mean" in lines[6]
    assert lines[7] == "4 micro-batches a step: the bubble is 43% of the time; with --accumulate 16 16%."


def test_the_guide_shows_the_table_of_its_command() -> None:
    guide = (ROOT / "docs" / "pipelines.md").read_text("utf-8")
    words = ("--pipeline_stages", "4", "--accumulate", "16", "--model", "bert_24_1024_16")
    (part,) = parts_of(*words, "--dtype", "float32")
    assert f" {' '.join(words)} --dummy_data_len 128 --estimate\n" in guide
    assert "\n".join(estimate(part, "hvd", {}).lines()).split("\n\n")[0] in guide


PIPELINE = ("--model", "bert_4_64_2", "--pipeline_stages", "2", "--accumulate", "8", "--batch_size", "64")


def test_the_estimate_is_that_of_the_stage_that_needs_most() -> None:
    (part,) = parts_of(*PIPELINE)
    mpi = {"OMPI_COMM_WORLD_LOCAL_SIZE": "4", "OMPI_COMM_WORLD_SIZE": "4"}
    found = estimate(part, "hvd", mpi)
    assert found.stages is not None and re.match("stage [01] of bert_4_64_2", found.what)
    assert found.processes == 4
    assert found.of_process < found.of_host < 4 * found.of_process, "two of each stage"
    text = "\n".join(found.lines())
    assert "--pipeline_split" in text and "4 processes on this host" in text
    elsewhere = estimate(part, "hvd", {**mpi, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"})
    assert elsewhere.of_host == 2 * elsewhere.of_process, "a host may have the largest stage's alone"
    alone = estimate(part, "hvd", {})
    assert alone.processes == 2 and alone.of_process == found.of_process


def test_gpipe_needs_more_and_stages_less() -> None:
    sizes = {}
    for name, words in {
        "whole": PIPELINE[:2] + PIPELINE[4:],
        "1f1b": PIPELINE,
        "gpipe": (*PIPELINE, "--pipeline_schedule", "gpipe"),
    }.items():
        (part,) = parts_of(*words)
        sizes[name] = estimate(part, "hvd", {}).parts["activations"]
    assert sizes["gpipe"] > 3.5 * sizes["1f1b"] > 3.5 * sizes["whole"] / 2
    (part,) = parts_of(*PIPELINE)
    whole = estimate(parts_of(*PIPELINE[:2], *PIPELINE[4:])[0], "hvd", {}).parts["parameters"]
    (config, inputs) = part
    assert whole == 4 * parameter_count(config.model.bert, inputs.vocab_size)
    assert estimate(part, "hvd", {}).parts["parameters"] < whole
