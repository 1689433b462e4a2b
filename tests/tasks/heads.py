"""A task's head above a small BERT: its loss and gradients, for comparison with float64 NumPy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Mapping

import mxnet as mx
import numpy as np
import pytest

from bert.configuration import BertConfig, named_config
from bert.model import build_model, initialize, trained
from bert.operators import choose_operators

CONFIG = replace(named_config("bert_2_32_4"), activation="relu", epsilon=1e-3)
TOKENS = 50
SETTINGS = ("mxnet", "fused", "fused without padding")
WITHOUT_EFFECT = ("proj_key.bias",)  # a softmax is the same after a shift of all scores: no gradient
Parameters = Mapping[str, np.ndarray]


def network_of(task: Any, operators: str, dtype: str = "float32", config: BertConfig = CONFIG) -> Any:
    """The task's network with random parameters, none of them zero, the same in all SETTINGS."""
    operators, _, removes = operators.partition(" without ")
    bert = build_model(config, TOKENS, 0.0, task.heads)
    initialize(bert, mx.cpu(), "float32", seed=0)
    choose_operators(operators, dtype, mx.cpu())  # loads them
    network = task.network(bert, config, dtype, 0.0, operators)
    rng = np.random.default_rng(0)
    for parameter in trained(network).values():
        spread = mx.nd.array(rng.normal(0, 0.2, parameter.shape))
        parameter.set_data(parameter.data() + spread)
    network.pack_weights()
    if removes:
        network.remove_padding()
    return network


def texts(rows: int, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens, segments and lengths of random texts, of which the first has no padding."""
    rng = np.random.default_rng(1)
    valid = rng.integers(5, length, rows).astype(np.int32)
    valid[0] = length
    inside = np.arange(length) < valid[:, None]
    ids = (rng.integers(1, TOKENS, (rows, length)) * inside).astype(np.int32)
    segments = ((np.arange(length) >= valid[:, None] // 2) & inside).astype(np.int32)
    return ids, segments, valid


def run(task: Any, network: Any, batch: Any, factor: float) -> tuple[float, np.ndarray, np.ndarray]:
    """Loss, sums and outputs, with the backward pass."""
    with mx.autograd.record():
        loss, sums, outputs = network(*task.inputs(batch, mx.cpu()), mx.nd.array([factor]))
    loss.backward()
    assert loss.shape == (1,) and sums.shape == (len(task.sums),)
    assert {array.dtype for array in (loss, sums, outputs)} == {np.float32}
    return float(loss.asscalar()), sums.asnumpy(), outputs.asnumpy()


def values_of(network: Any, part: str = "data") -> dict[str, np.ndarray]:
    """Parameters by name, in float64; with part "grad" their gradients."""
    found = {name: getattr(parameter, part)() for name, parameter in trained(network).items()}
    return {name: array.asnumpy().astype(np.float64) for name, array in found.items()}


def check_task(
    task: Any,
    network: Any,
    batch: Any,
    reference: Callable[[Parameters], tuple[float, list, np.ndarray]],
    without_effect: tuple[str, ...] = WITHOUT_EFFECT,
) -> None:
    """Compares loss, sums, outputs and gradients, with losses divided by 3, with those of the reference."""
    loss, sums, outputs = run(task, network, batch, 1 / 3)
    expected, expected_sums, expected_outputs = reference(values_of(network))
    assert loss == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(sums, expected_sums, rtol=1e-5)
    np.testing.assert_allclose(outputs, expected_outputs, rtol=1e-4, atol=1e-4)
    check_gradients(network, lambda parameters: reference(parameters)[0], without_effect)


def check_gradients(
    network: Any, loss: Callable[[Parameters], float], without_effect: tuple[str, ...] = WITHOUT_EFFECT
) -> None:
    """Compares the gradient of every parameter, along a random direction, with central differences of
    `loss`, the reference. Parameters whose names end as one of `without_effect` have none."""
    found, parameters = values_of(network, "grad"), values_of(network)
    rng = np.random.default_rng(0)
    step = 1e-5
    for name, values in parameters.items():
        direction = rng.normal(size=values.shape)
        direction /= np.linalg.norm(direction)
        above, below = (loss({**parameters, name: values + sign * step * direction}) for sign in (1, -1))
        expected = (above - below) / (2 * step)
        free = name.endswith(without_effect)
        scale = 1 if free else max(abs(expected), 0.03 * np.linalg.norm(found[name]))
        assert abs((found[name] * direction).sum() - expected) <= 1e-4 * scale, name
        assert np.linalg.norm(found[name]) > 1e-4 or free, name
