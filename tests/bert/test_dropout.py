"""Dropout of activations and of the attention's probabilities apart, on both kinds of operators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest

from bert.configuration import Dropout
from bert.model import trainable
from tests.bert.test_fused import losses
from tests.training.small_runs import trained
from tests.training.tiny import gradients, random_batch, relative_difference, tiny_network

pytestmark = pytest.mark.usefixtures("fused_operators")
BATCH = random_batch(np.random.default_rng(1), 3, 16, 4)


def network_with(dropout: Dropout | float, operators: str = "fused", **options: Any) -> Any:
    return tiny_network(dropout=dropout, operators=operators, spread=0.1, **options)  # type: ignore[arg-type]


def loss_of(network: Any, seed: int = 0) -> float:
    """The training loss of one batch; gradients are left in the parameters."""
    network.pack_weights()
    mx.random.seed(seed)
    return losses(network, BATCH)[0]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("packs", [False, True])
def test_two_rates_that_drop_the_same_elements_are_one(packs: bool, dtype: str) -> None:
    """Rates count in steps of 2^-16. Two that differ by less compute with other operators, the same masks."""
    found, expected = (network_with(rates, dtype=dtype) for rates in (Dropout(0.1, 0.1 + 1e-9), 0.1))
    for network in (found, expected):
        network.count_squares()
        if packs:
            network.remove_padding()
    assert loss_of(found) == pytest.approx(loss_of(expected), rel=1e-6)
    assert relative_difference(gradients(found), gradients(expected)) < (1e-6 if dtype == "float32" else 1e-2)
    names, squares = found.counted_squares()
    kept = gradients(found)
    assert 0 < len(names) < len(expected.counted_squares()[0])
    total = sum(np.sum(kept[name].astype(np.float64) ** 2) for name in names)
    assert float(squares.asscalar()) == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize("operators", ["fused", "mxnet"])
def test_each_rate_drops_what_it_is_of(operators: str) -> None:
    """Probabilities do not matter where the attention's values are zero."""

    def found(rates: Dropout, values: bool) -> set[float]:
        network = network_with(rates, operators)
        if not values:
            for name, parameter in trainable(network.bert).items():
                if ".proj_value." in name:
                    parameter.set_data(mx.nd.zeros(parameter.shape))
        return {loss_of(network, seed) for seed in range(3)}

    assert len(found(Dropout(0, 0.5), values=True)) == 3
    assert len(found(Dropout(0, 0.5), values=False)) == 1
    assert len(found(Dropout(0.5, 0), values=False)) == 3
    assert found(Dropout(0, 0.5), values=False) == found(Dropout(0, 0), values=False)


@pytest.mark.parametrize("operators", ["fused", "mxnet"])
def test_the_attention_drops_its_share(operators: str) -> None:
    """One layer, linear in what is dropped but for the norm: means over masks approach the value without."""
    without = loss_of(network_with(0.0, operators, model="bert_1_32_4"))
    deviations = {}
    for rate in (0.02, 0.4):
        network = network_with(Dropout(0, rate), operators, model="bert_1_32_4")
        deviations[rate] = np.std([loss_of(network, seed) - without for seed in range(60)])
    # The variance of a dropped and rescaled sum is rate / (1 - rate) times a constant.
    expected = np.sqrt((0.4 / 0.6) / (0.02 / 0.98))
    assert deviations[0.4] / deviations[0.02] == pytest.approx(expected, rel=0.4)


def test_a_run_has_the_rates_that_are_given(tmp_path: Path) -> None:
    def parameters(*words: object) -> bytes:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        assert trained(folder / "run", "--num_steps", 2, "--operators", "fused", *words) == 0
        return (folder / "run/0000002.params").read_bytes()

    usual = parameters()
    assert usual == parameters("--attention_dropout", 0.1) == parameters("--dropout", 0.1)
    assert len({usual, parameters("--attention_dropout", 0.5), parameters("--dropout", 0.5)}) == 3
