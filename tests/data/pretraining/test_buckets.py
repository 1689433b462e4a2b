"""Length buckets, and random orders: of an epoch's blocks, and of anything."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from data.pretraining.buckets import bucket_bounds, epoch_order, length_counts, padded_to, rows_per_batch
from data.pretraining.randomness import permuted
from tests.data.pretraining.chance import UNLIKELY, chi_square_p


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


def blocks_of(order):
    return [order.block(place) for place in range(len(order))]


@pytest.mark.parametrize("count", [1, 5, 64, 97, 1000])
@pytest.mark.parametrize("key", [None, 0, 0xFEDCBA9876543210])
def test_an_epoch_has_every_sample_once_in_blocks_of_one_bucket(count, key):
    lengths = np.random.default_rng(count).integers(5, 65, count)
    bounds, rows = (16, 40, 64), (8, 5, 3)
    order = epoch_order(lengths, bounds, rows, key)
    blocks = blocks_of(order)
    assert sorted(np.concatenate([samples for samples, _ in blocks]).tolist()) == list(range(count))
    for samples, padded in blocks:
        assert samples.dtype == np.int64 and lengths[samples].max() <= padded
    smaller = [padded for samples, padded in blocks if len(samples) != rows[bounds.index(padded)]]
    assert smaller in ([], [64])
    sizes, padded = order.shapes()
    assert sizes.tolist() == [len(samples) for samples, _ in blocks]
    assert padded.tolist() == [padded for _, padded in blocks]


def test_only_what_is_left_over_moves_to_a_longer_bucket():
    lengths = np.repeat([8, 16, 24], [21, 20, 3])
    for key in (None, 1, 2):
        moved = {16: 0, 24: 0}
        for samples, padded in blocks_of(epoch_order(lengths, (8, 16, 24), (4, 4, 4), key)):
            if padded > 8:
                moved[padded] += int((lengths[samples] < padded).sum())
        assert moved == {16: 1, 24: 1}


def test_without_a_key_samples_and_blocks_are_in_order():
    lengths = np.array([16, 8, 8, 16, 8, 16, 8, 8])
    blocks = blocks_of(epoch_order(lengths, (8, 16), (2, 2), None))
    assert [samples.tolist() for samples, _ in blocks] == [[1, 2], [4, 6], [7, 0], [3, 5]]


def test_a_key_shuffles_samples_over_blocks_and_blocks_over_the_epoch():
    """A sample's place in the epoch, and its company, are uniform: over 3000 keys, at a tiny size."""
    lengths = np.full(6, 8)
    place, partner = np.zeros((6, 3)), np.zeros((6, 6))
    for key in range(3000):
        for at, (samples, _) in enumerate(blocks_of(epoch_order(lengths, (8,), (2,), 7919 * key))):
            place[samples, at] += 1
            partner[samples[0], samples[1]] += 1
            partner[samples[1], samples[0]] += 1
    # Columns of a row are a uniform choice; rows are tested one by one, as they depend on each other.
    for row in range(6):
        assert chi_square_p(place[row], np.ones(3)) > UNLIKELY
        assert chi_square_p(np.delete(partner[row], row), np.ones(5)) > UNLIKELY
    lengths = np.repeat([8, 16, 24], 400)
    _, padded = epoch_order(lengths, (8, 16, 24), (4, 4, 4), 5).shapes()
    alike = int((padded[1:] == padded[:-1]).sum())
    assert 70 < alike < 130, "blocks of the buckets alternate: a third of 299 follow one of their own"


def test_counts_of_lengths_are_right_across_chunks():
    lengths = np.random.default_rng(2).integers(5, 129, (1 << 20) + 17).astype(np.uint16)
    assert length_counts(lengths).tolist() == np.bincount(lengths).tolist()


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 16, 17, 1000, 65536, 65537, 300_001])
def test_a_permutation_has_each_once(count):
    order = permuted(np.arange(count), count, key=7)
    assert order.dtype == np.int64
    assert (np.sort(order) == np.arange(count)).all()
    places = np.random.default_rng(0).permutation(count)[:500]  # any part alone, in any order
    assert (permuted(places, count, key=7) == order[places]).all()
    assert len(permuted(np.arange(0), count, key=7)) == 0


def test_permutations_beyond_32_bits():
    count = (1 << 40) + 5
    places = np.arange(count - 100_000, count)
    order = permuted(places, count, key=1)
    assert order.min() >= 0 and order.max() < count
    assert len(np.unique(order)) == len(order)
    # Places side by side go anywhere: the mean of 100,000 uniform numbers has a standard error of 0.0009.
    assert abs(order.mean() / count - 0.5) < 0.005


def test_keys_give_all_orders_of_four_equally_often():
    drawn = 2400
    orders = Counter(tuple(permuted(np.arange(4), 4, key).tolist()) for key in range(drawn))
    observed = np.array([orders[order] for order in itertools.permutations(range(4))])
    assert chi_square_p(observed, np.full(24, drawn / 24)) > UNLIKELY
