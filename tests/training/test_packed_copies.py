"""The network's packed copies are those of its weights whenever a step uses them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import bert.operators
from bert.model import trainable
from bert.operators import load_operators
from tests.training.tiny import make_step, random_batch, tiny_network
from training.optimizer.moments import MomentType
from training.optimizer.optimizer import Optimizer

pytestmark = pytest.mark.skipif(not load_operators(), reason="the operators are not built")

BATCH = random_batch(np.random.default_rng(0), 4, 12, 3, least_masked=1)


def network_of(dtype: str = "bfloat16") -> Any:
    return tiny_network(operators="fused", dtype=dtype, spread=0.1)


def copies(network: Any) -> list[np.ndarray]:
    return [copy.asnumpy() for copy in network.packed_copies().values()]


def fresh(network: Any) -> list[np.ndarray]:
    network.pack_weights()
    return copies(network)


def same(found: list[np.ndarray], expected: list[np.ndarray]) -> bool:
    assert len(found) == len(expected) > 0
    return all(np.array_equal(*pair) for pair in zip(found, expected))


@pytest.mark.parametrize("kind", ["lamb", "adamw"])
@pytest.mark.parametrize(
    "dtype, state",
    [("bfloat16", "float32"), ("bfloat16", "bfloat16"), ("float32", "float32"), ("bfloat16x3", "float32")],
)
def test_they_follow_the_updates(dtype, state, kind, monkeypatch):
    monkeypatch.setattr(bert.operators, "has_amx", lambda cpuinfo: True)  # bfloat16x3 is slow without
    network = network_of(dtype)
    step, _ = make_step(network, kind=kind, moments=MomentType(state, 1))
    before = fresh(network)
    for number in (1, 2):
        assert step(number, [BATCH], lr=0.01).applied
        found = copies(network)
        assert not same(found, before)
        assert same(found, fresh(network))
        before = found


def test_they_stay_where_a_step_is_skipped():
    network = network_of()
    step, _ = make_step(network)
    assert step(1, [BATCH], lr=0.01).applied
    before = copies(network)
    word = network.bert.word_embed[0].weight
    held = word.data().copy()
    word.set_data(held * np.inf)
    assert not step(2, [BATCH], lr=0.01).applied
    word.set_data(held)
    assert same(copies(network), before)
    assert same(copies(network), fresh(network))


def optimizer_of(network: Any, left_out: str = "-", native: bool = True) -> Optimizer:
    named = {name: each.data() for name, each in trainable(network.bert).items() if left_out not in name}
    return Optimizer("lamb", list(named), list(named.values()), native=native)


def test_weights_that_are_not_updated():
    """Whole products may be frozen; one part of a copy may not, where the others are updated."""
    network = network_of()
    assert optimizer_of(network, "ffn_1").pack(network.packed_copies(), network.packed_dtype)
    assert not optimizer_of(network, "proj_query").pack(network.packed_copies(), network.packed_dtype)
    assert not optimizer_of(network, native=False).pack(network.packed_copies(), network.packed_dtype)


def test_one_network_an_optimizer():
    network = network_of()
    optimizer = optimizer_of(network)
    assert optimizer.pack(network.packed_copies(), network.packed_dtype)
    with pytest.raises(ValueError, match="another network"):
        optimizer.pack(network.packed_copies(), network.packed_dtype)
