"""The operators that a run gets, and the error where it cannot have them."""

from __future__ import annotations

import sys

import mxnet as mx
import pytest

import bert.operators
from base.errors import InputError
from bert.operators import choose_operators, load_operators
from tasks.pretraining.loss import FusedPretrainingLoss, PretrainingLoss
from tests.processes import run_command
from tests.training.tiny import tiny_network


@pytest.mark.parametrize(
    "wanted, dtype, device, expected",
    [
        ("auto", "float32", mx.cpu(), "fused"),
        ("fused", "float32", mx.cpu(), "fused"),
        ("auto", "bfloat16", mx.cpu(), "fused"),
        ("mxnet", "float32", mx.cpu(), "mxnet"),
        ("auto", "float16", mx.gpu(0), "mxnet"),
        ("mxnet", "float32", mx.gpu(0), "mxnet"),
    ],
)
def test_the_fused_operators_are_for_cpus(wanted: str, dtype: str, device: mx.Context, expected: str) -> None:
    assert choose_operators(wanted, dtype, device) == expected


@pytest.mark.parametrize(
    "wanted, dtype, device, message",
    [
        ("fused", "float32", mx.gpu(0), "--operators fused: they are for CPUs"),
        ("auto", "bfloat16", mx.gpu(0), "--dtype bfloat16 .* on GPUs use float16"),
        ("mxnet", "bfloat16", mx.cpu(), "--dtype bfloat16 .* without --operators mxnet"),
        ("mxnet", "bfloat16x3", mx.cpu(), "--dtype bfloat16x3 .* without --operators mxnet"),
    ],
)
def test_what_cannot_be_had_is_an_error(wanted: str, dtype: str, device: mx.Context, message: str) -> None:
    with pytest.raises(InputError, match=message):
        choose_operators(wanted, dtype, device)


def test_bfloat16x3_is_for_processors_with_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three products of bfloat16 are no faster than one of float32 without; tests compute them though."""
    monkeypatch.delenv("BERT_OPERATORS_BF16", raising=False)
    monkeypatch.setattr(bert.operators, "has_amx", lambda cpuinfo: True)
    assert choose_operators("auto", "bfloat16x3", mx.cpu()) == "fused"
    monkeypatch.setattr(bert.operators, "has_amx", lambda cpuinfo: False)
    with pytest.raises(InputError, match="--dtype bfloat16x3: this processor has no AMX"):
        choose_operators("auto", "bfloat16x3", mx.cpu())
    monkeypatch.setenv("BERT_OPERATORS_BF16", "rounded")
    assert choose_operators("auto", "bfloat16x3", mx.cpu()) == "fused"


def test_the_operators_stand_beside_mxnets_own() -> None:
    """Blocks take them as F.bert_*, where F is for arrays or for symbols."""
    own = mx.nd.FullyConnected
    assert load_operators()
    found = {name for name in dir(mx.nd) if name.startswith("bert_")}
    assert {"bert_bias_gelu", "bert_dense", "bert_attention"} <= found
    for module in (mx.nd.op, mx.sym, mx.sym.op):
        assert {name for name in dir(module) if name.startswith("bert_")} == found
    symbol = mx.sym.bert_bias_gelu(mx.sym.var("x"), mx.sym.var("bias"), form="erf")
    assert symbol.list_arguments() == ["x", "bias"] and mx.nd.FullyConnected is own


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an installation by hand, without make setup."""
    monkeypatch.setattr(bert.operators, "load_operators", lambda: False)
    assert choose_operators("auto", "float32", mx.cpu()) == "mxnet"
    for wanted, dtype in (("fused", "float32"), ("auto", "bfloat16")):
        with pytest.raises(InputError, match="make setup"):
            choose_operators(wanted, dtype, mx.cpu())


OLDER = """
import mxnet as mx, bert.operators as operators
register = operators._register

def older():
    register()
    del mx.nd.bert_muon

operators._register = older
assert operators.choose_operators("mxnet", "float32", mx.cpu()) == "mxnet"
operators.choose_operators("auto", "float32", mx.cpu())
"""


def test_a_library_that_is_older_than_the_code() -> None:
    """It may ignore attributes that it does not know, and is no silent way to other results or times."""
    found = run_command([sys.executable, "-c", OLDER])
    assert found.returncode == 1 and "is older than this code; make setup builds it anew" in found.stderr


@pytest.mark.parametrize("operators, expected", [("fused", FusedPretrainingLoss), ("mxnet", PretrainingLoss)])
def test_the_network_is_the_one_chosen(operators: str, expected: type) -> None:
    assert isinstance(tiny_network(operators=operators), expected)
