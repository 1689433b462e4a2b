"""Whole runs whose model comes from --config_file."""

from __future__ import annotations

import json

import pytest

from bert.configuration import recorded_config
from bert.weights.names import DECODER
from data.tokenizing.vocab import load_vocab
from tests.training.staged import arrays_of, manifest_of, run
from training.start.weights import find_weights

BASE = {
    **{"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 128},
    **{"max_position_embeddings": 512, "type_vocab_size": 2, "hidden_act": "gelu"},
    **{"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "initializer_range": 0.02},
}
PLAIN = {
    "stages": None, "model": None, "max_seq_length": 32, "batch_size": 8, "lr": 0.01, "warmup_ratio": 0,
    "data_eval": None,
}  # fmt: skip


@pytest.fixture
def trained(corpus, tmp_path, capsys):
    """Trains with a bert_config.json of BASE but for its `changes`; returns the folder and what was said."""

    def train(name, changes, **options):
        path = tmp_path / "bert_config.json"
        path.write_text(json.dumps({**BASE, **changes}))
        assert run(tmp_path / name, corpus, **{**PLAIN, "config_file": path, **options}) == 0
        return tmp_path / name, capsys.readouterr().out

    return train


def test_a_file_with_a_names_sizes_is_that_model_bit_for_bit(trained, corpus):
    changes = {"vocab_size": len(load_vocab(corpus.vocab)), "ring": 1}
    named, _ = trained("named", changes, num_steps=2, model="bert_1_32_2", config_file=None)
    filed, shown = trained("filed", changes, num_steps=2)
    assert arrays_of(named, 2) == arrays_of(filed, 2)
    said = "GELU by erf, dropout 0.1, random weights of standard deviation 0.02; keys not known here: ring"
    assert said in shown


ANOTHER = {"hidden_act": "relu", "layer_norm_eps": 1e-3, "tie_word_embeddings": False}


@pytest.mark.parametrize(
    "operators, network, shown_as, recorded",
    [
        ("mxnet", {"hidden_act": "gelu_new"}, "GELU by tanh)", ("tanh", 1e-12, True)),
        *(
            (each, ANOTHER, "ReLU, layer-norm epsilon 0.001, a decoder of its own)", ("relu", 1e-3, False))
            for each in ("fused", "mxnet")
        ),
    ],
)
def test_a_model_of_no_name_continues_bit_for_bit(trained, corpus, operators, network, shown_as, recorded):
    """Narrow feed-forward layers, few positions, padded rows, another network, other random weights."""
    rows = len(load_vocab(corpus.vocab)) + 3
    changes = {"intermediate_size": 40, "max_position_embeddings": 33, "type_vocab_size": 3}
    changes.update(vocab_size=rows, initializer_range=0.05, **network)
    own = {"operators": operators, "end_lr": 0.01}  # the rate does not depend on the number of steps
    whole, shown = trained("whole", changes, num_steps=4, **own)
    assert "bert_1_32_2 (feed-forward layers of 40 units, 33 positions, 3 token types, " + shown_as in shown
    trained("part", changes, num_steps=2, **own)
    part, _ = trained("part", changes, num_steps=4, resume=True, **own)
    assert arrays_of(whole, 4) == arrays_of(part, 4)
    manifest = manifest_of(part, 4)
    assert manifest["model"] == "bert_1_32_2" and manifest["vocab_size"] == rows
    assert tuple(manifest["bert"][name] for name in ("activation", "epsilon", "tied")) == recorded
    assert manifest["bert"]["hidden"] == 40
    weights = find_weights(str(part), "INPUT")
    assert weights.config == recorded_config(manifest, "it") and (DECODER in weights.tensors) != recorded[2]
