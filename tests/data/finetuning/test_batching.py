"""Orders for training and evaluation: each example once an epoch, the same steps for any number of ranks."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

from data.finetuning.batching import EvaluationOrder, Grouping, OrderedBatches, Rows, TrainingOrder, dealt

COUNT, BATCH = 250, 12
LENGTHS = np.clip(np.random.default_rng(3).lognormal(3.3, 0.6, COUNT).astype(np.int32), 3, 120)


def order(rank: int = 0, world_size: int = 1, seed: int = 5, **grouping: int) -> TrainingOrder:
    return TrainingOrder(LENGTHS, BATCH, seed, rank, world_size, Grouping(max_length=120, **grouping))


def indices(order: TrainingOrder, step: int) -> np.ndarray:
    """The examples of a rank in a step."""
    return np.concatenate([rows.examples for rows in order.micro_batches(step)])


@pytest.mark.parametrize("steps", [1, 4, 32])
@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_every_example_once_an_epoch_whatever_the_ranks(world_size, accumulate, steps):
    ranks = [order(rank, world_size, accumulate=accumulate, steps=steps) for rank in range(world_size)]
    reference = order(steps=steps)
    seen: Counter[int] = Counter()
    for step in range(3 * COUNT // BATCH + 2):
        mine = [indices(each, step).tolist() for each in ranks]
        assert sorted(sum(mine, [])) == sorted(indices(reference, step).tolist())
        assert sum(map(len, mine)) == BATCH and len(set(map(len, mine))) == 1
        seen.update(sum(mine, []))
        consumed = (step + 1) * BATCH
        if consumed // COUNT > step * BATCH // COUNT:  # an epoch has ended
            complete = consumed // COUNT
            assert set(seen.values()) <= {complete, complete + 1} and len(seen) == COUNT
            assert sum(each == complete + 1 for each in seen.values()) == consumed % COUNT
    assert complete == 3


def test_the_steps_of_one_epoch_alone_when_batches_divide_it():
    even = TrainingOrder(LENGTHS[:240], BATCH, 1, 0, 1)
    for epoch in range(3):
        steps = range(epoch * 20, epoch * 20 + 20)
        assert sorted(np.concatenate([indices(even, step) for step in steps]).tolist()) == list(range(240))
    assert even.num_steps(1) == 20 and even.num_steps(0.1 * 3 * 10) == 60 and even.num_steps(0.01) == 1
    assert order().num_steps(2) == 42  # 500 / 12 = 41.7


def test_steps_of_more_examples_than_there_are():
    few = TrainingOrder(LENGTHS[:5], 12, 0, 0, 1)
    seen = Counter(np.concatenate([indices(few, step) for step in range(5)]).tolist())
    assert seen == dict.fromkeys(range(5), 12)


def test_steps_are_random_and_seeds_and_epochs_differ():
    first, again, other = order(), order(), order(seed=6)
    steps = [indices(first, step).tolist() for step in range(20)]
    assert steps == [indices(again, step).tolist() for step in range(20)]
    assert steps != [indices(other, step).tolist() for step in range(20)]
    whole = TrainingOrder(LENGTHS[:240], BATCH, 5, 0, 1)
    epochs = [{frozenset(indices(whole, e * 20 + step).tolist()) for step in range(20)} for e in range(2)]
    assert not epochs[0] & epochs[1]
    # Steps that share examples by length do not come by length.
    means = [LENGTHS[indices(whole, step)].mean() for step in range(20)]
    assert means != sorted(means) and means != sorted(means, reverse=True)


def test_seeking_needs_nothing_from_before():
    steps = list(range(60))
    forwards = [indices(order(1, 2), step).tolist() for step in steps]
    one = order(1, 2)
    assert [indices(one, step).tolist() for step in reversed(steps)] == forwards[::-1]
    with ThreadPoolExecutor(4) as pool:
        assert [each.tolist() for each in pool.map(partial(indices, one), steps)] == forwards


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_have_as_many_tokens_and_the_same_shapes(world_size):
    ranks = [order(rank, world_size, accumulate=2) for rank in range(world_size)]
    tokens = np.zeros(world_size)
    for step in range(40):
        for rows in zip(*(each.micro_batches(step) for each in ranks)):
            assert len({(len(each.examples), each.padded) for each in rows}) == 1
            own = np.array([LENGTHS[each.examples].sum() for each in rows])
            longest = max(LENGTHS[each.examples].max() for each in rows)
            # Dealt there and back, two ranks differ by one example's length at most.
            assert np.ptp(own) <= longest <= rows[0].padded
            tokens += own
    assert np.ptp(tokens) < 0.05 * tokens.mean()


def test_little_padding_and_few_lengths():
    def padding(rows: list[Rows]) -> float:
        return 1 - sum(many[each.examples].sum() for each in rows) / sum(
            each.padded * len(each.examples) for each in rows
        )

    def of(**grouping: int) -> float:
        each = TrainingOrder(many, 32, 0, 1, 2, Grouping(max_length=120, **grouping))
        rows = [rows for step in range(60) for rows in each.micro_batches(step)]
        assert {one.padded for one in rows} <= set(each.bounds)
        return padding(rows)

    many = np.tile(LENGTHS, 16)
    assert len(order(num_buckets=4).bounds) == 4
    assert all(bound % 8 == 0 for bound in order().bounds)
    assert of() < 0.2 < 0.5 < of(steps=1)
    assert of(steps=1, accumulate=4) < of(steps=1) - 0.1
    assert padding(EvaluationOrder(many, 32, 0, 2).batches()) < 0.15


def test_bad_orders_are_errors():
    for lengths, size, world, grouping in (
        (LENGTHS[:0], 4, 1, Grouping()),
        (LENGTHS, 4, 1, Grouping(max_length=64)),
        (LENGTHS, 4, 5, Grouping()),
        (LENGTHS, 4, 2, Grouping(accumulate=3)),
        (np.array([3, 0]), 1, 1, Grouping()),
    ):
        with pytest.raises(ValueError):
            TrainingOrder(lengths, size, 0, 0, world, grouping)
    with pytest.raises(ValueError):
        indices(order(), -1)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_evaluation_has_each_example_once(world_size):
    ranks = [EvaluationOrder(LENGTHS, 16, rank, world_size) for rank in range(world_size)]
    per_rank = [each.batches() for each in ranks]
    every = np.concatenate([rows.examples for batches in per_rank for rows in batches])
    assert sorted(every.tolist()) == list(range(COUNT))
    for batches in per_rank:
        for rows in batches:
            assert LENGTHS[rows.examples].max() <= rows.padded
            assert len(rows.examples) <= 16
    tokens = [sum(int(LENGTHS[rows.examples].sum()) for rows in batches) for batches in per_rank]
    assert max(tokens) - min(tokens) <= LENGTHS.max()


def test_evaluation_with_fewer_examples_than_ranks():
    ranks = [EvaluationOrder(LENGTHS[:2], 8, rank, 3) for rank in range(3)]
    found = [[rows.examples.tolist() for rows in each.batches()] for each in ranks]
    assert sorted(sum(sum(found, []), [])) == [0, 1] and [] in found


def test_dealing():
    assert [dealt(7, rank, 3).tolist() for rank in range(3)] == [[0, 5, 6], [1, 4], [2, 3]]


def test_batches_go_on_from_a_position():
    def collate(examples: np.ndarray, padded: int) -> tuple[tuple[int, ...], int]:
        return tuple(examples.tolist()), padded

    batches = OrderedBatches(order(1, 2, accumulate=2), collate)
    taken = [(position, make()) for (position, make), _ in zip(batches.tasks(), range(9))]
    assert [position for position, _ in taken] == [0, 1, 1, 2, 2, 3, 3, 4, 4]
    again = OrderedBatches(order(1, 2, accumulate=2), collate).tasks(3)
    assert [make() for (_, make), _ in zip(again, range(3))] == [batch for _, batch in taken[6:]]
    with pytest.raises(ValueError):
        next(batches.tasks(-1))
