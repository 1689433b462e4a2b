"""Names as programs of others leave them: each spelling gives the weights of the same BERT."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Callable, Mapping

import numpy as np
import pytest
from safetensors.numpy import save_file

from base.errors import InputError
from bert.weights.bundle import write_bundle
from bert.weights.names import EMBEDDING, TABLE, names_of, part_of
from bert.weights.opening import open_weights
from bert.weights.spellings import Weight, gluonnlp, huggingface, tensorflow
from bert.weights.tensors import Weights
from tests.bert.weights.building import SMALL, TOKENS, WORDS, arrays, sizes_of, tensors_of, write

Arrays = Mapping[str, np.ndarray]


def hugging_face() -> dict[str, np.ndarray]:
    return {names_of(name).huggingface: array for name, array in arrays().items()}


def google() -> dict[str, np.ndarray]:
    named = {name: (names_of(name), array) for name, array in arrays().items()}
    return {row.tensorflow: array.T if row.kernel else array for row, array in named.values()}


def check(weights: Weights, **changes) -> Weights:
    """All numbers are those of `arrays`, and nothing is missing; `changes` of the configuration."""
    assert weights.config == replace(SMALL, **changes) and weights.vocab_size == TOKENS
    expected = arrays()
    assert list(weights.tensors) == list(expected) and not weights.missing
    for name, tensor in weights.tensors.items():
        found = tensor.read()
        assert found.shape == tensor.shape == expected[name].shape, name
        assert found.flags.c_contiguous and found.dtype == tensor.dtype
        np.testing.assert_array_equal(found, expected[name], err_msg=name)
    return weights


def open_safetensors(folder: Path, named: Arrays) -> Weights:
    save_file(
        {name: np.ascontiguousarray(array) for name, array in named.items()}, str(folder / "x.safetensors")
    )
    return open_weights(str(folder / "x.safetensors"), "INPUT", SMALL)


def open_bundle(folder: Path, named: Arrays, config=SMALL) -> Weights:
    write_bundle(str(folder / "model.ckpt-7"), tensors_of(named))
    return open_weights(str(folder / "model.ckpt-7"), "INPUT", config)


def test_the_table_is_one_to_one():
    for column in ("gluonnlp", "tensorflow", "huggingface"):
        assert len({getattr(row, column) for row in TABLE}) == len(TABLE)
    for name in arrays():
        row = names_of(name)
        assert gluonnlp(name) == gluonnlp(f"bert.{name}") == Weight(name)
        assert huggingface(row.huggingface) == Weight(name)
        assert tensorflow(row.tensorflow) == Weight(name, row.kernel)
        assert row.kernel == row.tensorflow.endswith("/kernel")
    assert names_of("encoder.transformer_cells.11.ffn.ffn_1.weight") == (
        "encoder.transformer_cells.11.ffn.ffn_1.weight",
        "bert/encoder/layer_11/intermediate/dense/kernel",
        "bert.encoder.layer.11.intermediate.dense.weight",
        True,
    )
    assert part_of(EMBEDDING) is None
    with pytest.raises(KeyError):
        names_of("encoder.transformer_cells.0.proj_query.weight")


def nvidia(name: str) -> str:
    """DeepLearningExamples' LinearActivation calls its parameters `dense_act`."""
    return re.sub(r"(intermediate|pooler|transform)\.dense\.", r"\1.dense_act.", name)


@pytest.mark.parametrize(
    "spelling",
    [
        lambda name: name,
        lambda name: f"module.{name}",
        lambda name: f"model.module.{name}",
        lambda name: name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta"),
        nvidia,
        lambda name: f"model.{nvidia(name)}",
        lambda name: name[len("bert.") :] if name.startswith("bert.") else name,
    ],
)
def test_state_dictionaries(tmp_path, spelling: Callable[[str], str]):
    check(open_safetensors(tmp_path, {spelling(name): array for name, array in hugging_face().items()}))


def test_what_is_there_twice(tmp_path):
    """Older Hugging Face files have the decoder's weight and its bias under both of their names."""
    named = hugging_face()
    named["cls.predictions.decoder.weight"] = named["bert.embeddings.word_embeddings.weight"]
    named["cls.predictions.decoder.bias"] = named["cls.predictions.bias"]
    named["bert.embeddings.position_ids"] = np.arange(SMALL.positions)[None]
    weights = check(open_safetensors(tmp_path, named))
    assert weights.ignored == ["bert.embeddings.position_ids"]
    del named["cls.predictions.bias"], named["bert.embeddings.word_embeddings.weight"]
    check(open_safetensors(tmp_path, named))


@pytest.mark.parametrize(
    "name, first",
    [
        ("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
        ("cls.predictions.decoder.bias", "cls.predictions.bias"),
    ],
)
def test_what_is_there_twice_and_differs(tmp_path, name, first):
    named = hugging_face()
    named[name] = named[first] + 1
    weights = open_safetensors(tmp_path, named)
    with pytest.raises(InputError, match=r"INPUT \S+x.safetensors: cls\.predictions\.\S+ differs from"):
        for tensor in weights.tensors.values():
            tensor.read()


def test_what_other_networks_have(tmp_path):
    attention = "bert.encoder.layer.1.attention.self"
    for name in (f"{attention}.query_key_value.weight", f"{attention}.distance_embedding.weight"):
        with pytest.raises(InputError, match=f"INPUT .*has {name}, which a BERT has not"):
            open_safetensors(tmp_path, {**hugging_face(), name: np.ones((3, 3), np.float32)})
    with pytest.raises(InputError, match="has bert/encoder/embedding_hidden_mapping_in/kernel, which a BERT"):
        named = {**google(), "bert/encoder/embedding_hidden_mapping_in/kernel": np.ones((3, 3), np.float32)}
        open_bundle(tmp_path, named)
    with pytest.raises(InputError, match="no weights of a BERT under a known name; it has roberta.x"):
        open_safetensors(tmp_path, {"roberta.x": np.ones((3, 3), np.float32)})


def test_heads_of_a_task_are_left_out(tmp_path):
    named = {name: array for name, array in hugging_face().items() if not name.startswith("cls.")}
    named["qa_outputs.weight"] = np.ones((2, 64), np.float32)
    weights = open_safetensors(tmp_path, named)
    assert weights.ignored == ["qa_outputs.weight"]
    assert weights.missing == ["next-sentence head", "masked-LM head"]


def test_tensorflow_variables_with_the_slots_of_optimizers(tmp_path):
    named = google()
    slots = {
        f"{name}/{slot}": array for name, array in named.items() for slot in ("adam_m", "adam_v", "LAMB_1")
    }
    others = {"global_step": np.int64(3), "beta1_power": np.float32(0.9), "loss_scale": np.float32(1)}
    weights = check(open_bundle(tmp_path, {**named, **slots, **others}), activation="tanh")
    assert set(weights.ignored) == {*slots, *others}
    assert weights.format == "tensorflow" and weights.source == str(tmp_path / "model.ckpt-7")


VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
# Parts of Google's names, and what stands there in a path: in a numbered layer, in a named one, in both.
NUMBERED = {
    "bert/encoder/layer_0": "encoder/layer_with_weights-4",
    "bert/encoder/layer_1": "encoder/layer_with_weights-5",
    "attention/output/dense": "_attention_output_dense",
    "bert/embeddings/word_embeddings": "encoder/layer_with_weights-0/embeddings",
    "bert/embeddings/position_embeddings": "encoder/layer_with_weights-1/embeddings",
    "bert/embeddings/token_type_embeddings": "encoder/layer_with_weights-2/embeddings",
    "bert/embeddings/LayerNorm": "encoder/layer_with_weights-3",
}
NAMED = {
    "bert/encoder/layer_": "encoder/_transformer_layers/",
    "attention/output/dense": "_attention_layer/_output_dense",
    "bert/embeddings/position_embeddings": "encoder/_position_embedding_layer/embeddings",
    "bert/embeddings/token_type_embeddings": "encoder/_type_embedding_layer/embeddings",
    "bert/embeddings/LayerNorm": "encoder/_embedding_norm_layer",
    "bert/pooler/dense": "encoder/_pooler_layer",
}
BOTH = {
    "attention/self/query": "_attention_layer/_query_dense",
    "attention/self/key": "_attention_layer/_key_dense",
    "attention/self/value": "_attention_layer/_value_dense",
    "attention/output/LayerNorm": "_attention_layer_norm",
    "intermediate/dense": "_intermediate_dense",
    "output/LayerNorm": "_output_layer_norm",
    "output/dense": "_output_dense",
    "bert/embeddings/word_embeddings": "masked_lm/embedding_table",
    "bert/pooler/dense": "next_sentence..pooler_dense",
    "cls/predictions/transform/dense": "masked_lm/dense",
    "cls/predictions/transform/LayerNorm": "masked_lm/layer_norm",
    "cls/predictions/output_bias": "masked_lm/output_bias.Sbias",
    "cls/seq_relationship/output_weights": "model/classification_heads/0/out_proj/kernel",
    "cls/seq_relationship/output_bias": "model/classification_heads/0/out_proj/bias",
}


def model_garden(numbered: bool) -> dict[str, np.ndarray]:
    """As tf.train.Checkpoint of the Model Garden's pretraining model stores it (official/nlp): heads have an
    axis of their own, and layers are numbered or, in later versions, named."""
    found = {}
    for name, array in google().items():
        if "attention/self/" in name:
            array = array.reshape(*array.shape[:-1], SMALL.heads, -1)
        elif name.endswith("attention/output/dense/kernel"):
            array = array.reshape(SMALL.heads, -1, SMALL.units)
        for part, path in [*(NUMBERED if numbered else NAMED).items(), *BOTH.items()]:
            name = name.replace(part, path)
        found[f"{name}{VALUE}"] = array
    return found


@pytest.mark.parametrize("numbered", [True, False])
def test_paths_of_objects(tmp_path, numbered):
    named = model_garden(numbered)
    kernel = f"model/classification_heads/0/out_proj/kernel{VALUE}"
    named[kernel] = named[kernel].T  # Google's output_weights are no kernel, this one is
    slot = next(iter(named)).replace(VALUE, f"/.OPTIMIZER_SLOT/optimizer/m{VALUE}")
    others = {slot: np.ones(3, np.float32), f"save_counter{VALUE}": np.int64(1)}
    if numbered:  # a pooler that is not trained, because the next-sentence head has its own
        others[f"encoder/layer_with_weights-6/kernel{VALUE}"] = np.ones((64, 64), np.float32)
    weights = check(open_bundle(tmp_path, {**named, **others}, config=None), activation="tanh")
    assert set(weights.ignored) == set(others) and not weights.notes  # not even heads have to be assumed


def test_an_encoder_alone_by_paths_of_objects(tmp_path):
    encoder = {
        name.replace("encoder/", "model/", 1): array
        for name, array in model_garden(True).items()
        if name.startswith("encoder/")
    }
    pooler = model_garden(True)[f"next_sentence..pooler_dense/kernel{VALUE}"]
    encoder[f"model/layer_with_weights-6/kernel{VALUE}"] = pooler
    encoder[f"model/layer_with_weights-6/bias{VALUE}"] = np.zeros(64, np.float32)
    weights = open_bundle(tmp_path, encoder)
    assert weights.missing == ["next-sentence head", "masked-LM head"]
    np.testing.assert_array_equal(weights.tensors["pooler.weight"].read(), pooler.T)
    foreign = f"model/layer_with_weights-7/_attention_layer/_gate/kernel{VALUE}"
    with pytest.raises(InputError, match="which a BERT has not"):
        open_bundle(tmp_path, {**encoder, foreign: np.ones(3, np.float32)})


def test_rows_of_padding(tmp_path):
    """NVIDIA pads 30,522 tokens to 30,528."""
    save_file(hugging_face(), str(tmp_path / "x.safetensors"))
    (tmp_path / "vocab.txt").write_text("".join(f"{word}\n" for word in WORDS[:-3]))
    weights = check(open_weights(str(tmp_path / "x.safetensors"), "INPUT", SMALL))
    assert tuple(weights.vocabulary) == tuple(WORDS[:-3])
    (tmp_path / "vocab.txt").write_text("".join(f"{word}\n" for word in [*WORDS, "more"]))
    with pytest.raises(InputError, match="embeddings of 20 tokens, but its vocabulary has 21"):
        open_weights(str(tmp_path / "x.safetensors"), "INPUT", SMALL)


# --- What lies beside.


@pytest.mark.parametrize(
    "form, changes, gelu",
    [
        ("tensorflow", {}, "tanh"),
        ("tensorflow", {"hidden_act": "gelu"}, "tanh"),
        ("tensorflow", {"gelu_form": "erf"}, "erf"),
        ("huggingface", {}, "erf"),
        ("huggingface", {"hidden_act": "gelu", "model_type": "bert"}, "erf"),
        ("huggingface", {"hidden_act": "gelu_new", "model_type": "bert"}, "tanh"),
        ("huggingface", {"hidden_act": "gelu_pytorch_tanh", "model_type": "bert"}, "tanh"),
        ("gluonnlp", {"hidden_act": "gelu"}, "erf"),
        ("gluonnlp", {"hidden_act": "gelu", "gelu_form": "tanh"}, "tanh"),
    ],
)
def test_gelu_by_format_and_configuration(tmp_path, form, changes, gelu):
    (tmp_path / "bert_config.json").write_text(json.dumps({**sizes_of(SMALL), **changes}))
    if form == "tensorflow":
        write_bundle(str(tmp_path / "x.ckpt"), tensors_of(google()))
    elif form == "huggingface":
        save_file(hugging_face(), str(tmp_path / "model.safetensors"))
    else:
        write(tmp_path / "x.params", arrays())
    check(open_weights(str(tmp_path), "INPUT"), activation=gelu)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"num_hidden_layers": 3}, "has layers 2 by the shapes of its weights, but .*config.json says 3"),
        ({"intermediate_size": 256}, "has hidden 96 .*says 256"),
        ({"vocab_size": 30}, "has embeddings of 20 tokens, but .*config.json says 30"),
        ({"hidden_act": "silu"}, "config.json: hidden_act is"),
        ({"layer_norm_eps": -1e-5}, "config.json: layer_norm_eps is -1e-05"),
        ({"tie_word_embeddings": False}, "lacks decoder.3.weight .* but has more of the masked-LM head"),
        ({"model_type": "distilbert"}, 'config.json: model_type is "distilbert"'),
    ],
)
def test_another_configuration_beside_it(tmp_path, changes, words):
    save_file(hugging_face(), str(tmp_path / "model.safetensors"))
    (tmp_path / "config.json").write_text(json.dumps({**sizes_of(SMALL), **changes}))
    with pytest.raises(InputError, match="INPUT .*" + words):
        open_weights(str(tmp_path), "INPUT")


def test_tokenizers(tmp_path):
    save_file(hugging_face(), str(tmp_path / "model.safetensors"))
    ids = {"model": {"type": "WordPiece", "vocab": {word: index for index, word in enumerate(WORDS)}}}
    (tmp_path / "tokenizer.json").write_text(json.dumps({**ids, "normalizer": {"lowercase": True}}))
    weights = open_weights(str(tmp_path), "INPUT", SMALL)
    assert list(weights.vocabulary) == WORDS and weights.cased is False
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert open_weights(str(tmp_path), "INPUT", SMALL).cased is True
    (tmp_path / "vocab.txt").write_text("[PAD]\n[PAD]\n")
    with pytest.raises(InputError, match=r"INPUT: \S+vocab.txt holds '\[PAD\]' twice"):
        open_weights(str(tmp_path), "INPUT", SMALL)
    (tmp_path / "vocab.txt").unlink()
    damages = {
        "{": "INPUT {}: not JSON",
        "[]": "INPUT {}: not a JSON object",
        json.dumps({"model": {"vocab": {"a": 5}}}): "INPUT: {} is damaged",
    }
    for damage, message in damages.items():
        (tmp_path / "tokenizer.json").write_text(damage)
        with pytest.raises(InputError, match=re.escape(message.format(tmp_path / "tokenizer.json"))):
            open_weights(str(tmp_path), "INPUT", SMALL)


# --- Recognition.


def test_folders_and_prefixes(tmp_path):
    folder = tmp_path / "tf"
    folder.mkdir()
    for step in (3, 20):
        named = {**google(), "global_step": np.int64(step)}
        write_bundle(str(folder / f"model.ckpt-{step}"), tensors_of(named))
    with pytest.raises(InputError, match="holds model.ckpt-20 and model.ckpt-3; name one of them"):
        open_weights(str(folder), "INPUT", SMALL)
    (folder / "checkpoint").write_text('model_checkpoint_path: "/elsewhere/model.ckpt-20"\n')
    for path in (folder, folder / "model.ckpt-20", folder / "model.ckpt-20.index"):
        assert check(open_weights(str(path), "INPUT", SMALL), activation="tanh").source == str(
            folder / "model.ckpt-20"
        )
    data = folder / "model.ckpt-3.data-00000-of-00001"
    assert open_weights(str(data), "INPUT", SMALL).source == str(folder / "model.ckpt-3")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="empty holds no weights; name a folder with"):
        open_weights(str(tmp_path / "empty"), "INPUT", SMALL)


def test_model_safetensors_comes_before_others(tmp_path):
    for name in ("adapter.safetensors", "other.safetensors"):
        save_file({"a": np.ones(3, np.float32)}, str(tmp_path / name))
    with pytest.raises(InputError, match="holds adapter.safetensors and other.safetensors; name one of them"):
        open_weights(str(tmp_path), "INPUT", SMALL)
    save_file(hugging_face(), str(tmp_path / "model.safetensors"))
    check(open_weights(str(tmp_path), "INPUT", SMALL))


def test_a_model_in_several_files(tmp_path):
    named, places = hugging_face(), {}
    for index, half in enumerate((list(named)[::2], list(named)[1::2]), 1):
        file = f"model-{index:05}-of-00002.safetensors"
        save_file({name: named[name] for name in half}, str(tmp_path / file))
        places.update(dict.fromkeys(half, file))
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    for path in (tmp_path, index):
        check(open_weights(str(path), "INPUT", SMALL))


@pytest.mark.parametrize("name", ["encoder.position_weight", "token_type_embed.0.weight"])
def test_empty_arrays(tmp_path, name):
    named = {names_of(each).huggingface: array for each, array in arrays().items()}
    named[names_of(name).huggingface] = np.ones((0, 64), np.float32)
    save_file(named, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=r"of shape \(0, 64\), needed is "):
        open_weights(str(tmp_path), "INPUT", SMALL)


def test_no_attention_heads(tmp_path):
    named = {
        name: a[:0] if name.endswith(f"query_dense/bias{VALUE}") else a
        for name, a in model_garden(True).items()
    }
    with pytest.raises(InputError, match="attention_layer/_query_dense/bias.* of shape"):
        open_bundle(tmp_path, named)


def test_nothing_waits_for_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="holds no weights"):
        open_weights(str(tmp_path), "INPUT")
    with pytest.raises(InputError, match="model.safetensors: cannot be read: it is no regular file"):
        open_weights(str(tmp_path / "model.safetensors"), "INPUT")


@pytest.mark.parametrize(
    "name, content, words",
    [
        ("x.h5", b"\x89HDF\r\n\x1a\n" + b"x" * 50, "is an HDF5 file"),
        ("x.tar.gz", b"\x1f\x8b" + b"x" * 50, "is compressed; unpack it"),
        ("config.json", b'{"hidden_size": 3}', "is JSON, and no weights"),
        ("x.params", b"nothing", "x.params is damaged or not a .params file"),
        ("x.safetensors", b"\xff" * 20, "x.safetensors is damaged"),
        ("x.bin", b"nothing", "x.bin is damaged"),
        ("x.index", b"nothing", "x.index is damaged"),
        ("empty.params", b"", "empty.params is damaged"),
        ("empty", b"", "is something else, and no weights in a known format"),
    ],
)
def test_other_files(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=f"INPUT.* .*{words}") as caught:
        open_weights(str(tmp_path / name), "INPUT")
    assert "\n" not in str(caught.value)
