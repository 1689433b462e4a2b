"""GluonNLP's .params through the one door: names, sizes, what is missing, and what is wrong."""

from __future__ import annotations

from dataclasses import replace

import mxnet as mx
import numpy as np
import pytest

from base.errors import InputError
from bert.configuration import BertConfig, named_config
from bert.model import build_model, initialize
from bert.weights.names import DECODER, EMBEDDING
from bert.weights.opening import open_weights
from tests.bert.weights.building import SMALL, TOKENS, arrays, write

GIVEN = replace(SMALL, activation="tanh")


def opened(path, named, config=GIVEN):
    return open_weights(write(path / "x.params", named), "--init_from", config)


def rejected(path, named, config=GIVEN):
    with pytest.raises(InputError) as caught:
        opened(path, named, config)
    message = str(caught.value)
    assert message.startswith(f"--init_from {path / 'x.params'}") and "\n" not in message
    return message


def test_all_that_a_file_says(tmp_path):
    named = arrays()
    weights = opened(tmp_path, named)
    assert weights.config == GIVEN and weights.vocab_size == TOKENS and weights.format == "gluonnlp"
    assert list(weights.tensors) == list(named)
    assert weights.missing == [] and weights.ignored == [] and weights.notes == ()
    assert weights.source == str(tmp_path / "x.params")
    for name, tensor in weights.tensors.items():
        assert tensor.shape == named[name].shape and tensor.dtype == np.float32
        np.testing.assert_array_equal(tensor.read(), named[name])


def test_heads_are_of_64_units_where_nothing_says_more(tmp_path):
    weights = opened(tmp_path, arrays(), None)
    assert weights.config == replace(SMALL, heads=1) and "1 attention heads of 64 units" in weights.notes[0]
    odd = BertConfig(layers=1, units=24, heads=2, hidden=8, positions=8)
    assert "give --model" in rejected(tmp_path, arrays(odd), None)
    assert opened(tmp_path, arrays(odd), odd).config == odd


@pytest.mark.parametrize("global_names", [False, True])
def test_what_mxnet_saves(tmp_path, global_names):
    """save_parameters writes structural names, collect_params().save global ones with counters of blocks."""
    model = build_model(named_config("bert_2_16_2"), TOKENS)
    initialize(model, mx.cpu(), "float32", 1)
    path = str(tmp_path / "x.params")
    model.collect_params().save(path) if global_names else model.save_parameters(path)
    weights = open_weights(path, "INPUT", named_config("bert_2_16_2"))
    assert weights.config == named_config("bert_2_16_2") and not weights.missing and not weights.ignored
    of_model = model._collect_params_with_prefix()
    assert set(weights.tensors) == set(of_model) - {DECODER}
    for name, tensor in weights.tensors.items():
        np.testing.assert_array_equal(tensor.read(), of_model[name].data().asnumpy())


def test_the_decoders_weight_stands_for_the_embedding(tmp_path):
    named = arrays()
    both = opened(tmp_path, {**named, DECODER: named[EMBEDDING]})
    np.testing.assert_array_equal(both.tensors[EMBEDDING].read(), named[EMBEDDING])
    named[DECODER] = named.pop(EMBEDDING)
    np.testing.assert_array_equal(opened(tmp_path, named).tensors[EMBEDDING].read(), named[DECODER])
    changed = {**named, EMBEDDING: named[DECODER] + np.eye(TOKENS, 64, dtype=np.float32)}
    weights = opened(tmp_path, changed)
    with pytest.raises(InputError, match=f"{DECODER} differs from {EMBEDDING} in 20 of 1280 numbers"):
        weights.tensors[EMBEDDING].read()


def test_parts_that_are_missing(tmp_path):
    heads = [name for name in arrays() if name.startswith(("pooler.", "classifier.", "decoder."))]
    assert opened(tmp_path, without(*heads)).missing == ["pooler", "next-sentence head", "masked-LM head"]
    assert opened(tmp_path, without("classifier.weight", "classifier.bias")).missing == ["next-sentence head"]


def test_a_classifier_around_it(tmp_path):
    named = {f"bert.{name}": array for name, array in arrays().items() if not name.startswith("decoder.")}
    weights = opened(tmp_path, {**named, "classifier.1.weight": np.ones((3, 64), np.float32)})
    assert weights.missing == ["masked-LM head"] and weights.ignored == ["classifier.1.weight"]


def without(*names):
    return {name: array for name, array in arrays().items() if name not in names}


def test_what_is_no_whole_bert(tmp_path):
    cell = "encoder.transformer_cells.1"
    assert f"lacks {cell}.proj.bias" in rejected(tmp_path, without(f"{cell}.proj.bias"))
    assert "more of the masked-LM head" in rejected(tmp_path, without("decoder.2.beta"))
    assert "lacks encoder.position_weight" in rejected(tmp_path, without("encoder.position_weight"))
    assert "no weights of a BERT" in rejected(tmp_path, {"a": np.ones(3, np.float32)})
    for far in ("7", "1" + "0" * 20):
        gap = {name.replace("cells.1", f"cells.{far}"): array for name, array in arrays().items()}
        assert f"has layer {far} but not layer 1" in rejected(tmp_path, gap)
    twice = {**arrays(), "bertmodel3_pooler_bias": np.ones(64, np.float32)}
    twice["pooler.bias"] = np.ones(3, np.float32)
    assert "has pooler.bias of float32(3,) and bertmodel3_pooler_bias of" in rejected(tmp_path, twice)
    more = {**arrays(), f"{cell}.attention_cell.proj_gate.weight": np.ones((64, 64), np.float32)}
    assert "proj_gate.weight, which a BERT has not" in rejected(tmp_path, more)


@pytest.mark.parametrize(
    "name, array, words",
    [
        ("encoder.layer_norm.gamma", np.ones(63, np.float32), "of shape (63,), needed is (64,)"),
        (EMBEDDING, np.ones(64, np.float32), "of shape (64,), needed is two axes"),
        ("pooler.weight", np.ones((64, 64), np.int32), "pooler.weight in int32"),
        ("decoder.3.bias", np.ones(21, np.float32), "of shape (21,), needed is (20,)"),
    ],
)
def test_other_shapes_and_dtypes(tmp_path, name, array, words):
    message = rejected(tmp_path, {**arrays(), name: array})
    assert name in message and words in message


def test_nothing_there():
    with pytest.raises(InputError, match="INPUT /nowhere does not exist"):
        open_weights("/nowhere", "INPUT")
