"""A step has the same micro-batches for any number of ranks, and every sample comes once an epoch."""

from __future__ import annotations

import pytest

import lamb_paper
from base.errors import InputError
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


class TestKills:
    """The attack of the reliability program's second figure."""

    @pytest.mark.parametrize("seed", [0, 5])  # batches of tokens and of sequences
    def test_every_sample_comes_once_an_epoch(self, seed, tmp_path):
        outcome = change_feeds.pretraining(tmp_path, seed)
        assert outcome.errors == () and outcome.epochs >= 1 and outcome.repeated
        assert len(outcome.sizes) == 11

    @pytest.mark.parametrize("seed", [0, 5])
    def test_every_example_comes_once_an_epoch(self, seed):
        outcome = change_feeds.finetuning(seed)
        assert outcome.errors == () and outcome.epochs >= 1

    def test_it_can_fail(self, tmp_path):
        lost = change_feeds.pretraining(tmp_path, 0, kills=2, damage=lambda position: position + 1)
        assert any("samples" in error for error in lost.errors)
        assert change_feeds.finetuning(0, kills=2, damage=lambda position: position + 1).errors
