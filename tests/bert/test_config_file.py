"""bert_config.json in the three spellings: what is read, listed, and rejected by the name of its key."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from base.errors import InputError
from bert.config_file import ConfigFile, read_config_file
from bert.configuration import BertConfig, named_config, recorded_config

# The keys and values of Google's BERT-base; NVIDIA's files have the same keys.
GOOGLE: dict[str, Any] = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "type_vocab_size": 2,
    "vocab_size": 30522,
}
HUGGING_FACE: dict[str, Any] = {
    **GOOGLE,
    "_name_or_path": "bert-base-uncased",
    "architectures": ["BertForPreTraining"],
    "classifier_dropout": None,
    "layer_norm_eps": 1e-12,
    "model_type": "bert",
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
    "torch_dtype": "float32",
    "transformers_version": "4.30.2",
    "use_cache": True,
}


@pytest.fixture
def read(tmp_path):
    def read_it(content: Any, raw: bytes | None = None) -> ConfigFile:
        path = tmp_path / "bert_config.json"
        path.write_bytes(json.dumps(content).encode() if raw is None else raw)
        return read_config_file(str(path), "--config_file")

    return read_it


@pytest.fixture
def rejected(read, tmp_path):
    def message(content: Any, raw: bytes | None = None) -> str:
        with pytest.raises(InputError) as caught:
            read(content, raw)
        text = str(caught.value)
        assert text.startswith(f"--config_file {tmp_path / 'bert_config.json'}: ") and "\n" not in text
        return text

    return message


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in GOOGLE.items() if name != key}


@pytest.mark.parametrize("content, gelu_open", [(GOOGLE, True), (HUGGING_FACE, False)])
def test_bert_base_as_google_and_hugging_face_write_it(read, content, gelu_open):
    found = read(content)
    assert found.config == named_config("bert_12_768_12") and found.vocab_size == 30522
    assert found.unknown_keys == () and found.gelu_open is gelu_open and found.hidden_act == "gelu"
    assert (found.dropout, found.attention_dropout, found.initial_stdev) == (0.1, 0.1, 0.02)
    assert found.config.activation == "erf"
    assert [found.with_gelu(form, "x.json").activation for form in ("erf", "tanh")] == ["erf", "tanh"]


def test_sizes_that_no_name_has(read):
    sizes = {"intermediate_size": 1000, "max_position_embeddings": 1024, "type_vocab_size": 3}
    assert read({**GOOGLE, **sizes}).config == BertConfig(12, 768, 12, 1000, 1024, 3)


def test_what_may_be_left_out(read):
    sizes = ("hidden_size", "intermediate_size", "max_position_embeddings", "num_attention_heads")
    found = read({key: GOOGLE[key] for key in (*sizes, "num_hidden_layers", "type_vocab_size")})
    assert found.config == named_config("bert_12_768_12")
    assert (found.vocab_size, found.dropout, found.attention_dropout, found.initial_stdev) == (None,) * 4
    assert found.hidden_act == "gelu" and found.gelu_open


def test_unknown_keys_are_listed_in_their_order(read):
    found = read({"net_structure_type": 0, **HUGGING_FACE, "fuse_mha": True})
    assert found.unknown_keys == ("net_structure_type", "fuse_mha")


@pytest.mark.parametrize(
    "hidden_act", ["gelu_python", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_accurate"]
)
@pytest.mark.parametrize("style", [GOOGLE, HUGGING_FACE], ids=["google", "hugging face"])
def test_a_named_form_of_gelu(read, style, hidden_act):
    form, other = ("erf", "tanh") if hidden_act == "gelu_python" else ("tanh", "erf")
    found = read({**style, "hidden_act": hidden_act})
    assert found.config.activation == form and not found.gelu_open
    assert found.with_gelu(form, "x.json").activation == form
    with pytest.raises(InputError, match=f"--gelu {other}: hidden_act of x.json is {hidden_act}"):
        found.with_gelu(other, "x.json")


@pytest.mark.parametrize("key", ["layer_norm_eps", "layer_norm_epsilon"])
def test_another_network(read, rejected, key):
    other = {**without("layer_norm_eps"), key: 1e-5, "hidden_act": "relu", "tie_word_embeddings": False}
    found = read(other)
    expected = replace(named_config("bert_12_768_12"), activation="relu", epsilon=1e-5, tied=False)
    assert found.config == expected and not found.gelu_open and found.unknown_keys == ()
    with pytest.raises(InputError, match="--gelu erf: hidden_act of x.json is relu, which is no GELU"):
        found.with_gelu("erf", "x.json")
    assert "differ; leave one" in rejected({"layer_norm_eps": 1e-5, **GOOGLE, "layer_norm_epsilon": 1e-6})


@pytest.mark.parametrize(
    "key, value, said",
    [
        ("hidden_act", "silu", '"silu"'),
        ("hidden_act", ["gelu"], '["gelu"]'),
        ("model_type", "roberta", '"roberta"'),
        *(("layer_norm_eps", value, "not a number") for value in (0, -1e-12, 1, 1e-60, "1e-5", True, [1e-5])),
        *(("layer_norm_epsilon", value, "not a number") for value in (float("nan"), float("inf"), 10**400)),
        ("tie_word_embeddings", "false", "not true or false"),
        ("tie_word_embeddings", 0, "not true or false"),
        ("embedding_size", 128, "768"),
        ("position_embedding_type", "relative_key", '"absolute"'),
        ("is_decoder", True, "true"),
        ("is_decoder", 0, "0"),
        ("add_cross_attention", True, "true"),
        ("pruned_heads", {"0": [1]}, '{"0": [1]}'),
    ],
)
def test_what_the_code_does_not_have(rejected, key, value, said):
    message = rejected({**HUGGING_FACE, key: value})
    assert f": {key} is " in message and said in message


def test_the_same_values_in_full_are_no_error(read):
    usual = {"embedding_size": 768, "is_decoder": False, "pruned_heads": {}, "tie_word_embeddings": True}
    assert read({**HUGGING_FACE, **usual}).unknown_keys == ()


@pytest.mark.parametrize("key", ["hidden_size", "type_vocab_size", "num_hidden_layers", "intermediate_size"])
def test_a_missing_size(rejected, key):
    assert f"{key} is missing" in rejected(without(key))


RATES = ["hidden_dropout_prob", "attention_probs_dropout_prob"]
NO_NUMBERS = {
    "hidden_size": [0, -1, 1.5, "768", None, True, 10**9, 10**400, [768]],
    **dict.fromkeys(RATES, [1, -0.1, "0.1", True, float("nan"), float("inf")]),
    "initializer_range": [0, -0.02, "0.02", float("inf")],
}


@pytest.mark.parametrize("key", NO_NUMBERS)
def test_a_size_a_rate_or_a_deviation_that_is_none(rejected, key):
    for value in NO_NUMBERS[key]:
        assert f"{key} is " in rejected({**GOOGLE, key: value}), value


def test_heads_that_do_not_divide(rejected):
    assert "num_attention_heads 5 do not divide hidden_size 768" in rejected(
        {**GOOGLE, "num_attention_heads": 5}
    )


@pytest.mark.parametrize(
    "raw, said",
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[1]", "not a JSON object"),
        (b"{}", "num_hidden_layers is missing"),
        (b'{"model_type": "distilbert", "n_layers": 6}', 'is "distilbert", and this code has "bert"'),
        (b" " * (1 << 20) + b"{}", "more than 1 MiB"),
    ],
    ids=["empty", "cut", "binary", "deep", "list", "nothing", "another model", "large"],
)
def test_another_kind_of_file(rejected, raw, said):
    assert said in rejected(None, raw)


def test_files_that_are_not_there(tmp_path):
    for path in (tmp_path / "nowhere.json", tmp_path):
        with pytest.raises(InputError, match="cannot be read"):
            read_config_file(str(path), "INPUT")


SIZES = {"layers": 2, "units": 64, "heads": 2, "hidden": 100}
DAMAGES = [("epsilon", float("nan")), ("epsilon", "1"), ("tied", 1), ("activation", "silu"), ("heads", 2.0)]


class TestDescription:
    def test_only_what_differs_is_said(self):
        assert named_config("bert_2_64_2").description == "bert_2_64_2"
        other = BertConfig(2, 64, 2, hidden=100, positions=1024, token_types=3, activation="tanh")
        assert other.description == (
            "bert_2_64_2 (feed-forward layers of 100 units, 1024 positions, 3 token types, GELU by tanh)"
        )

    def test_facts_keep_all(self):
        config = BertConfig(2, 64, 2, hidden=100, positions=1024, token_types=3, activation="tanh")
        facts = json.loads(json.dumps(config.facts()))
        assert facts["model"] == "bert_2_64_2" and recorded_config(facts, "a") == config
        facts["bert"]["gelu"] = facts["bert"].pop("activation")  # as it was called
        assert recorded_config(facts, "a") == config
        other = replace(config, activation="relu", epsilon=1e-5, tied=False)
        assert recorded_config(json.loads(json.dumps(other.facts())), "a") == other
        assert "3 token types, ReLU, layer-norm epsilon 1e-05, a decoder of its own)" in other.description

    def test_a_name_alone_was_recorded_before(self):
        assert recorded_config({"model": "bert_2_64_2"}, "a") == named_config("bert_2_64_2")

    @pytest.mark.parametrize(
        "facts",
        [
            *({}, {"model": "x"}, {"model": 3}, {"bert": {"rings": 1}}, {"bert": []}),
            *({"bert": {**SIZES, name: value}} for name, value in DAMAGES),
        ],
    )
    def test_neither(self, facts):
        with pytest.raises(InputError, match="^a has no model in the form"):
            recorded_config(facts, "a")
