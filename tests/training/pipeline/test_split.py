"""Splits of layers over stages: the balanced one against all others, and the memory of each stage."""

from __future__ import annotations

import itertools
import math
import re

import pytest

from base.tables import terminal
from bert.configuration import BertConfig, named_config
from bert.flops import forward_flops, size_of
from bert.memory import FUSED, MXNET, Batch, activation_bytes, parameter_count
from bert.part import ModelPart
from bert.weights.bare_params import distinct_shapes
from bert.weights.names import EMBEDDING
from tests.faults.test_bad_values import parts_of
from tests.processes import ROOT
from training.estimate import (
    ends_of,
    estimate,
    run_split,
    stage_parameters,
    stage_table,
)
from training.pipeline.split import Costs, Split, balanced_split, given_split, make_split

LARGE = named_config("bert_24_1024_16")
BATCH = Batch(8, 128, 20)


def test_ranges_are_half_open_and_without_gaps() -> None:
    split = make_split((6, 7, 7, 4))
    assert split == Split(((0, 6), (6, 13), (13, 20), (20, 24)))
    assert split.stages == 4 and str(split) == "6,7,7,4" and split.ranges[3] == (20, 24)
    assert given_split((6, 7, 7, 4), 4, 24) == split


@pytest.mark.parametrize(
    "costs", [(0, 1, 1, 0), (0, 10, 3, 25), (7, 10, 10, 4), (31, 10, 2.5, 0), (0, 1, 1, 100)]
)
@pytest.mark.parametrize("layers, stages", [(1, 1), (4, 2), (7, 3), (8, 4), (5, 5), (11, 4)])
def test_no_split_is_better_than_the_balanced_one(costs: tuple, layers: int, stages: int) -> None:
    costs = Costs(*costs)

    def badness(split: Split) -> tuple[float, float]:
        work = [costs.of_stage(split, stage) for stage in range(stages)]
        return max(work), sum(each**2 for each in work)

    cuts = itertools.combinations(range(1, layers), stages - 1)
    every = [make_split([b - a for a, b in zip((0, *cut), (*cut, layers))]) for cut in cuts]
    assert badness(balanced_split(costs, stages, layers)) == min(map(badness, every))


def test_of_equal_splits_the_later_stage_takes_more() -> None:
    assert balanced_split(Costs(0, 1, 1, 0), 3, 7).counts == (2, 2, 3)
    assert balanced_split(Costs(0, 1, 1, 0), 4, 24).counts == (6, 6, 6, 6)


def test_costs_are_those_of_a_step() -> None:
    config, batch = named_config("bert_4_256_4"), Batch(8, 64, 10)
    for operators, top_rows in ((MXNET, None), (FUSED, 11)):
        _, costs = run_split(None, 1, config, 1000, batch, operators)
        total = forward_flops(size_of(config, 1000), 8, 64, 10, top_rows).total
        for counts in ((4,), (1, 3), (2, 1, 1)):
            split = make_split(counts)
            assert sum(costs.of_stage(split, stage) for stage in range(split.stages)) == total
    assert costs.top < costs.layer / 2, "the fused operators skip most of the top layer"


@pytest.mark.parametrize("tied", [True, False])
def test_the_stages_hold_every_parameter_once_and_a_tied_word_embedding_twice(tied: bool) -> None:
    config = BertConfig(5, 32, 4, 72, 40, 3, tied=tied)
    shapes = distinct_shapes(config, 50)
    for counts in ((5,), (2, 3), (1, 1, 3), (1, 1, 1, 1, 1)):
        split = make_split(counts)
        numbers = [stage_parameters(config, 50, split, stage) for stage in range(split.stages)]
        parts = [ModelPart(config, begin, end) for begin, end in split.ranges]
        held = [sum(math.prod(shape) for name, shape in shapes.items() if part.holds(name)) for part in parts]
        assert numbers == held
        word = math.prod(shapes[EMBEDDING]) if tied and split.stages > 1 else 0
        assert sum(numbers) == parameter_count(config, 50) + word


def test_the_split_of_a_run_follows_its_operators() -> None:
    assert run_split(None, 5, LARGE, 30522, BATCH, MXNET)[0].counts == (5, 5, 5, 5, 4)
    assert run_split(None, 5, LARGE, 30522, BATCH, FUSED)[0].counts == (4, 5, 5, 5, 5)
    split, costs = run_split((1, 2, 3, 4, 14), 5, LARGE, 30522, BATCH, MXNET)
    assert split.counts == (1, 2, 3, 4, 14)
    table = stage_table(LARGE, 30522, split, costs, [1 << 30] * 5, 1)
    work = [float(row.cells[4].rstrip("%")) for row in table.rows]
    assert sum(work) == pytest.approx(100, abs=0.2)
    assert work[4] / sum(work) == pytest.approx(14.39 / 24.39, rel=1e-3)


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


def test_the_table_says_how_uneven_stages_are_and_where_micro_batches_are_few() -> None:
    split, costs = run_split(None, 4, LARGE, 30522, BATCH, MXNET)
    *_, excess, last = terminal(stage_table(LARGE, 30522, split, costs, [1 << 30] * 4, 4)).splitlines()
    assert "takes 4.8% more than the mean" in excess
    assert last == "4 micro-batches a step: the bubble is 43% of the time; with --accumulate 16 16%."


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
    words = (PIPELINE[:2] + PIPELINE[4:], PIPELINE, (*PIPELINE, "--pipeline_schedule", "gpipe"))
    (whole,), (part,), (gpipe,) = (parts_of(*each) for each in words)
    found = [estimate(each, "hvd", {}).parts for each in (whole, part, gpipe)]
    sizes = [each["activations"] for each in found]
    assert sizes[2] > 3.5 * sizes[1] > 3.5 * sizes[0] / 2
    config, inputs = part
    assert found[0]["parameters"] == 4 * parameter_count(config.model.bert, inputs.vocab_size)
    assert found[1]["parameters"] < found[0]["parameters"]
