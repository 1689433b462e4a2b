from __future__ import annotations

import itertools

import numpy as np
import pytest

from data.buckets import bucket_bounds, epoch_order, padded_to, rows_per_batch


def test_padded_lengths_are_multiples_of_8_within_the_maximum():
    assert [padded_to(n, 100) for n in (1, 8, 9, 96, 97, 100)] == [8, 8, 16, 96, 100, 100]


@pytest.mark.parametrize("num_buckets", [1, 2, 3, 4, 5])
def test_bounds_have_the_least_padding_of_all_choices(num_buckets):
    generator = np.random.default_rng(num_buckets)
    lengths = np.concatenate([generator.integers(5, 60, 300), np.full(400, 61)])
    bounds = bucket_bounds(lengths, num_buckets, 61)

    def padding(chosen):
        chosen = np.array(chosen)
        return int((chosen[np.searchsorted(chosen, lengths)] - lengths).sum())

    possible = [8, 16, 24, 32, 40, 48, 56]
    best = min(padding([*c, 61]) for n in range(num_buckets) for c in itertools.combinations(possible, n))
    assert len(bounds) <= num_buckets and bounds[-1] == 61 and list(bounds) == sorted(set(bounds))
    assert padding(bounds) == best


def test_more_buckets_than_lengths_give_one_each():
    assert bucket_bounds(np.array([9, 9, 30]), 10, 128) == (16, 32)
    assert bucket_bounds(np.array([128]), 3, 128) == (128,)


def test_rows_by_tokens_never_pad_beyond_the_tokens_allowed():
    for bound in range(8, 513, 8):
        rows = rows_per_batch(bound, 8192, True)
        assert rows * bound <= 8192 < (rows + 1) * bound
    assert rows_per_batch(512, 100, True) == 1
    assert rows_per_batch(512, 100, False) == 100


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("count", [5, 64, 97, 1000])
@pytest.mark.parametrize("shuffle", [False, True])
def test_an_epoch_has_every_sample_once_in_batches_of_one_bucket(world_size, count, shuffle):
    lengths = np.random.default_rng(count).integers(5, 65, count)
    bounds, rows = (16, 40, 64), (8, 5, 3)
    rng = np.random.default_rng(0) if shuffle else None
    order = epoch_order(lengths, bounds, rows, world_size, rng)
    assert sorted(order.samples.tolist()) == list(range(count))
    seen, uneven = [], 0
    for batch in range(len(order)):
        shares = [order.share(batch, rank, world_size) for rank in range(world_size)]
        sizes = [len(share) for share in shares]
        padded = int(order.padded[batch])
        assert min(sizes) >= 1 and max(sizes) - min(sizes) <= 1
        assert max(lengths[np.concatenate(shares)]) <= padded
        uneven += sizes != [rows[bounds.index(padded)]] * world_size
        seen += np.concatenate(shares).tolist()
    assert sorted(seen) == list(range(count))
    assert uneven <= 2
    if shuffle and count == 1000:
        assert (np.diff(order.padded) < 0).sum() > 10, "batches of the buckets alternate"


@pytest.mark.parametrize("left", [1, 2, 3, 4])
def test_a_last_batch_too_small_for_the_ranks_takes_from_the_one_before(left):
    order = epoch_order(np.full(20 + left, 8), (8,), (2,), 5, None)
    assert np.diff(order.starts).tolist() == [10, 5 + left, 5]
    assert sorted(order.samples.tolist()) == list(range(20 + left))


def test_rows_cannot_be_split_so_samples_are_repeated():
    order = epoch_order(np.full(12, 8), (8,), (1,), 5, None)
    assert np.diff(order.starts).tolist() == [5, 5, 5]
    assert sorted(order.samples.tolist()) == sorted([*range(12), 10, 11, 10])


def test_fewer_samples_than_ranks_are_repeated():
    order = epoch_order(np.array([8, 8]), (8,), (4,), 5, None)
    assert [len(order.share(0, rank, 5)) for rank in range(5)] == [1] * 5
    assert set(order.samples.tolist()) == {0, 1}


def test_only_what_is_left_over_moves_to_a_longer_bucket():
    lengths = np.repeat([8, 16], [21, 20])
    order = epoch_order(lengths, (8, 16), (4, 4), 2, np.random.default_rng(1))
    moved = sum(
        int((lengths[order.samples[order.starts[b] : order.starts[b + 1]]] == 8).sum())
        for b in range(len(order))
        if order.padded[b] == 16
    )
    assert moved == 21 % 8
