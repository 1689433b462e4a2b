"""A .params file without a manifest: whole, finite and tied, or one line that names the file and
the parameter, before MXNet is imported and before anything is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest

from base.errors import InputError
from bert.configuration import BertConfig, named_config
from bert.model import build_model, initialize
from bert.weights.bare_params import expected_shapes
from bert.weights.names import DECODER, EMBEDDING
from tests.bert.weights.building import TOKENS, WORDS, arrays, sizes_of, write
from training.inputs import check_inputs
from training.options import parse_options, run_config

MODEL, UNITS = "bert_2_16_2", 16
PROJECTION = "encoder.transformer_cells.1.proj.weight"


def whole() -> dict[str, np.ndarray]:
    found = arrays(named_config(MODEL))
    return {**found, DECODER: found[EMBEDDING].copy()}


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """A run's directory: a text, its vocabulary, and an empty ckpt."""
    monkeypatch.chdir(tmp_path)
    Path("vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    Path("text.txt").write_text("a b c\nd e\n\nf g h\ni\n" * 20, encoding="utf-8")
    Path("ckpt").mkdir()
    return tmp_path / "ckpt" / "0000005.params"


OPTIONS = ["--model", MODEL, "--raw", "--data", "text.txt", "--vocab", "vocab.txt"]
OPTIONS += ["--ckpt_dir", "ckpt", "--start_step", "5"]


def rejected(path: Path, arrays: dict[str, Any]) -> str:
    write(path, arrays)
    before = sorted(Path().rglob("*"))
    with pytest.raises(InputError) as caught:
        check_inputs(run_config(parse_options(OPTIONS, "description")))
    assert sorted(Path().rglob("*")) == before
    message = str(caught.value)
    assert message.startswith("--start_step 5: ckpt/0000005.params") and "\n" not in message
    assert "allow_missing" not in message and "ignore_extra" not in message
    return message


def test_names_and_shapes_are_the_models():
    odd = BertConfig(1, 16, 2, hidden=24, positions=30, token_types=3, activation="tanh")
    for config, tokens in ((named_config("bert_2_16_2"), 20), (named_config("bert_3_32_4"), 57), (odd, 40)):
        model = build_model(config, tokens)
        initialize(model, mx.cpu(), "float32", 0)
        of_model = {key: each.shape for key, each in model._collect_params_with_prefix().items()}
        assert list(expected_shapes(config, tokens).items()) == list(of_model.items())


@pytest.mark.parametrize("left_out", [(), (DECODER,), (EMBEDDING,)])
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_a_whole_file_passes(place, left_out, dtype):
    """The embedding and the decoder's weight are one array: either name will do."""
    arrays = {name: array.astype(dtype) for name, array in whole().items() if name not in left_out}
    write(place, arrays)
    check_inputs(run_config(parse_options(OPTIONS, "description")))
    model = build_model(named_config(MODEL), TOKENS)
    initialize(model, mx.cpu(), "float32", 0)
    model.load_parameters(str(place), ctx=mx.cpu(), cast_dtype=True)
    expected = next(iter({EMBEDDING, DECODER} - set(left_out)))
    found = model._collect_params_with_prefix()[DECODER].data().asnumpy()
    np.testing.assert_array_equal(found, arrays[expected].astype(np.float32))


@pytest.mark.parametrize(
    "name, value",
    [(PROJECTION, np.nan), (EMBEDDING, np.inf), ("classifier.bias", -np.inf), ("pooler.bias", 1e300)],
)
def test_numbers_that_are_not_finite(place, name, value):
    """As float32, whatever the file holds."""
    arrays = whole()
    arrays[name] = arrays[name].astype(np.float64)
    arrays[name].flat[-1] = value
    message = rejected(place, arrays)
    assert f"1 of the {arrays[name].size} numbers of {name} are not finite in float32" in message


def test_a_decoder_of_its_own(place):
    arrays = whole()
    arrays[DECODER][3, 4] += 1
    message = rejected(place, arrays)
    assert f"{DECODER} differs from {EMBEDDING} in 1 of 320 numbers" in message and "leave" in message
    Path("untied.json").write_text(
        json.dumps({**sizes_of(named_config(MODEL)), "tie_word_embeddings": False})
    )
    untied = ["--config_file", "untied.json", *OPTIONS[2:]]
    check_inputs(run_config(parse_options(untied, "description")))
    del arrays[DECODER]  # the advice
    write(place, arrays)
    check_inputs(run_config(parse_options(OPTIONS, "description")))
    with pytest.raises(InputError, match=f"5: ckpt/0000005.params lacks {DECODER} of this run's"):
        check_inputs(run_config(parse_options(untied, "description")))


@pytest.mark.parametrize(
    "beginning, said",
    [
        *(("classifier.", "(next-sentence head)"), ("decoder.", "(masked-LM head)"), ("pooler.", "(pooler)")),
        (PROJECTION, f"lacks {PROJECTION} of this run's --model;"),
    ],
)
def test_a_missing_head_or_parameter(place, beginning, said):
    arrays = {name: array for name, array in whole().items() if not name.startswith(beginning)}
    message = rejected(place, arrays)
    assert f"lacks {beginning}" in message and said in message and "save_parameters" in message


@pytest.mark.parametrize("name", ["span_head.weight", "two\nlines", "x" * 5000])
def test_parameters_of_something_else_beside_it(place, name):
    message = rejected(place, {**whole(), name: np.ones(3, np.float32)})
    assert "has not" in message and len(message) < 400


def test_other_shapes_and_dtypes(place):
    arrays = {**whole(), "encoder.position_weight": np.ones((128, UNITS), np.float32)}
    assert "encoder.position_weight of shape (128, 16), this run's --model of (512, 16)" in rejected(
        place, arrays
    )
    arrays = {**whole(), "classifier.bias": np.ones(2, np.int32)}
    assert "classifier.bias in int32" in rejected(place, arrays)


def test_the_numbers_are_read_by_rank_0_alone(place, monkeypatch):
    arrays = whole()
    arrays[PROJECTION][:] = np.nan
    write(place, arrays)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    check_inputs(run_config(parse_options(OPTIONS, "description")))
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    assert PROJECTION in rejected(place, arrays)
