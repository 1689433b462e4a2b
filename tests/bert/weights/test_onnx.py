"""convert.py --to onnx: onnxruntime computes what float64 NumPy does, as MXNet (tests/test_convert.py)."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from safetensors.numpy import load_file

import convert
from bert.weights.opening import open_weights
from tests.bert.reference import HuggingFace, logits, sequence
from tests.bert.weights.building import SMALL, TOKENS, arrays, write, write_folder
from tests.bert.weights.networks import Inputs, random_inputs

TOLERANCE = 1e-5
NETWORKS = {
    "erf": SMALL,
    "tanh": replace(SMALL, activation="tanh"),
    "relu": replace(SMALL, activation="relu", epsilon=1e-3, tied=False),
}
HEADS = ["last_hidden_state", "pooler_output", "logits", "seq_relationship_logits"]


@pytest.fixture(scope="module", params=NETWORKS)
def place(tmp_path_factory, request) -> Path:
    """A folder with one network in our format, in Hugging Face's and as a graph."""
    folder, config = tmp_path_factory.mktemp(request.param), NETWORKS[request.param]
    write_folder(folder / "ours", config, arrays(config, stdev=0.2))
    for to in ("huggingface", "onnx"):
        assert convert.main([str(folder / "ours"), str(folder / to), "--to", to]) == 0
    assert asdict(open_weights(str(folder / "ours"), "INPUT").config) == asdict(config)
    return folder


def computed(folder: Path, inputs: Inputs, padding: int = 0) -> dict[str, np.ndarray]:
    """The outputs of the graph in a folder, of inputs with so many places more than they need."""
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    mask = np.arange(inputs.tokens.shape[1]) < inputs.lengths[:, None]
    fed = {"input_ids": inputs.tokens, "attention_mask": mask, "token_type_ids": inputs.segments}
    fed = {name: np.pad(each.astype(np.int64), ((0, 0), (0, padding))) for name, each in fed.items()}
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, session.run(names, fed)))


@pytest.mark.parametrize("length, sentences, padding", [(3, 1, 0), (30, 2, 10), (40, 5, 0)])
def test_logits_are_the_references(place, length, sentences, padding):
    """Sentences of several lengths in one batch; what lies behind their ends is not seen."""
    inputs = random_inputs(TOKENS, length, sentences)
    found = computed(place / "onnx", inputs, padding)
    assert list(found) == HEADS
    assert found["last_hidden_state"].shape == (sentences, length + padding, SMALL.units)
    masked = np.take_along_axis(found["logits"], inputs.places[:, :, None], axis=1)
    config = open_weights(str(place / "ours"), "INPUT").config
    named = load_file(str(place / "huggingface" / "model.safetensors"))
    of, form = HuggingFace(named, config.epsilon), config.activation
    x = sequence(of, config.heads, form, inputs.tokens, inputs.segments, inputs.lengths)
    next_sentence, decoded = logits(of, form, x, inputs.places)
    for row, own in enumerate(inputs.lengths):
        np.testing.assert_allclose(found["last_hidden_state"][row, :own], x[row, :own], atol=TOLERANCE)
    np.testing.assert_allclose(found["seq_relationship_logits"], next_sentence, atol=TOLERANCE)
    np.testing.assert_allclose(masked, decoded, atol=TOLERANCE)


def test_the_file_is_onnx(place):
    """By its checker, shapes inferred and compared; the numbers lie outside, as safetensors has them."""
    path = place / "onnx" / "model.onnx"
    onnx.checker.check_model(str(path), full_check=True)
    model = onnx.load(str(path))
    named = load_file(str(place / "huggingface" / "model.safetensors"))
    of_graph = {each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer}
    for name, array in named.items():
        if name == "cls.predictions.decoder.bias":  # beside the same one under its other name
            continue
        dense = re.search(r"(dense|query|key|value)\.weight$", name)  # (inputs, outputs) in a graph
        np.testing.assert_array_equal(of_graph[name].T if dense else of_graph[name], array)
    assert path.stat().st_size < 100_000 < (place / "onnx" / "model.onnx.data").stat().st_size
    there = {"model.onnx", "model.onnx.data", "config.json", "vocab.txt", "tokenizer_config.json"}
    assert {each.name for each in path.parent.iterdir()} == there
    written, theirs = (
        json.loads((place / each / "config.json").read_text()) for each in ("onnx", "huggingface")
    )
    assert written == theirs


def test_the_same_weights_are_the_same_bytes(place, tmp_path):
    assert convert.main([str(place / "huggingface"), str(tmp_path / "again"), "--to", "onnx"]) == 0
    for name in ("model.onnx", "model.onnx.data"):
        assert (tmp_path / "again" / name).read_bytes() == (place / "onnx" / name).read_bytes()


@pytest.mark.parametrize(
    "left_out", ["decoder", "classifier", "pooler classifier", "pooler decoder classifier"]
)
def test_a_graph_has_the_outputs_of_its_weights(tmp_path, left_out):
    """float16 weights become float32."""
    named = arrays(stdev=0.2, dtype=np.float16)
    kept = {name: each for name, each in named.items() if name.split(".")[0] not in left_out.split()}
    path = write(tmp_path / "model.params", kept)
    words = ["--to", "onnx", "--model", SMALL.name]
    assert convert.main([path, str(tmp_path / "onnx"), *words]) == 0
    found = computed(tmp_path / "onnx", random_inputs(TOKENS, 12))
    parts = ["encoder", "pooler", "decoder", "classifier"]
    assert list(found) == [
        name for name, part in zip(HEADS, parts) if part not in left_out or (part == "encoder")
    ]
    onnx.checker.check_model(str(tmp_path / "onnx" / "model.onnx"), full_check=True)


def test_what_cannot_be(place, tmp_path, monkeypatch, capsys):
    words = [str(place / "ours"), str(tmp_path / "onnx"), "--to", "onnx"]
    assert convert.main([*words, "--dtype", "float16"]) == 2
    assert "--to onnx computes in float32, not in float16" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert convert.main(words) == 2
    said = capsys.readouterr().err
    assert "--to onnx needs the package onnx (" in said and said.endswith("): pip install onnx\n")
    assert not (tmp_path / "onnx").exists()
