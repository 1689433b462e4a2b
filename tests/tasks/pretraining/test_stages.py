"""Stages of the pretraining network against the whole network: the same bits, dropout included."""

from __future__ import annotations

from dataclasses import replace

import mxnet as mx
import numpy as np
import pytest

from bert.configuration import Dropout, named_config
from bert.model import build_model, initialize, network_parameters, trained
from bert.operators import choose_operators
from bert.part import ModelPart, allocate, build_part
from bert.weights.names import EMBEDDING
from tests.training.tiny import TASK, VOCAB_SIZE, random_batch

CONFIG = named_config("bert_3_16_2")
UNTIED = replace(CONFIG, activation="relu", epsilon=1e-3, tied=False)
FACTORS = (0.1, 0.2)
ROUNDS = 2


def networks(counts, operators, dtype, dropout, config=CONFIG):
    choose_operators(operators, dtype, mx.cpu())
    bert = build_model(config, VOCAB_SIZE, dropout)
    initialize(bert, mx.cpu(), "float32", 7, stdev=0.2)
    whole = TASK.network(bert, config, dtype, dropout, operators)
    named, stages, begin = network_parameters(whole), [], 0
    for count in counts:
        part = ModelPart(config, begin, begin + count)
        begin += count
        bert = build_part(part, VOCAB_SIZE, dropout)
        allocate(bert, part, mx.cpu(), "float32")
        stage = TASK.stage(bert, part, dtype, dropout, operators)
        for name, parameter in network_parameters(stage).items():
            parameter.set_data(named[name].data().copy())
        stages.append(stage)
    return whole, stages


def factors():
    return [mx.nd.array([each]) for each in FACTORS]


def inputs(batch):
    return TASK.inputs(batch, mx.cpu())


@pytest.mark.parametrize(
    ("operators", "dtype", "dropout", "counts", "config"),
    [
        ("fused", "float32", 0.1, (1, 2), CONFIG),
        ("fused", "bfloat16", 0.1, (1, 1, 1), CONFIG),
        ("fused", "float32", 0.1, (1, 2), UNTIED),
        ("mxnet", "float32", 0.1, (1, 1, 1), CONFIG),
        ("mxnet", "float32", 0.0, (2, 1), UNTIED),
        ("fused", "float32", Dropout(0.1, 0.3), (1, 2), CONFIG),
        ("fused", "float32", Dropout(0.1, 0), (1, 2), CONFIG),
        ("fused", "bfloat16", Dropout(0, 0.1), (1, 1, 1), CONFIG),
        ("mxnet", "float32", Dropout(0.1, 0.3), (1, 1, 1), CONFIG),
        ("mxnet", "float32", Dropout(0, 0.1), (1, 2), CONFIG),
        ("mxnet", "float32", Dropout(0.1, 0), (1, 2), CONFIG),
    ],
)
def test_stages_compute_what_the_whole_network_does(operators, dtype, dropout, counts, config):
    whole, stages = networks(counts, operators, dtype, dropout, config)
    for network in (whole, *stages):
        network.pack_weights()
    batches = [random_batch(np.random.default_rng(number), 3 + number, 12, 4) for number in range(ROUNDS)]
    kept = []
    for number, batch in enumerate(batches):  # all forward passes first: several graphs at once
        activations, passed = None, []
        for stage in stages:
            mx.random.seed(number)
            stage.skip_dropout(*batch.input_ids.shape)
            arrays = inputs(batch)[stage.takes]
            if activations is not None:
                received = activations.copy()
                assert stage.activations(*batch.input_ids.shape) == (received.shape, "float32")
                received.attach_grad()
                arrays = [received, *arrays]
            with mx.autograd.record():
                activations = stage(*arrays, *(factors() if stage.part.last else []))
            passed.append((arrays[0], activations))
        kept.append(passed)
    for number, batch in enumerate(batches):
        mx.random.seed(number)
        with mx.autograd.record():
            loss, sums = whole(*inputs(batch), *factors())
        loss.backward()
        gradient = None
        for received, output in reversed(kept[number]):
            if gradient is None:
                np.testing.assert_array_equal(output[0].asnumpy(), loss.asnumpy())
                np.testing.assert_array_equal(output[1].asnumpy(), sums.asnumpy())
                output[0].backward()
            else:
                output.backward(gradient)
            gradient = received.grad
        expected = {name: each.grad().asnumpy() for name, each in trained(whole).items()}
        ends = [trained(each)[EMBEDDING].grad().asnumpy() for each in stages if EMBEDDING in trained(each)]
        assert len(ends) == 1 + config.tied
        np.testing.assert_array_equal(sum(ends), expected[EMBEDDING])
        assert np.abs(ends[0]).max() > 0
        for stage in stages:
            for name, parameter in trained(stage).items():
                if name != EMBEDDING:
                    np.testing.assert_array_equal(parameter.grad().asnumpy(), expected[name], err_msg=name)


def test_stages_differ_without_the_skipped_dropout():
    whole, (_, second) = networks((1, 2), "fused", "float32", 0.1)
    batch = random_batch(np.random.default_rng(0), 3, 12, 4)
    x = mx.nd.random.normal(shape=(3, 12, 16))
    losses = []
    for skips in (True, False, True):
        mx.random.seed(1)
        if skips:
            second.skip_dropout(*batch.input_ids.shape)
        with mx.autograd.record():
            losses.append(float(second(x, *inputs(batch)[second.takes], *factors())[0].asscalar()))
    assert losses[0] == losses[2] != losses[1]
