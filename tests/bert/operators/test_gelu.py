"""bert_bias_gelu against float64 NumPy, finite differences and MXNet's own operators."""

from __future__ import annotations

import math
from functools import partial
from typing import Callable

import mxnet as mx
import numpy as np
import pytest

from tests.bert.operators.checking import run
from tests.bert.reference import activated


def normal_cdf(x: np.ndarray) -> np.ndarray:
    return 0.5 * np.fromiter(map(math.erfc, (-x / math.sqrt(2)).flat), float, x.size).reshape(x.shape)


def reference(x: np.ndarray, bias: np.ndarray | int, form: str = "erf") -> np.ndarray:
    return activated(x + bias, form)


def slope(h: np.ndarray, form: str) -> np.ndarray:
    if form == "relu":
        return (h > 0).astype(h.dtype)
    if form == "erf":
        return normal_cdf(h) + h * np.exp(-h * h / 2) / math.sqrt(2 * math.pi)
    bent = np.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3))
    inner = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * h * h)
    return (1 + bent) / 2 + h * inner * (1 - bent**2) / 2


@pytest.fixture(params=["erf", "tanh", "relu"])
def form(request):
    return request.param


def of(form: str) -> Callable[..., mx.nd.NDArray]:
    return partial(mx.nd.bert_bias_gelu, form=form)


def test_accuracy_between_minus_10_and_10(form):
    x = np.linspace(-10, 10, 100_001, dtype="float32").reshape(-1, 1)
    ones = np.ones_like(x)
    output, (gradient,) = run(of(form), [x, np.zeros(1, "float32")], ones, (0,))
    h = x.astype("float64")
    # The error of the approximation and of rounding to float32, which is 2.4e-7 near 4 and 4.8e-7 beyond 8.
    assert np.abs(output - reference(h, 0, form)).max() < 6e-7
    assert np.abs(gradient - slope(h, form)).max() < 4e-7
    tail = h < -6
    assert np.abs((output - reference(h, 0, form))[tail]).max() < 1e-9


def test_extremes(form):
    """Infinities in both forms of GELU as a run that diverges has to be noticed in."""
    x = np.array([1e30, -1e30, 3e38, -3e38, 40, -40, 0, np.nan, np.inf, -np.inf], "float32").reshape(-1, 1)
    output, (gradient,) = run(of(form), [x, np.zeros(1, "float32")], np.ones_like(x), (0,))
    last = 0 if form == "relu" else np.nan
    np.testing.assert_array_equal(output[:, 0], [x[0, 0], 0, x[2, 0], 0, 40, 0, 0, np.nan, np.inf, last])
    rest = [0, 0, 1, 0] if form == "relu" else [0.5, np.nan, np.nan, np.nan]
    np.testing.assert_allclose(gradient[:, 0], [1, 0, 1, 0, 1, 0, *rest], atol=1e-7)


def test_another_form_is_an_error():
    with pytest.raises(mx.MXNetError, match="form=sigmoid is none of erf, tanh and relu"):
        mx.nd.bert_bias_gelu(mx.nd.ones((1, 1)), mx.nd.ones(1), form="sigmoid").wait_to_read()


def test_output_may_be_the_input(form):
    rng = np.random.default_rng(1)
    x, bias = (mx.nd.array(rng.standard_normal(shape)) for shape in ((37, 29), (29,)))
    expected = of(form)(x, bias).asnumpy()
    of(form)(x, bias, out=x)
    np.testing.assert_array_equal(x.asnumpy(), expected)
