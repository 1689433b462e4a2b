"""The count of parameters against the model's own, and the estimate against measured runs."""

from __future__ import annotations

import math
from dataclasses import replace

import mxnet as mx
import pytest

from bert.configuration import BertConfig, named_config
from bert.memory import (
    FUSED,
    MXNET,
    TILES,
    Batch,
    activation_bytes,
    gradient_bytes_in_flight,
    packed_bytes,
    parameter_count,
)
from bert.model import build_model, initialize, trainable
from tasks.pretraining.task import Pretraining
from training.estimate import PROCESS


def test_parameters_are_those_of_the_model() -> None:
    odd = BertConfig(3, 32, 4, 72, 40, 3)
    for config in (odd, replace(odd, tied=False), named_config("bert_1_32_2")):
        model = build_model(config, 50)
        initialize(model, mx.cpu(), "float32", seed=0)
        sizes = {name: math.prod(each.shape) for name, each in trainable(model).items()}
        encoder = build_model(config, 50, heads=())._collect_params_with_prefix()
        assert parameter_count(config, 50) == sum(sizes.values())
        assert parameter_count(config, 50, False) == sum(sizes[name] for name in sizes if name in encoder)


def test_bert_base_and_large_have_the_published_numbers() -> None:
    """110 M and 340 M (Devlin et al., section 3), with the heads of pretraining."""
    assert parameter_count(named_config("bert_12_768_12"), 30522) == 110_106_428
    assert round(parameter_count(named_config("bert_24_1024_16"), 30522) / 1e6) == 336


def test_a_model_of_any_size_is_counted_at_once() -> None:
    assert parameter_count(named_config("bert_10000_1000000_1"), 1 << 24) > 10**17


# Peak of the resident memory in MiB (VmHWM) of one process after 3 steps with random tokens, vocabulary
# 30,522; one core of a Zen 5 EPYC with AVX-512 BF16 (MXNet's operators but the first row: of a Sapphire
# Rapids Xeon), MXNet 1.9.1, glibc 2.36.
@pytest.mark.parametrize(
    "model, length, rows, operators, accumulate, measured",
    [
        ("bert_1_32_2", 32, 2, FUSED, 1, 315),
        ("bert_2_128_2", 32, 32, FUSED, 1, 371),
        ("bert_4_256_4", 128, 16, FUSED, 1, 683),
        ("bert_4_256_4", 128, 64, FUSED, 1, 1264),
        ("bert_4_256_4", 128, 16, MXNET, 1, 914),
        ("bert_4_256_4", 128, 64, MXNET, 1, 2038),
        ("bert_4_256_4", 512, 16, MXNET, 1, 2825),
        ("bert_4_256_4", 512, 16, TILES, 1, 1114),
        ("bert_6_512_8", 128, 16, FUSED, 2, 1373),
        ("bert_6_512_8", 128, 16, MXNET, 2, 2005),
        ("bert_6_512_8", 128, 16, TILES, 1, 1219),
        ("bert_6_512_8", 128, 64, FUSED, 1, 2520),
        ("bert_6_512_8", 128, 64, TILES, 1, 2207),
        ("bert_12_768_12", 128, 8, FUSED, 1, 2656),
        ("bert_12_768_12", 128, 8, TILES, 1, 2903),
    ],
)
def test_the_estimate_is_within_a_tenth_of_what_was_measured(
    model: str, length: int, rows: int, operators: str, accumulate: int, measured: int
) -> None:
    config, vocab_size = named_config(model), 30522
    batch = Batch(rows, length, {32: 5, 128: 20, 512: 80}[length])
    parameters = 4 * parameter_count(config, vocab_size)
    fixed = PROCESS + 4 * parameters + gradient_bytes_in_flight(config, vocab_size, batch, operators)
    if operators != MXNET:
        dtype = "bfloat16" if operators == TILES else "float32"
        fixed += packed_bytes(config, dtype) + (parameters if accumulate > 1 else 0)
    found = fixed + activation_bytes(config, vocab_size, batch, operators, 4)
    assert found / 2**20 == pytest.approx(measured, rel=0.1)


@pytest.mark.usefixtures("fused_operators")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bfloat16x3"])
def test_packed_copies_are_as_large_as_the_operators_make_them(dtype: str) -> None:
    bert = build_model(named_config("bert_2_64_2"), 50)
    initialize(bert, mx.cpu(), "float32", seed=0)
    network = Pretraining().network(bert, named_config("bert_2_64_2"), dtype, 0.1, FUSED)
    held = sum(copy.size for names, copy in network.packed_copies().items() if "encoder" in names[0])
    assert packed_bytes(named_config("bert_2_64_2"), dtype) == pytest.approx(held, rel=0.02)


def test_attention_without_scores_grows_with_the_length_and_with_them_with_its_square() -> None:
    config = named_config("bert_4_256_4")
    growth = {
        operators: activation_bytes(config, 100, Batch(2, 512, 0), operators, 4)
        / activation_bytes(config, 100, Batch(2, 256, 0), operators, 4)
        for operators in (FUSED, MXNET)
    }
    assert growth[FUSED] == pytest.approx(2, rel=0.01) and growth[MXNET] > 2.5
