"""Comparing an operator and its gradients with a float64 reference in NumPy."""

from __future__ import annotations

import contextlib
import os
from functools import partial
from typing import Any, Callable, Iterator, Mapping, Sequence

import mxnet as mx
import numpy as np
import pytest

EPS = 1e-12
PREDICT, TRAIN = 1, 2  # what F.Dropout(F.ones((1,)), p=0.5) can be
IS_VARIANT = "OPERATORS_VARIANT" in os.environ  # in a process that test_variants.py has started
# For tests of what no instruction set and no number of threads changes, such as the order of MXNet's engine.
same_in_variants = pytest.mark.skipif(IS_VARIANT, reason="the same in every variant")


def run(
    operator: Callable[..., mx.nd.NDArray | list[mx.nd.NDArray]],
    arrays: Sequence[np.ndarray],
    output_gradient: np.ndarray | None = None,
    differentiable: Sequence[int] = (),
) -> tuple[np.ndarray, list[np.ndarray]]:
    """The operator's (first) output, and the gradients of sum(output * output_gradient) with respect to the
    arrays whose indices are in `differentiable`. Recorded in training mode."""
    inputs = [mx.nd.array(array, dtype=array.dtype) for array in arrays]
    for index in differentiable:
        inputs[index].attach_grad()
    with mx.autograd.record():
        output = operator(*inputs)
        output = output[0] if isinstance(output, (list, tuple)) else output
    if output_gradient is not None:
        output.backward(mx.nd.array(output_gradient, dtype=output.dtype))
    return output.asnumpy(), [inputs[index].grad.asnumpy() for index in differentiable]


def packed(*weights: mx.nd.NDArray, dtype: str) -> mx.nd.NDArray:
    with mx.autograd.pause():
        return mx.nd.bert_pack(*weights, num_weights=len(weights), dtype=dtype)


def assert_same(
    operators: Sequence[Callable[..., mx.nd.NDArray]],
    arrays: Sequence[np.ndarray],
    differentiable: Sequence[int],
    tolerance: float,
    sizes_of: Mapping[int, int],
    **options: Any,
) -> None:
    """Two operators with the same dropout: their outputs, and their gradients to `tolerance` of the largest
    number of each, or of that of another input where `sizes_of` names one. The first array has the output's
    shape."""
    dy = np.random.default_rng(3).standard_normal(arrays[0].shape).astype("float32")
    results = []
    for operator in operators:
        mx.random.seed(7)
        results.append(run(partial(operator, **options), arrays, dy, differentiable))
    (output, gradients), (expected, expected_gradients) = results
    np.testing.assert_allclose(output, expected, atol=1e-5)
    sizes = {index: np.abs(other).max() for index, other in zip(differentiable, expected_gradients)}
    for index, gradient, other in zip(differentiable, gradients, expected_gradients):
        assert gradient.shape == other.shape
        size = max(sizes[index], sizes[sizes_of.get(index, index)], 1e-3)
        assert np.abs(gradient - other).max() <= tolerance * size, index


def assert_close(found: np.ndarray, expected: np.ndarray, tolerance: float = 2e-6) -> None:
    """Relative to the largest number that is expected."""
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= tolerance * max(np.abs(expected).max(), 1e-6)


@contextlib.contextmanager
def fails(message: str) -> Iterator[None]:
    """An error of MXNet's with this message, after which nothing runs any more that could fail in another
    test: MXNet may run the backward pass of what has failed."""
    try:
        with pytest.raises(mx.MXNetError, match=message):
            yield
    finally:
        with contextlib.suppress(mx.MXNetError):
            mx.nd.waitall()


def rounded(array: np.ndarray) -> np.ndarray:
    """The nearest bfloat16 (of equally near ones the even) as float32; rounded to float32 first."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32)


def low(array: np.ndarray) -> np.ndarray:
    """`rounded` in float64, as references multiply it."""
    return rounded(array).astype(np.float64)


def kept_scale(rate: float) -> float:
    """The factor of elements that dropout keeps: operators drop at the rate in steps of 2^-16."""
    return 1 / (1 - round(rate * 2**16) / 2**16)


def assert_gradients_match(
    reference: Callable[..., np.ndarray],
    arrays: Sequence[np.ndarray],
    gradients: Sequence[np.ndarray],
    differentiable: Sequence[int],
    output_gradient: np.ndarray,
    rng: np.random.Generator,
    tolerance: float = 2e-4,
) -> None:
    """Each gradient times random directions against finite differences of sum(reference * output_gradient),
    in float64.

    A random direction sees every element of the gradient: a wrong one changes the product by about its error.
    The tolerance is relative to the norm of the gradient, which is the size that the product typically has.
    """
    doubles = [array.astype(np.float64) if array.dtype.kind == "f" else array for array in arrays]
    step, dy = 1e-5, output_gradient.astype(np.float64)
    for index, gradient in zip(differentiable, gradients):
        assert gradient.shape == arrays[index].shape
        assert np.isfinite(gradient).all()
        for _ in range(3):
            direction = rng.standard_normal(gradient.shape)
            moved = [doubles[index] + sign * step * direction for sign in (1, -1)]
            above, below = (
                float((reference(*doubles[:index], each, *doubles[index + 1 :]) * dy).sum()) for each in moved
            )
            expected = (above - below) / (2 * step)
            found = float((gradient.astype(np.float64) * direction).sum())
            size = max(float(np.linalg.norm(gradient.astype(np.float64))), 1e-6)
            assert abs(found - expected) < tolerance * size, f"input {index}: {found} instead of {expected}"
