"""convert.py against real transformers: what either writes the other computes with, to 1e-5."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import convert
from bench.workers import find_torch_python
from bert.configuration import BertConfig
from bert.weights.opening import open_weights
from data.tokenizing.vocab import SPECIAL_TOKENS
from tasks.pretraining.scores import Computing, Embedder, Encoded
from tests.bert.weights.networks import mxnet_logits, random_inputs
from tests.processes import ROOT, run_command

CONFIG = BertConfig(layers=2, units=64, heads=2, hidden=96, positions=40)
WORDS = [*SPECIAL_TOKENS, "capital", "the", "##s", *(f"w{index}" for index in range(12))]
TOLERANCE = 1e-5
FORMS = {"erf": "gelu", "tanh": "gelu_new", "relu": "relu"}
CHANGES = {"relu": {"layer_norm_eps": 1e-3, "tie_word_embeddings": False}}  # of a configuration, by form


def transformers(folder: Path, tasks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    python = find_torch_python(None, os.environ)
    if python is None:
        pytest.skip("no environment with PyTorch and transformers (bench.workers says how to make one)")
    (folder / "tasks.json").write_text(json.dumps(tasks))
    command = [python, str(ROOT / "tests" / "transformers_worker.py"), str(folder / "tasks.json")]
    result = run_command(command, cwd=folder, env={"HF_HUB_OFFLINE": "1"}).check()
    return json.loads(result.stdout.splitlines()[-1])


def task(folder: str, **more: Any) -> dict[str, Any]:
    return {"folder": folder, "inputs": "inputs.npz", "out": f"{folder}.npz", **more}


class Place:
    """A folder with one model of transformers' making for each GELU, and what it computes."""

    def __init__(self, folder: Path, config: BertConfig, stdev: float, words: list[str]):
        self.folder = folder
        self.inputs = random_inputs(len(words), config.positions - 3)
        np.savez(folder / "inputs.npz", **self.inputs._asdict())
        tasks = []
        for form, name in FORMS.items():
            sizes = {
                **{"num_hidden_layers": config.layers, "hidden_size": config.units, "vocab_size": len(words)},
                **{"num_attention_heads": config.heads, "intermediate_size": config.hidden},
                **{"max_position_embeddings": config.positions, "hidden_act": name},
                **CHANGES.get(form, {}),
            }
            tasks.append(task(form, config=sizes, stdev=stdev))
        transformers(folder, tasks)
        for form in FORMS:
            (folder / form / "vocab.txt").write_text("".join(f"{word}\n" for word in words))
            made = folder / form / "tokenizer_config.json"
            made.write_text('{"do_lower_case": true, "tokenizer_class": "BertTokenizer"}')

    def outputs(self, name: str) -> dict[str, np.ndarray]:
        return dict(np.load(self.folder / name))


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Place:
    return Place(tmp_path_factory.mktemp("transformers"), CONFIG, 0.2, WORDS)


def largest_differences(path: str, place: Place, form: str) -> tuple[float, float]:
    """Of next-sentence and masked-LM logits: MXNet's of a file, and transformers' of the model they made."""
    expected = place.outputs(f"{form}.npz")
    relu = {"epsilon": 1e-3, "tied": False} if form == "relu" else {}
    given = BertConfig(1, CONFIG.units, CONFIG.heads, 1, activation=form, **relu)
    weights = open_weights(path, "INPUT", given)
    next_sentence, masked = mxnet_logits(weights, place.inputs)
    at_places = np.take_along_axis(expected["mlm"], place.inputs.places[:, :, None], axis=1)
    differences = next_sentence - expected["nsp"], masked - at_places
    return tuple(float(np.abs(each).max()) for each in differences)  # type: ignore[return-value]


@pytest.mark.parametrize("suffix", ["", ".bin", ".pt"])
@pytest.mark.parametrize("form", FORMS)
def test_what_transformers_and_torch_save(place, form, suffix, monkeypatch):
    """save_pretrained's folder, a state dictionary, and a checkpoint in the way of NVIDIA's script."""
    monkeypatch.chdir(place.folder)
    assert max(largest_differences(f"{form}{suffix}", place, form)) < TOLERANCE
    options = ["--model", CONFIG.name, "--gelu", form, "--overwrite"]
    if form == "relu":
        options = ["--config_file", "relu/config.json", "--overwrite"]
    assert convert.main([f"{form}{suffix}", "gluonnlp", *options]) == 0
    assert max(largest_differences("gluonnlp", place, form)) < TOLERANCE


@pytest.mark.parametrize("operators", ["mxnet", "fused"])
def test_vectors_are_transformers_hidden_states(place, operators):
    """Of every layer, pooled both ways."""
    weights = open_weights(str(place.folder / "erf"), "INPUT", CONFIG)
    inputs, hidden = place.inputs, place.outputs("erf.npz")["hidden"]
    batch = [
        Encoded(tokens[:length], segments[:length], [])
        for tokens, segments, length in zip(inputs.tokens, inputs.segments, inputs.lengths)
    ]
    for layer, states in enumerate(hidden):
        means = [rows[:length].mean(axis=0) for rows, length in zip(states, inputs.lengths)]
        for pooling, expected in (("cls", states[:, 0]), ("mean", np.array(means))):
            found = Embedder(weights, Computing(operators, None), layer, pooling)(batch)
            np.testing.assert_allclose(found, expected, atol=TOLERANCE)
    assert len(hidden) == CONFIG.layers + 1


def test_what_transformers_load(place, monkeypatch, capsys):
    """The way back, through GluonNLP and through TensorFlow: the same logits to the bit, and no word of
    missing or unexpected keys."""
    monkeypatch.chdir(place.folder)
    tasks = []
    for form in FORMS:
        for way in ("gluonnlp",) if form == "relu" else ("gluonnlp", "tensorflow"):
            there, back = f"{form}-{way}", f"{form}-{way}-back"
            assert convert.main([form, there, "--to", way]) == 0
            assert convert.main([there, back, "--to", "huggingface"]) == 0
            tasks.append(task(back, text="the Capitals", **{"class": "BertForPreTraining"}))
        assert convert.main([form, f"{form}-encoder", "--to", "huggingface", "--encoder_only"]) == 0
        tasks.append(task(f"{form}-encoder", text="the Capitals", **{"class": "BertModel"}))
    for each, found in zip(tasks, transformers(place.folder, tasks)):
        assert not any(found["keys"].values()) and found["said"] == "", each
        assert [WORDS[index] for index in found["ids"]] == ["[CLS]", "the", "capital", "##s", "[SEP]"]
        outputs, form = place.outputs(each["out"]), each["folder"].partition("-")[0]
        if each["class"] == "BertForPreTraining":
            for name, array in place.outputs(f"{form}.npz").items():
                np.testing.assert_array_equal(outputs[name], array)
        else:
            assert outputs["pooled"].shape == (len(place.inputs.tokens), CONFIG.units)
