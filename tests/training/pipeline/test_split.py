"""Splits of layers over stages: the balanced one against all others, the counts against the whole model's."""

from __future__ import annotations

import itertools
import math

import pytest

from base.errors import InputError
from bert.configuration import BertConfig, named_config
from bert.flops import forward_flops, size_of
from bert.memory import Batch, parameter_count
from bert.part import ModelPart
from bert.weights.bare_params import distinct_shapes
from bert.weights.names import EMBEDDING
from training.pipeline.shares import counted_costs, stage_parameters
from training.pipeline.split import (
    Costs,
    Split,
    balanced_split,
    given_split,
    make_split,
)


def test_ranges_are_half_open_and_without_gaps() -> None:
    split = make_split((6, 7, 7, 4))
    assert split == Split(((0, 6), (6, 13), (13, 20), (20, 24)))
    assert split.stages == 4 and str(split) == "6,7,7,4" and list(split.layers(3)) == [20, 21, 22, 23]
    assert given_split((6, 7, 7, 4), 4, 24) == split


@pytest.mark.parametrize(
    "counts, stages, layers, message",
    [
        ((2, 2), 3, 4, "--pipeline_split 2,2: 2 numbers for 3 stages"),
        ((2, 3), 2, 4, "--pipeline_split 2,3: 5 layers in all, and the model has 4"),
        ((1, 1, 1), 3, 2, "--pipeline_stages 3: the model has 2 layers, and each stage holds one"),
    ],
)
def test_bad_splits_are_rejected(counts: tuple[int, ...], stages: int, layers: int, message: str) -> None:
    with pytest.raises(InputError) as error:
        given_split(counts, stages, layers)
    assert message in str(error.value)


def test_more_stages_than_layers_are_rejected() -> None:
    with pytest.raises(InputError, match="give at most 2"):
        balanced_split(Costs(0, 1, 1, 1), 3, 2)


COSTS = [
    Costs(0, 1, 1, 0),
    Costs(0, 10, 3, 25),
    Costs(7, 10, 10, 4),
    Costs(31, 10, 2.5, 0),
    Costs(0, 1, 1, 100),
]


@pytest.mark.parametrize("costs", COSTS)
@pytest.mark.parametrize("layers, stages", [(1, 1), (4, 2), (7, 3), (8, 4), (5, 5), (11, 4)])
def test_no_split_is_better_than_the_balanced_one(costs: Costs, layers: int, stages: int) -> None:
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
    for top_rows in (None, 11):
        costs = counted_costs(config, 1000, batch, top_rows)
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


def test_bert_large_of_five_stages() -> None:
    """At 128 tokens, 20 of them masked, the heads are worth 0.4 of a layer; the fused operators' top layer,
    0.39 of a layer, and the heads are less than one."""
    config = named_config("bert_24_1024_16")
    costs = counted_costs(config, 30522, Batch(8, 128, 20))
    assert round(costs.heads / costs.layer, 2) == 0.39
    assert balanced_split(costs, 4, 24).counts == (6, 6, 6, 6)
    assert balanced_split(costs, 5, 24).counts == (5, 5, 5, 5, 4)
    fused = counted_costs(config, 30522, Batch(8, 128, 20), 21)
    assert round(fused.top / fused.layer, 2) == 0.39
    assert balanced_split(fused, 5, 24).counts == (4, 5, 5, 5, 5)
