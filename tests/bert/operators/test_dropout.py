"""The random decisions of native/operators/dropout.h: those that the operators take, and their statistics.

The hash is written down a second time here. One test shows that an operator drops exactly what it says, so
the statistics of the other tests hold for the operators too and can use any key.
"""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from bert.operators import load_operators

if not load_operators():
    pytest.skip("the operators are not built", allow_module_level=True)

RATES = [0.1, 0.5, 0.9]


def mix(x: np.ndarray) -> np.ndarray:
    x = x ^ (x >> np.uint32(16))
    x = x * np.uint32(0x85EBCA6B)
    x = x ^ (x >> np.uint32(13))
    x = x * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))


def random_bits(key: int, count: int, begin: int = 0) -> np.ndarray:
    """uint32 (count,) for the indices from `begin` on."""
    index = (np.arange(begin, begin + count) & 0xFFFFFFFF).astype("uint32")
    low, high = np.uint32(key & 0xFFFFFFFF), np.uint32(key >> 32)
    with np.errstate(over="ignore"):
        return mix(mix(index * np.uint32(0x9E3779B9) + low) ^ high)


def dropped(key: int, count: int, rate: float) -> np.ndarray:
    return random_bits(key, count) < np.uint32(rate * 2**32)


def operator_factors(shape: tuple[int, int], rate: float) -> tuple[np.ndarray, int]:
    """Factors by which bert_add_norm multiplied the elements, and the key it drew."""
    x, residual = mx.nd.random.normal(shape=shape), mx.nd.random.normal(shape=shape)
    x.attach_grad()
    residual.attach_grad()
    row, mode = mx.nd.ones(shape[1:]), mx.nd.array([2])
    with mx.autograd.record():
        output, key = mx.nd.bert_add_norm(x, row, residual, row, row, mode, dropout=rate, eps=1e-12)
    output.backward(mx.nd.random.normal(shape=shape))
    return (x.grad / residual.grad).asnumpy(), int(key.asnumpy().view("uint64")[0])


def assert_like_coins(hits: np.ndarray, trials: int, rate: float, sigmas: float = 5.5) -> None:
    """Counts of hits, each in so many trials, are within bounds that chance leaves once in 10^7 times."""
    deviation = (hits - trials * rate) / np.sqrt(trials * rate * (1 - rate))
    assert np.abs(deviation).max() < sigmas, deviation


@pytest.mark.parametrize("rate", RATES)
def test_operators_drop_what_the_hash_says_and_scale_the_rest(rate):
    factors, key = operator_factors((50, 77), rate)
    expected = np.where(dropped(key, 50 * 77, rate), 0, 1 / (1 - rate)).reshape(50, 77)
    np.testing.assert_allclose(factors, expected, rtol=1e-5)


@pytest.mark.parametrize("rate", RATES)
def test_rate_over_all_elements_and_by_row_and_column(rate):
    mx.random.seed(1)
    zeros = np.stack([operator_factors((200, 300), rate)[0] == 0 for _ in range(4)])
    assert_like_coins(zeros.sum(), zeros.size, rate)
    for axes in ((0,), (0, 1), (0, 2), (1, 2)):
        counts = zeros.sum(axis=axes)
        if zeros.size // counts.size > 100:
            assert_like_coins(counts, zeros.size // counts.size, rate)
    # Whether an element is dropped says nothing about its neighbours or about the next call.
    for one, other in (
        (zeros[:, :, 1:], zeros[:, :, :-1]),
        (zeros[:, 1:], zeros[:, :-1]),
        (zeros[1:], zeros[:-1]),
    ):
        assert_like_coins((one & other).sum(), one.size, rate**2)


def keys() -> list[int]:
    """Random ones, and ones that look anything but random."""
    rng = np.random.default_rng(0)
    return [0, 1, 2, 1 << 32, 2**64 - 1, *(int(key) for key in rng.integers(0, 2**63, 59))]


def test_bytes_are_uniform_for_every_key():
    count = 1 << 14
    for key in keys():
        for begin in (0, 2**32 - count // 2):
            values = random_bits(key, count, begin).view("uint8").reshape(count, 4)
            for byte in values.T:
                found = np.bincount(byte, minlength=256)
                chi_square = ((found - count / 256) ** 2).sum() / (count / 256)
                # 255 on the average with a deviation of 22.6.
                assert 255 - 6 * 22.6 < chi_square < 255 + 7 * 22.6, (key, chi_square)


@pytest.mark.parametrize("rate", RATES)
def test_neighbours_decide_independently(rate):
    count = 1 << 16
    for distance in (1, 2, 3, 16, 128, 768, 1024, 3072):
        pairs = np.zeros(4, int)
        for key in keys():
            one = dropped(key, count + distance, rate)
            pairs += np.bincount(one[:count] + 2 * one[distance:], minlength=4)
        odds = np.array([(1 - rate) ** 2, rate * (1 - rate), rate * (1 - rate), rate**2])
        for found, chance in zip(pairs, odds):
            assert_like_coins(found, pairs.sum(), chance)


def test_a_bit_of_the_key_changes_half_of_the_bits():
    count = 1 << 12
    for key in keys()[:8]:
        bits = random_bits(key, count)
        for flipped in range(64):
            changed = (bits ^ random_bits(key ^ 1 << flipped, count)).view("uint8").reshape(count, 4)
            each_bit = np.unpackbits(changed, axis=1).sum(axis=0)
            assert_like_coins(each_bit, count, 0.5)
            assert_like_coins(each_bit.sum(), count * 32, 0.5)


def test_keys_of_consecutive_calls_differ_and_repeat_with_the_seed():
    drawn = []
    for seed in (1, 1, 2):
        mx.random.seed(seed)
        drawn.append([operator_factors((1, 64), 0.5)[1] for _ in range(20)])
    assert drawn[0] == drawn[1]
    assert len({*drawn[0], *drawn[2]}) == 40
