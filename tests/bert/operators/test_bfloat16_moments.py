"""bert_lamb with moments in bfloat16, stored by stochastic rounding, against float64 NumPy."""

from __future__ import annotations

import hashlib
import sys
from typing import Any, Sequence

import mxnet as mx
import numpy as np
import pytest

from tests.bert.operators import test_lamb
from tests.bert.operators.checking import same_in_variants
from tests.bert.operators.test_lamb import BETA1, BETA2, SHAPES, arrays_of, moved, reference, update
from tests.processes import run_command

MANY = 1 << 18  # elements of a statistic


def truncated(values: np.ndarray) -> np.ndarray:
    """The upper halves of float32 numbers: uint16, which bfloat16's numbers are."""
    return (np.ascontiguousarray(values, dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16)


def widened(halves: np.ndarray) -> np.ndarray:
    return (halves.astype(np.uint32) << 16).view(np.float32)


def moment(values: np.ndarray) -> mx.nd.NDArray:
    """A live moment: bytes, with an axis of 2."""
    return mx.nd.array(truncated(values).view(np.uint8).reshape(*values.shape, 2), dtype="uint8")


def read(array: mx.nd.NDArray) -> np.ndarray:
    return widened(array.asnumpy().view(np.uint16)[..., 0])


def update_low(kinds: Sequence[Sequence[mx.nd.NDArray]], **attributes: Any) -> mx.nd.NDArray:
    return update(kinds, **{"state": "bfloat16", "seed": 3, **attributes})


def on_device(values: Sequence[Sequence[np.ndarray]]) -> list[list[mx.nd.NDArray]]:
    weights, gradients, *moments = values
    return [
        [mx.nd.array(array) for array in weights],
        [mx.nd.array(array) for array in gradients],
        *([moment(array) for array in kind] for kind in moments),
    ]


def values_of(shapes: Sequence[tuple], seed: int = 0) -> list[list[np.ndarray]]:
    """Weights, gradients, means and vars; the latter are numbers of bfloat16."""
    weights, gradients, *moments = arrays_of(shapes, seed)
    return [weights, gradients, *([widened(truncated(array)) for array in kind] for kind in moments)]


def stored(
    mean: np.ndarray, var: np.ndarray, gradient: np.ndarray, seed: int = 3, t: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and var after one update of one tensor."""
    kinds = on_device([[np.ones_like(mean)], [gradient], [mean], [var]])
    update_low(kinds, rescale=1.0, t=t, seed=seed, adapted="0")
    return read(kinds[2][0]), read(kinds[3][0])


def spacing(values: np.ndarray) -> np.ndarray:
    """The distance between the numbers of bfloat16 around each value: 7 bits behind the leading one."""
    return 2.0 ** (np.floor(np.log2(np.abs(values))) - 7)


@pytest.mark.parametrize("options", [{}, {"t": 3, "bias_correction": 1}, {"upper_bound": 0.01}], ids=str)
@pytest.mark.parametrize("adapted", ["1", "0"])
def test_one_update(options, adapted):
    flags = adapted * len(SHAPES)
    values = values_of(SHAPES)
    kinds = on_device(values)

    ratios = update_low(kinds, adapted=flags, decayed=flags, **options)

    _, means, variances, _ = reference(values, flags, flags, **options)
    for i, shape in enumerate(SHAPES):
        for kind, exact in ((2, means[i]), (3, variances[i])):
            found = read(kinds[kind][i])
            # One of the two neighbours; and float32's rounding before that, of a value that is close to one.
            assert (np.abs(found - exact) < spacing(exact) * (1 + 1e-3)).all(), shape
        np.testing.assert_array_equal(kinds[1][i].asnumpy(), values[1][i])
    # Weights and ratios are those of the moments as they are stored.
    for i, before in enumerate(values[0]):
        stored_now = (before, *(read(kind[i]) for kind in kinds[2:]))
        weight, ratio = moved(stored_now, (adapted, adapted), **options)
        assert ratios.asnumpy()[i] == pytest.approx(ratio, rel=1e-6)
        found = kinds[0][i].asnumpy().astype(np.float64) - before
        np.testing.assert_allclose(found, weight - before, rtol=3e-6, atol=np.abs(before).max() * 1.2e-7)


# Where a value lies between two numbers of bfloat16, and how large it is.
PLACES = (0.002, 0.25, 0.5, 0.9, 0.998)
SIZES = (1.0, -3e-5, 1.7e-20, 1e-36)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("place", PLACES)
def test_roundings_are_right_in_the_mean(place, size):
    """A mean of zero takes in a gradient, and becomes a known number of float32 before it is rounded."""
    lower = float(widened(truncated(np.array([size], np.float32)))[0])
    step = float(spacing(np.array([lower]))[0]) * np.sign(lower)
    gradient = np.float32((lower + place * step) / (1 - BETA1))
    exact = np.float32(np.float32(1) - np.float32(BETA1)) * gradient  # as the operator has it
    share = (float(exact) - lower) / step
    assert abs(share - place) < 0.01
    zeros, gradients = np.zeros(MANY, np.float32), np.full(MANY, gradient, np.float32)
    mean, _ = stored(zeros, zeros, gradients)
    assert set(np.unique(mean)) == {np.float32(lower), np.float32(lower + step)}
    upper = np.mean(mean != np.float32(lower))
    assert abs(upper - share) < 5 * np.sqrt(share * (1 - share) / MANY) + 2**-16


def test_the_second_moment_is_right_in_the_mean_over_steps():
    """The sum of 400 roundings of 64 elements: what repeats itself over steps or elements would show."""
    exact, total = 0.0, np.zeros(64)
    for t in range(1, 401):
        gradient = np.full(64, 0.3 + 0.001 * t, np.float32)
        _, var = stored(np.zeros(64, np.float32), np.zeros(64, np.float32), gradient, t=t)
        value = float(np.float32(np.float32(1) - np.float32(BETA2)) * (gradient[0] * gradient[0]))
        exact += value
        total += var
    # A rounding's variance is at most a quarter of the squared spacing.
    sigma = np.sqrt(400) * spacing(np.array([value]))[0] / 2
    assert np.abs(total - exact).max() < 4.5 * sigma
    assert abs(total.mean() - exact) < 4 * sigma / np.sqrt(64)


def test_roundings_are_independent_of_each_other():
    """Of mean and var, of neighbours, of successive steps, of tensors, of seeds."""
    gradients = np.full(MANY, 0.3, np.float32)
    zeros = np.zeros(MANY, np.float32)

    def signs(values: np.ndarray) -> np.ndarray:
        up = values == values.max()
        return (up - up.mean()) / up.std()

    first = [signs(each) for each in stored(zeros, zeros, gradients, t=1)]
    others = [stored(zeros, zeros, gradients, t=2)[0], stored(zeros, zeros, gradients, seed=4)[0]]
    two = on_device([[zeros] * 2, [gradients] * 2, [zeros] * 2, [zeros] * 2])
    update_low(two, rescale=1.0, adapted="00")
    np.testing.assert_array_equal(signs(read(two[2][0])), first[0])
    pairs = [
        first,
        *((first[0], signs(other)) for other in others),
        (first[0], signs(read(two[2][1]))),
        *((each[:-apart], each[apart:]) for each in first for apart in (1, 2, 16, 64, 1 << 16)),
    ]
    for one, other in pairs:
        assert abs(np.mean(one * other)) < 5 / np.sqrt(len(one))


def test_what_is_zero_stays_zero_and_what_is_no_number_stays_none():
    gradient = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1e-44, 3e38], np.float32)
    zeros = np.zeros_like(gradient)
    mean, var = stored(zeros, zeros, gradient)
    np.testing.assert_array_equal(mean[:5], [0.0, 0.0, np.nan, np.inf, -np.inf])
    np.testing.assert_array_equal(var[:5], [0.0, 0.0, np.nan, np.inf, np.inf])
    assert mean[6] == pytest.approx(3e37, rel=2**-7) and var[6] == np.inf
    rest = np.full(MANY, np.nan, np.float32)  # all random bits: none carries into the sign or the exponent
    assert np.isnan(stored(rest, rest, rest)[0]).all() and np.isnan(stored(rest, rest, rest)[1]).all()


def test_numbers_of_bfloat16_are_not_rounded():
    values = widened(np.arange(1, 0x7F80, dtype=np.uint16))
    values = np.concatenate([values, -values])
    zeros = np.zeros_like(values)
    kinds = on_device([[zeros], [zeros], [values], [np.abs(values)]])
    update_low(kinds, beta1=1.0, beta2=1.0, adapted="0", decayed="0")
    np.testing.assert_array_equal(read(kinds[2][0]), values)
    np.testing.assert_array_equal(read(kinds[3][0]), np.abs(values))


def test_wrong_arguments():
    good = values_of([(4,), (5,)])
    for wrong in ({"state": "float16"}, {"seed": "-1"}, {"seed": "1e3"}, {"seed": 1 << 64}, {"seed": ""}):
        with pytest.raises(mx.MXNetError):
            update_low(on_device(good), **wrong).wait_to_read()
    kinds = on_device(good)
    for i, array in ((2, mx.nd.zeros((4, 2))), (3, mx.nd.zeros((4,), dtype="uint8")), (2, mx.nd.zeros((4,)))):
        changed = [list(kind) for kind in kinds]
        changed[i][0] = array
        with pytest.raises(mx.MXNetError):
            update_low(changed).wait_to_read()
    with pytest.raises(mx.MXNetError):  # moments in bfloat16 for an update that was not asked for them
        update(kinds).wait_to_read()


def digest(seed: int = 3) -> str:
    """Of all results of three updates."""
    kinds = on_device(values_of(SHAPES))
    found = [update_low(kinds, t=t, seed=seed) for t in (1, 2, 3)]
    arrays = [array.asnumpy() for array in (*found, *kinds[0], *kinds[2], *kinds[3])]
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()


def test_the_seed_decides():
    assert digest((1 << 64) - 1) == digest((1 << 64) - 1) != digest()


@same_in_variants
def test_results_do_not_depend_on_the_number_of_threads():
    """With moments of either type."""
    expected = f"digests {test_lamb.digest()} {digest()}"
    code = (
        "from bert.operators import load_operators\n"
        "from tests.bert.operators import test_bfloat16_moments, test_lamb\n"
        "load_operators()\n"
        "print('digests', test_lamb.digest(), test_bfloat16_moments.digest())"
    )
    for threads in "13":
        assert expected in run_command([sys.executable, "-c", code], env={"OMP_NUM_THREADS": threads}).stdout
