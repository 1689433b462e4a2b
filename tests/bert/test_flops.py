"""The count of operations, against one over the model's parameters."""

from __future__ import annotations

import math

import mxnet as mx

from bert.configuration import BertConfig
from bert.flops import Size, forward_flops
from bert.model import build_model, initialize

LAYERS, UNITS, HEADS, HIDDEN, VOCAB = 2, 32, 4, 72, 50
ROWS, LENGTH, PREDICTIONS = 3, 16, 5


def test_products_with_weights_are_two_operations_for_each_element_and_row():
    model = build_model(BertConfig(LAYERS, UNITS, HEADS, HIDDEN), VOCAB)
    initialize(model, mx.cpu(), "float32", seed=0)
    rows_of = {  # how many rows each weight is multiplied with
        "encoder.transformer_cells": ROWS * LENGTH,
        "pooler": ROWS,
        "classifier": ROWS,
        "decoder": ROWS * PREDICTIONS,
    }
    counted = {"word_embed.0.weight": 2 * ROWS * PREDICTIONS * VOCAB * UNITS}  # as the decoder
    for name, parameter in model._collect_params_with_prefix().items():
        rows = next((rows for start, rows in rows_of.items() if name.startswith(start)), 0)
        if len(parameter.shape) == 2 and name != "decoder.3.weight":
            counted.setdefault(name, 2 * rows * math.prod(parameter.shape))
    found = forward_flops(Size(LAYERS, UNITS, HIDDEN, VOCAB), ROWS, LENGTH, PREDICTIONS)
    assert found.encoder + found.heads + found.decoder == sum(counted.values())


def test_attention_is_two_products_of_each_head():
    one_head = 2 * LENGTH * (UNITS // HEADS) * LENGTH
    found = forward_flops(Size(LAYERS, UNITS, HIDDEN, VOCAB), ROWS, LENGTH, PREDICTIONS)
    assert found.attention == LAYERS * ROWS * HEADS * 2 * one_head


def test_bert_base_is_the_number_that_everybody_knows():
    """Per token 2 operations for each of the 85 M weights in the layers."""
    found = forward_flops(Size(12, 768, 3072, 30522), 1, 1, 0)
    assert found.encoder == 2 * 12 * 12 * 768**2 == 2 * 84_934_656


def test_the_top_layer_may_be_computed_for_a_few_positions():
    whole, few = (
        forward_flops(Size(LAYERS, UNITS, HIDDEN, VOCAB), ROWS, LENGTH, PREDICTIONS, top_rows=rows)
        for rows in (None, PREDICTIONS + 1)
    )
    saved = ROWS * (LENGTH - PREDICTIONS - 1) * 2 * (UNITS * UNITS + 2 * UNITS * HIDDEN)
    assert whole.encoder - few.encoder == saved
    assert whole[1:] == few[1:]
