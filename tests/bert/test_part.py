"""Parts of a model: names, memory, and the numbers that they begin with."""

from __future__ import annotations

from dataclasses import replace

import mxnet as mx
import numpy as np
import pytest

from bert.configuration import named_config
from bert.model import build_model, each_once, initialize
from bert.part import ModelPart, allocate, build_part, initial_arrays, whole
from bert.weights.names import DECODER, EMBEDDING

CONFIG = named_config("bert_3_16_2")
UNTIED = replace(CONFIG, tied=False)
VOCAB = 30


@pytest.mark.parametrize("ends", [(0, 3), (0, 1, 3), (0, 1, 2, 3)])
@pytest.mark.parametrize("config", [CONFIG, UNTIED], ids=["tied", "untied"])
def test_parts_hold_each_parameter_once_and_a_tied_word_embedding_at_both_ends(ends, config):
    parts = [ModelPart(config, begin, end) for begin, end in zip(ends, ends[1:])]
    for name in build_model(config, VOCAB)._collect_params_with_prefix():
        held = [part.holds(name) for part in parts]
        tied = config.tied and name in (EMBEDDING, DECODER)
        assert sum(held) == (len({0, len(parts) - 1}) if tied else 1), name
        if tied:
            assert held[0] and held[-1]
    assert whole(CONFIG).first and whole(CONFIG).last


@pytest.mark.parametrize("config", [CONFIG, UNTIED], ids=["tied", "untied"])
def test_random_parameters_are_those_of_a_whole_model(config):
    model = build_model(config, VOCAB, 0.1)
    initialize(model, mx.cpu(), "float32", 5, stdev=0.3)
    expected = each_once(model._collect_params_with_prefix())
    drawn = dict(initial_arrays(build_part(whole(config), VOCAB, 0.1), mx.cpu(), 5, 0.3))
    assert sorted(drawn) == sorted(expected)
    for name, array in drawn.items():
        np.testing.assert_array_equal(array.asnumpy(), expected[name].data().asnumpy())
    assert np.ptp(drawn["encoder.transformer_cells.2.ffn.ffn_2.weight"].asnumpy()) > 0.1


def test_a_part_has_memory_for_its_own_parameters_alone():
    part = ModelPart(CONFIG, 1, 3)
    bert = build_part(part, VOCAB, 0.1)
    allocate(bert, part, mx.cpu(), "float16")
    for name, parameter in bert._collect_params_with_prefix().items():
        if part.holds(name):
            assert parameter.data().dtype == np.float16
        else:
            with pytest.raises(RuntimeError, match="has not been initialized"):
                parameter.data()
