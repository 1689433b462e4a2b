"""Names, shapes and outputs against the models that GluonNLP itself builds."""

from __future__ import annotations

import gluonnlp
import mxnet as mx
import numpy as np
import pytest
from gluonnlp.model.bert import BERTModel

from bert.configuration import named_config
from bert.model import TanhGELU, build_model, initialize, trainable
from bert.weights.params_file import write_params
from tests.bert.operators.test_gelu import slope
from tests.bert.reference import activated
from tests.training.tiny import block_arrays


def vocabulary(size: int) -> gluonnlp.vocab.BERTVocab:
    special = 5  # BERTVocab adds [UNK], [PAD], [SEP], [CLS] and [MASK]
    found = gluonnlp.vocab.BERTVocab({f"token{index}": 1 for index in range(size - special)})
    assert len(found) == size
    return found


def gluonnlp_model(name: str, size: int, **overrides: int) -> BERTModel:
    model, _ = gluonnlp.model.get_model(
        name,
        vocab=vocabulary(size),
        dataset_name=None,
        pretrained=False,
        hparam_allow_override=bool(overrides),
        **overrides,
    )
    return model


def shapes(model: BERTModel) -> dict[str, tuple]:
    return {name: parameter.shape for name, parameter in model._collect_params_with_prefix().items()}


@pytest.fixture
def tiny() -> BERTModel:
    model = build_model(named_config("bert_2_32_4"), 60)
    initialize(model, mx.cpu(), "float32", seed=3)
    return model


@pytest.mark.parametrize("name", ["bert_12_768_12", "bert_24_1024_16"])
def test_the_published_models_have_gluonnlps_names_and_shapes(name):
    assert shapes(build_model(named_config(name), 30522)) == shapes(gluonnlp_model(name, 30522))


def test_a_model_that_gluonnlp_builds_loads_our_params_and_computes_the_same(tiny, tmp_path):
    path = tmp_path / "0000001.params"
    with path.open("wb") as file:
        write_params(file, block_arrays(tiny))
    overrides = {"num_layers": 2, "units": 32, "hidden_size": 128, "num_heads": 4, "embed_size": 32}
    theirs = gluonnlp_model("bert_12_768_12", 60, **overrides)
    theirs.load_parameters(str(path), ctx=mx.cpu())

    rng = np.random.default_rng(0)
    tokens = mx.nd.array(rng.integers(0, 60, (3, 10)))
    segments = mx.nd.array(rng.integers(0, 2, (3, 10)))
    lengths, positions = mx.nd.array([10, 7, 4]), mx.nd.array([[1, 2], [0, 6], [3, 3]])
    for ours, expected in zip(
        tiny(tokens, segments, lengths, positions), theirs(tokens, segments, lengths, positions)
    ):
        assert ours.shape == expected.shape
        np.testing.assert_array_equal(ours.asnumpy(), expected.asnumpy())


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_gelu_by_tanh(dtype):
    """Values and gradients in float64, also where a cube is beyond the dtype, and of what is no number."""
    finite = np.concatenate([np.linspace(-12, 12, 4001), [50, -50, 6e4, -6e4]]).astype(dtype)
    if dtype == "float32":
        finite = np.append(finite, np.array([3e38, -3e38], dtype))
    x = mx.nd.array(finite, dtype=dtype)
    x.attach_grad()
    block = TanhGELU()
    block.hybridize()
    with mx.autograd.record():
        output = block(x)
    output.backward()
    h, precision = finite.astype(np.float64), 4 * np.finfo(dtype).eps
    np.testing.assert_allclose(output.asnumpy(), activated(h, "tanh"), rtol=precision, atol=precision)
    np.testing.assert_allclose(x.grad.asnumpy(), slope(h, "tanh"), rtol=0, atol=6 * precision)
    lost = block(mx.nd.array([np.inf, -np.inf, np.nan])).asnumpy()
    np.testing.assert_array_equal(lost, [np.inf, np.nan, np.nan])


def test_initial_values():
    model = build_model(named_config("bert_2_64_4"), 1000)
    initialize(model, mx.cpu(), "float32", seed=1)
    for name, parameter in model._collect_params_with_prefix().items():
        values = parameter.data().asnumpy()
        if name.endswith("gamma"):
            np.testing.assert_array_equal(values, 1)
        elif name.endswith(("beta", "bias")):
            np.testing.assert_array_equal(values, 0)
        else:
            assert values.ndim == 2
            # Four standard errors of the mean and of the standard deviation of n normal numbers.
            assert abs(values.mean()) < 4 * 0.02 / values.size**0.5, name
            assert abs(values.std() / 0.02 - 1) < 4 / (2 * values.size) ** 0.5, name


def test_trainable_lists_every_parameter_once_and_the_tied_weight_as_the_embedding(tiny):
    named = trainable(tiny)
    assert len({id(parameter) for parameter in named.values()}) == len(named)
    assert {id(parameter) for parameter in named.values()} == {
        id(parameter) for parameter in tiny.collect_params().values()
    }
    assert "word_embed.0.weight" in named and "decoder.3.weight" not in named
    assert tiny.decoder[3].weight is named["word_embed.0.weight"]
    assert "decoder.3.bias" in named


def test_trainable_leaves_out_what_is_frozen(tiny):
    tiny.pooler.weight.grad_req = "null"
    assert "pooler.weight" not in trainable(tiny) and "pooler.bias" in trainable(tiny)
