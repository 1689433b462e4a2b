"""bert_lamb and bert_global_norm against float64 NumPy.

tests/training/optimizer/test_optimizer.py follows the optimizer that uses them over many steps;
test_bfloat16_moments.py compares the results of any number of threads.
"""

from __future__ import annotations

import hashlib
from typing import Any, Sequence

import mxnet as mx
import numpy as np
import pytest

from tests.bert.operators.checking import same_in_variants

CHUNK = 1 << 16  # kChunkSize in native/operators/chunks.h
SHAPES = [(1,), (7,), (768,), (5, 3277), (CHUNK,)]
SHAPES += [(3 * CHUNK + 5,), (2, 3), (CHUNK + 1,), (16,), (5 * CHUNK,)]
HYPERPARAMETERS = {"lr": 0.01, "rescale": 0.5, "beta1": 0.9, "beta2": 0.999}
HYPERPARAMETERS.update(epsilon=1e-6, weight_decay=0.1)
BETA1, BETA2 = (float(np.float32(HYPERPARAMETERS[name])) for name in ("beta1", "beta2"))


def arrays_of(shapes: Sequence[tuple], seed: int = 0) -> list[list[np.ndarray]]:
    """Weights, gradients, means and vars."""
    rng = np.random.default_rng(seed)
    kinds = []
    for scale in (0.1, 0.02, 0.01):
        kinds.append([rng.normal(0, scale, shape).astype("float32") for shape in shapes])
    return [*kinds, [rng.uniform(1e-6, 1e-3, shape).astype("float32") for shape in shapes]]


def on_device(kinds: Sequence[Sequence[np.ndarray]]) -> list[list[mx.nd.NDArray]]:
    return [[mx.nd.array(array) for array in kind] for kind in kinds]


def update(kinds: Sequence[Sequence[mx.nd.NDArray]], **attributes: Any) -> mx.nd.NDArray:
    count = len(kinds[0])
    attributes = {"decayed": "1" * count, "adapted": "1" * count, "t": 1, "bias_correction": 0, **attributes}
    attributes = {"num_tensors": count, **HYPERPARAMETERS, **attributes}
    return mx.nd.bert_lamb(*(array for kind in kinds for array in kind), **attributes)


def moved(
    arrays: Sequence[np.ndarray],
    flags: tuple[str, str],
    t: int = 1,
    bias_correction: int = 0,
    lower_bound: float = 0.0,
    upper_bound: float = np.inf,
) -> tuple[np.ndarray, float]:
    """Of a weight with its new moments: the new weight, and the ratio, in float64. `flags`: whether it decays
    and whether it is adapted."""
    w, m, v = (array.astype(np.float64) for array in arrays)
    corrections = (1 - BETA1**t, 1 - BETA2**t) if bias_correction else (1, 1)
    u = m / corrections[0] / (np.sqrt(v / corrections[1]) + HYPERPARAMETERS["epsilon"])
    u += int(flags[0]) * HYPERPARAMETERS["weight_decay"] * w
    norms = np.clip(np.linalg.norm(w), lower_bound, upper_bound), np.linalg.norm(u)
    ratio = norms[0] / norms[1] if flags[1] == "1" and min(norms) > 0 else 1.0
    return w - HYPERPARAMETERS["lr"] * ratio * u, ratio


def reference(
    kinds: Sequence[Sequence[np.ndarray]], decayed: str, adapted: str, **options: Any
) -> tuple[list[np.ndarray], ...]:
    """New weights, means and vars, and the ratios, in float64."""
    results: tuple[list, ...] = ([], [], [], [])
    for i, (w, g, m, v) in enumerate(zip(*kinds)):
        w, g, m, v = (array.astype(np.float64) for array in (w, g, m, v))
        g = g * HYPERPARAMETERS["rescale"]
        m, v = BETA1 * m + (1 - BETA1) * g, BETA2 * v + (1 - BETA2) * g * g
        weight, ratio = moved((w, m, v), (decayed[i], adapted[i]), **options)
        for result, value in zip(results, (weight, m, v, ratio)):
            result.append(value)
    return results


@pytest.mark.parametrize(
    "options", [{}, {"t": 3, "bias_correction": 1}, {"lower_bound": 50.0}, {"upper_bound": 0.01}], ids=str
)
@pytest.mark.parametrize("decayed, adapted", [("1111111111", "1111111111"), ("1100110011", "1010101010")])
def test_one_update(decayed, adapted, options):
    values = arrays_of(SHAPES)
    kinds = on_device(values)

    ratios = update(kinds, decayed=decayed, adapted=adapted, **options)

    weights, means, variances, expected = reference(values, decayed, adapted, **options)
    np.testing.assert_allclose(ratios.asnumpy(), expected, rtol=1e-6)
    for i, shape in enumerate(SHAPES):
        found = kinds[0][i].asnumpy().astype(np.float64) - values[0][i]
        change = weights[i] - values[0][i]
        # A change is known as precisely as float32 resolves the weight.
        rounding = np.abs(weights[i]).max() * 1.2e-7
        np.testing.assert_allclose(found, change, rtol=3e-6, atol=rounding, err_msg=str(shape))
        np.testing.assert_array_equal(kinds[1][i].asnumpy(), values[1][i])
        np.testing.assert_allclose(kinds[2][i].asnumpy(), means[i], rtol=1e-5, atol=1e-8)
        np.testing.assert_allclose(kinds[3][i].asnumpy(), variances[i], rtol=1e-5)


@pytest.mark.parametrize("zero", [[0], [1, 2, 3]], ids=["weight", "gradient and moments"])
def test_zero_norms_take_ratio_one(zero):
    values = arrays_of([(100,), (CHUNK + 3,)])
    for index in zero:
        values[index] = [np.zeros_like(array) for array in values[index]]
    kinds = on_device(values)
    # Without decay a gradient and moments of zero make u zero.
    ratios = update(kinds, decayed="00")
    weights = reference(values, "00", "11")[0]
    np.testing.assert_array_equal(ratios.asnumpy(), [1.0, 1.0])
    for found, expected in zip(kinds[0], weights):
        np.testing.assert_allclose(found.asnumpy(), expected, rtol=1e-5, atol=1e-9)


def test_views_change_their_part_of_an_array_only():
    values = arrays_of([(3 * CHUNK + 100,)])
    kinds = on_device(values)
    part = slice(33, 2 * CHUNK + 70)  # neither end where a vector or a chunk has one
    update([[kind[0][part]] for kind in kinds])
    weights, means, variances, _ = reference([[kind[0][part]] for kind in values], "1", "1")
    for kind, expected in zip((0, 2, 3), (weights, means, variances)):
        found = kinds[kind][0].asnumpy()
        np.testing.assert_allclose(found[part], expected[0], rtol=1e-5, atol=1e-7)
        np.testing.assert_array_equal(found[: part.start], values[kind][0][: part.start])
        np.testing.assert_array_equal(found[part.stop :], values[kind][0][part.stop :])


def test_a_gradient_that_is_not_finite_reaches_its_tensor_only():
    values = arrays_of([(40,), (CHUNK * 2,), (40,)])
    values[1][1][CHUNK] = np.nan
    kinds = on_device(values)
    ratios = update(kinds).asnumpy()
    assert np.isnan(ratios[1]) and np.isfinite(ratios[[0, 2]]).all()
    for i in (0, 2):
        assert np.isfinite(kinds[0][i].asnumpy()).all()


@same_in_variants
def test_the_update_waits_for_the_gradients_and_the_forward_pass_for_the_update():
    """The engine must know what is written. Long chains of queued operators, against the same with waits."""
    rng = np.random.default_rng(1)
    start = rng.normal(0, 0.07, (256, 256)).astype("float32")
    data = mx.nd.array(rng.normal(0, 1, (256, 256)))
    found = []
    for wait in (mx.nd.waitall, lambda: None):
        weight = mx.nd.array(start)
        weight.attach_grad()
        states = [[mx.nd.zeros(weight.shape)], [mx.nd.zeros(weight.shape)]]
        outputs = []
        for t in range(1, 6):
            with mx.autograd.record():
                hidden = data
                for _ in range(4):
                    hidden = mx.nd.tanh(mx.nd.dot(hidden, weight))
            wait()
            hidden.backward()
            wait()
            update([[weight], [weight.grad], *states], t=t)
            outputs.append(mx.nd.dot(data, weight))
            wait()
        found.append([array.asnumpy() for array in (*outputs, weight, states[0][0], states[1][0])])
    for waited, queued in zip(*found):
        np.testing.assert_array_equal(waited, queued)
    assert np.abs(found[0][-3] - start).max() > 1e-3


@same_in_variants
@pytest.mark.parametrize(
    "rows, columns, units", [(64, 768, 3072), (1024, 768, 768), (256, 256, 512), (1, 96, 32)]
)
def test_weights_that_mxnet_has_used_in_predict_mode(rows, columns, units):
    """MXNet may keep a weight in oneDNN's layout after inference: the update must reach it."""
    values = arrays_of([(units, columns)])
    kinds = on_device(values)
    for _ in range(2):
        for wait in (False, True):
            mx.nd.FullyConnected(mx.nd.ones((rows, columns)), kinds[0][0], no_bias=True, num_hidden=units)
            if wait:
                mx.nd.waitall()
    update(kinds)
    weights = reference(values, "1", "1")[0]
    np.testing.assert_allclose(kinds[0][0].asnumpy(), weights[0], rtol=1e-5, atol=1e-7)


def test_wrong_arguments():
    kinds = on_device(arrays_of([(4,), (5,)]))
    for wrong in ({"decayed": "1"}, {"adapted": "12"}, {"lr": "much"}):
        with pytest.raises(mx.MXNetError):
            update(kinds, **wrong).wait_to_read()
    for i, array in ((1, mx.nd.zeros((3,))), (0, mx.nd.zeros((4,), dtype="float64"))):
        changed = [list(kind) for kind in kinds]
        changed[i][0] = array
        with pytest.raises(mx.MXNetError):
            update(changed).wait_to_read()
    with pytest.raises(mx.MXNetError):
        mx.nd.bert_global_norm(mx.nd.zeros((4,), dtype="float16"), num_tensors=1).wait_to_read()


def norm(arrays: Sequence[np.ndarray]) -> float:
    return float(mx.nd.bert_global_norm(*map(mx.nd.array, arrays), num_tensors=len(arrays)).asscalar())


def test_global_norm():
    for count in (1, 2, len(SHAPES)):
        gradients = arrays_of(SHAPES, seed=count)[1][-count:]
        expected = np.sqrt(sum(np.sum(array.astype(np.float64) ** 2) for array in gradients))
        assert norm(gradients) == pytest.approx(expected, rel=1.2e-7)
    many = np.full((4 << 20,), 0.1, "float32")
    assert norm([many]) == pytest.approx(float(many[0]) * 2048, rel=1.2e-7)
    assert norm([np.zeros((3,), "float32")]) == 0.0


def test_global_norm_at_the_ends_of_float32():
    assert norm([np.full((100,), 1e30, "float32")]) == pytest.approx(1e31, rel=1e-6)
    assert norm([np.full((100,), 1e-30, "float32")]) == pytest.approx(1e-29, rel=1e-6)
    assert norm([np.full((4,), 3e38, "float32")]) == np.inf


def digest() -> str:
    """Of all results of three updates and the norm."""
    kinds = on_device(arrays_of(SHAPES))
    found = [update(kinds, t=t) for t in (1, 2, 3)]
    found.append(mx.nd.bert_global_norm(*kinds[1], num_tensors=len(SHAPES)))
    arrays = [array.asnumpy() for array in (*found, *kinds[0], *kinds[2], *kinds[3])]
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()
