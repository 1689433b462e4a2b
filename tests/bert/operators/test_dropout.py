"""The random decisions of native/operators/dropout.h: those that the operators take, and their statistics.

The hash is written down a second time here. One test shows that an operator drops exactly what it says, so
the statistics of the other tests hold for the operators too and can use any key.
"""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from tests.bert.operators.checking import kept_scale, same_in_variants

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def mix(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def random_bits(key: int, rows: int, columns: int, first_row: int = 0) -> np.ndarray:
    """uint16 (rows, columns) for the rows from `first_row` on."""
    row = np.arange(rows, dtype="uint64")[:, None] + np.uint64(first_row)
    index = np.arange((columns + 1) // 2, dtype="uint32")
    with np.errstate(over="ignore"):
        seed = mix(np.uint64(key) + row * GOLDEN)
        x = (seed & np.uint64(0xFFFFFFFF)).astype("uint32") + index
        x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
        x = (x ^ (x >> np.uint32(13)) ^ (seed >> np.uint64(32)).astype("uint32")) * np.uint32(0xC2B2AE35)
    return (x ^ (x >> np.uint32(16))).view("uint16")[:, :columns]


def threshold(rate: float) -> int:
    return round(rate * 2**16)


def dropped(key: int, rows: int, columns: int, rate: float) -> np.ndarray:
    return random_bits(key, rows, columns) < threshold(rate)


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


def assert_like_coins(hits: np.ndarray, trials: int, rate: float) -> None:
    """Counts of hits, each in so many trials, are within bounds that chance leaves once in 10^7 times."""
    deviation = (hits - trials * rate) / np.sqrt(trials * rate * (1 - rate))
    assert np.abs(deviation).max() < 5.5, deviation


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9, 2**-16, 1 - 2**-16])
def test_operators_drop_what_the_hash_says_and_scale_the_rest(rate):
    factors, key = operator_factors((50, 77), rate)
    expected = np.where(dropped(key, 50, 77, rate), 0, kept_scale(rate))
    np.testing.assert_allclose(factors, expected, rtol=1e-5)


def test_a_rate_that_would_drop_all_is_an_error():
    for rate in (1 - 2**-18, 1, -0.1):
        with pytest.raises(mx.MXNetError, match="outside"):
            operator_factors((1, 4), rate)[0]


def keys() -> list[int]:
    """Random ones, and ones that look anything but random."""
    rng = np.random.default_rng(0)
    return [0, 1, 2, 1 << 32, 2**64 - 1, *(int(key) for key in rng.integers(0, 2**63, 59))]


@same_in_variants
@pytest.mark.parametrize("shape", [(1, 1 << 15), (256, 128), (1 << 13, 4)])
def test_bytes_are_uniform_for_every_key(shape):
    for key in keys():
        for first_row in (0, 2**32 - 5):
            values = random_bits(key, *shape, first_row).astype("uint16").reshape(-1, 1).view("uint8")
            for byte in values.T:
                found = np.bincount(byte, minlength=256)
                chi_square = ((found - byte.size / 256) ** 2).sum() / (byte.size / 256)
                # 255 on the average with a deviation of 22.6.
                assert 255 - 6 * 22.6 < chi_square < 255 + 7 * 22.6, (key, chi_square)


@same_in_variants
@pytest.mark.parametrize(
    "down, right", [(0, 1), (0, 2), (0, 3), (0, 16), (1, 0), (1, 1), (1, -1), (2, 2), (128, 0)]
)
def test_neighbours_decide_independently(down, right):
    rate, pairs = 0.1, np.zeros(4, int)
    for key in keys():
        decisions = dropped(key, 256 + down, 256, rate)
        one, other = decisions[:256], decisions[down:]
        columns = slice(max(0, -right), 256 - max(0, right))
        shifted = slice(max(0, right), 256 - max(0, -right))
        pairs += np.bincount((one[:, columns] + 2 * other[:, shifted]).ravel(), minlength=4)
    rate = threshold(rate) / 2**16
    odds = np.array([(1 - rate) ** 2, rate * (1 - rate), rate * (1 - rate), rate**2])
    for found, chance in zip(pairs, odds):
        assert_like_coins(found, pairs.sum(), chance)


@same_in_variants
def test_a_bit_of_the_key_or_the_row_changes_half_of_the_bits():
    shape = (1, 1 << 13)
    for key in keys()[:8]:
        bits = random_bits(key, *shape)
        for flipped in range(64):
            others = [random_bits(key ^ 1 << flipped, *shape)]
            if flipped < 32:
                others.append(random_bits(key, *shape, 1 << flipped))
            for other in others:
                changed = (bits ^ other).astype("uint16").reshape(-1, 1).view("uint8")
                each_bit = np.unpackbits(changed, axis=1).sum(axis=0)
                assert_like_coins(each_bit, shape[1], 0.5)
                assert_like_coins(each_bit.sum(), shape[1] * 16, 0.5)


def test_keys_of_consecutive_calls_differ_and_repeat_with_the_seed():
    drawn = []
    for seed in (1, 1, 2):
        mx.random.seed(seed)
        drawn.append([operator_factors((1, 64), 0.5)[1] for _ in range(20)])
    assert drawn[0] == drawn[1]
    assert len({*drawn[0], *drawn[2]}) == 40
