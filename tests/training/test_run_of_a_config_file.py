"""Whole runs whose model comes from --config_file, and the same by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bert.configuration import recorded_config
from bert.weights.names import DECODER
from comm.local import LocalCommunicator
from data.tokenizing.vocab import load_vocab
from tasks.pretraining.task import Pretraining
from training.inputs import check_inputs
from training.options import parse_options, run_config
from training.start.weights import find_weights
from training.train import train

BASE = {
    **{"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 128},
    **{"max_position_embeddings": 512, "type_vocab_size": 2, "hidden_act": "gelu"},
    **{"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "initializer_range": 0.02},
}


@pytest.fixture
def run(corpus, tmp_path, capsys):
    """Trains in a folder of that name; returns the folder and what was printed."""

    def run_it(name: str, *arguments: str) -> tuple[Path, str]:
        words = ["--raw", "--data", corpus.train, "--vocab", corpus.vocab, "--max_seq_length", "32"]
        words += ["--batch_size", "8", "--lr", "0.01", "--log_interval", "2", "--ckpt_interval", "2"]
        words += ["--ckpt_dir", str(tmp_path / name), "--cache_dir", str(tmp_path / "cache")]
        words += ["--progress", "lines", "--num_data_workers", "0", "--peak_tflops", "1", *arguments]
        config = run_config(parse_options(words, ""))
        assert train(config, check_inputs(config), Pretraining(), LocalCommunicator()) == 0
        return tmp_path / name, capsys.readouterr().out

    return run_it


def config_file(folder: Path, **changes) -> str:
    path = folder / "bert_config.json"
    path.write_text(json.dumps({**BASE, **changes}))
    return str(path)


@pytest.mark.parametrize("operators", ["fused", "mxnet"])
def test_a_file_with_a_names_sizes_is_that_model_bit_for_bit(run, corpus, tmp_path, operators):
    tokens = len(load_vocab(corpus.vocab))
    own = ["--num_steps", "2", "--operators", operators]
    named, _ = run("named", *own, "--model", "bert_1_32_2")
    filed, shown = run("filed", *own, "--config_file", config_file(tmp_path, vocab_size=tokens, ring=1))
    for name in ("0000002.params", "0000002.states.npz"):
        assert (named / name).read_bytes() == (filed / name).read_bytes()
    assert (
        "GELU by erf, dropout 0.1, random weights of standard deviation 0.02; keys not known here: ring"
        in shown
    )


ANOTHER = {"hidden_act": "relu", "layer_norm_eps": 1e-3, "tie_word_embeddings": False}


@pytest.mark.parametrize(
    "network, shown_as, recorded",
    [
        ({"hidden_act": "gelu_new"}, "GELU by tanh)", ("tanh", 1e-12, True)),
        (ANOTHER, "ReLU, layer-norm epsilon 0.001, a decoder of its own)", ("relu", 1e-3, False)),
    ],
)
@pytest.mark.parametrize("operators", ["fused", "mxnet"])
def test_a_model_of_no_name_continues_bit_for_bit(
    run, corpus, tmp_path, operators, network, shown_as, recorded
):
    """Narrow feed-forward layers, few positions, padded rows, another network, other random weights."""
    rows = len(load_vocab(corpus.vocab)) + 3
    changes = {"intermediate_size": 40, "max_position_embeddings": 33, "type_vocab_size": 3}
    path = config_file(tmp_path, vocab_size=rows, initializer_range=0.05, **network, **changes)
    own = ["--config_file", path, "--operators", operators, "--warmup_ratio", "0"]
    whole, shown = run("whole", *own, "--num_steps", "4", "--end_lr", "0.01")
    assert "bert_1_32_2 (feed-forward layers of 40 units, 33 positions, 3 token types, " + shown_as in shown
    part, _ = run("part", *own, "--num_steps", "2", "--end_lr", "0.01")
    run("part", *own, "--num_steps", "4", "--end_lr", "0.01", "--resume")
    for name in ("0000004.params", "0000004.states.npz"):
        assert (whole / name).read_bytes() == (part / name).read_bytes()
    manifest = json.loads((part / "0000004.json").read_text())
    assert manifest["model"] == "bert_1_32_2" and manifest["vocab_size"] == rows
    assert tuple(manifest["bert"][name] for name in ("activation", "epsilon", "tied")) == recorded
    assert manifest["bert"]["hidden"] == 40
    weights = find_weights(str(part), "INPUT")
    assert weights.config == recorded_config(manifest, "it") and (DECODER in weights.tensors) != recorded[2]
