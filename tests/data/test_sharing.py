"""A step has the same micro-batches for any number of ranks, and every sample comes once an epoch."""

from __future__ import annotations

import numpy as np
import pytest

import lamb_paper
from base.errors import InputError
from data.options import BatchingConfig, MaskingConfig
from data.pretraining.batches import PretrainingBatches
from data.pretraining.sources import TextSource
from data.sharing import Share
from tests.faults import change_feeds

SIZES = (1, 2, 3, 4, 6)


@pytest.mark.parametrize("micro_batches", [1, 2, 4, 6, 7, 12])
@pytest.mark.parametrize("size", SIZES)
def test_each_micro_batch_is_one_ranks(size, micro_batches):
    shares = [Share(rank, size, micro_batches) for rank in range(size)]
    if size > micro_batches:
        with pytest.raises(InputError, match=f"1 to {micro_batches} processes, evenly loaded 1"):
            shares[0].check()
        return
    assert sorted(number for share in shares for number in share.check().own) == list(range(micro_batches))
    counts = [len(share.own) for share in shares]
    assert counts == sorted(counts, reverse=True) and counts[0] == shares[0].most
    assert 0 < counts[-1] >= counts[0] - 1
    assert shares[0].each == (str(counts[0]) if counts[-1] == counts[0] else f"{counts[-1]} or {counts[0]}")


def test_the_world_sizes_that_work_are_named():
    with pytest.raises(InputError, match="^5 processes: .* 4 micro-batches .*evenly loaded 1, 2, 4$"):
        Share(0, 5, 4).check()
    with pytest.raises(InputError, match="360, ..., 1|..., 5040$"):
        Share(0, 6000, 5040).check()


@pytest.mark.parametrize("begun", [4, 6])
@pytest.mark.parametrize("accumulate", [1, 2, 3])
def test_an_even_share_is_what_hparams_computes(begun, accumulate):
    """The accumulation with which `size` GPUs have as many sequences in a step, by the paper's formula."""
    target = int(lamb_paper.stage_for_run(begun, 1024, accumulate, 128).sequences_per_step)
    for size in SIZES:
        share = Share(0, size, begun * accumulate)
        if share.micro_batches % size == 0:
            planned = lamb_paper.plan_for_target(size, 1024, target, recipe=lamb_paper.Recipe((1,)))
            assert planned.stages[0].accumulate == share.most == len(share.own)
        else:
            with pytest.raises(InputError, match="no whole accumulation"):
                lamb_paper.plan_for_target(size, 1024, target, recipe=lamb_paper.Recipe((1,)))


class Steps:
    """The first steps of a run of so many ranks: micro-batches by number, and the position after each."""

    def __init__(self, source, batching, micro_batches, size, position=0, count=8):
        feeds = []
        for rank in range(size):
            batches = PretrainingBatches(source, batching, 5, Share(rank, size, micro_batches))
            batches.seek(position)
            feeds.append((batches, iter(batches)))
        self.batches, self.positions = [], []
        for _ in range(count):
            of_ranks = []
            for batches, stream in feeds:
                before = batches.position
                of_ranks.append([])
                for _ in range(batches.micro_batches):
                    assert batches.position == before  # it stays where it is within a step
                    of_ranks[-1].append(next(stream))
            self.batches.append(change_feeds._by_number(of_ranks))
            (place,) = {batches.position for batches, _ in feeds}
            self.positions.append(place)


def same(first, second) -> bool:
    return len(first) == len(second) and all(
        np.array_equal(a, b) for one, other in zip(first, second) for a, b in zip(one, other)
    )


@pytest.mark.parametrize("accumulate", [1, 2, 3])
@pytest.mark.parametrize("begun", [4, 6])
@pytest.mark.parametrize(("use_avg_len", "num_buckets"), [(False, 1), (True, 4)])
def test_steps_are_the_same_for_any_number_of_ranks(
    store, vocab, begun, accumulate, use_avg_len, num_buckets
):
    source = TextSource(store, vocab, MaskingConfig(64, 0.3, 0.15, 10))
    batching = BatchingConfig(1024 if use_avg_len else 16, use_avg_len, num_buckets)
    micro_batches = begun * accumulate
    expected = Steps(source, batching, micro_batches, begun)
    for size in SIZES:
        if size > micro_batches:
            continue
        found = Steps(source, batching, micro_batches, size)
        assert found.positions == expected.positions
        assert all(same(*pair) for pair in zip(found.batches, expected.batches))
        later = Steps(source, batching, micro_batches, size, position=expected.positions[4], count=3)
        assert all(same(*pair) for pair in zip(later.batches, expected.batches[5:]))


class TestKills:
    """The attack of the reliability program's second figure."""

    @pytest.mark.parametrize("seed", range(3))
    def test_every_sample_comes_once_an_epoch(self, seed, tmp_path):
        outcome = change_feeds.pretraining(tmp_path, seed)
        assert outcome.errors == () and outcome.epochs >= 1 and outcome.repeated
        assert len(outcome.sizes) == 11

    @pytest.mark.parametrize("seed", range(3))
    def test_every_example_comes_once_an_epoch(self, seed):
        outcome = change_feeds.finetuning(seed)
        assert outcome.errors == () and outcome.epochs >= 1

    def test_it_can_fail(self, tmp_path):
        lost = change_feeds.pretraining(tmp_path, 0, damage=lambda position: position + 1)
        assert any("samples" in error for error in lost.errors)
        assert change_feeds.finetuning(0, damage=lambda position: position + 1).errors
