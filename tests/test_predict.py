"""predict.py: the same answers from every format, against float64 NumPy; one line for an error."""

from __future__ import annotations

import json
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import convert
import predict
from base.errors import InputError
from comm.local import LocalCommunicator
from data import train_vocab
from data.tokenizing.vocab import load_vocab
from tasks.pretraining.scores import Embedder
from tasks.pretraining.task import Pretraining
from tests.bert.reference import HuggingFace, logits, sequence, softmax
from tests.bert.weights.building import SMALL, TOKENS, WORDS, arrays, write
from tests.bert.weights.test_pickled import Storage, archive, pickled, tensor
from tests.processes import ROOT, run_command
from tests.test_convert import source
from training.checkpoint import save
from training.inputs import check_inputs
from training.options import parse_options, run_config
from training.run_inputs import Part
from training.train import train_stages

BARE = ("--vocab", "vocab.txt", "--model", "bert_2_64_2")  # of weights beside which nothing lies
LONG_WORDS = [letter * 4 for letter in "abcdefghijklmno"]
FIRST, SECOND = "a b [MASK] c", "d [MASK] e e"
EMBED = ("huggingface", "--embed")


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    """One model: a run's folder, GluonNLP's, Hugging Face's, TensorFlow's, and without heads."""
    folder = tmp_path_factory.mktemp("weights")
    named = arrays(stdev=0.1)
    source(str(folder / "gluonnlp"), stdev=0.1)
    shutil.copy(folder / "gluonnlp" / "vocab.txt", folder)
    for to in ("huggingface", "tensorflow"):
        assert convert.main([str(folder / "gluonnlp"), str(folder / to), "--to", to]) == 0
    # As NVIDIA's scripts save a checkpoint: Hugging Face's names, beside the optimizer's states.
    storages = {
        name: Storage(array, str(index))
        for index, (name, array) in enumerate(load_file(folder / "huggingface" / "model.safetensors").items())
    }
    model = {}
    for name, storage in storages.items():
        strides = tuple(stride // 4 for stride in storage.content.strides)
        model[name] = tensor(storage, 0, storage.content.shape, strides)
    (folder / "nvidia").mkdir()
    archive(folder / "nvidia" / "ckpt_5.pt", pickled({"model": model, "epoch": 0}), *storages.values())
    encoder = {name: each for name, each in named.items() if name.startswith(("enc", "word", "token"))}
    write(folder / "encoder" / "model.params", encoder)
    facts = {**SMALL.facts(), "vocab_size": TOKENS, "options": {"cased": False}}
    facts["vocab_sha256"] = load_vocab(str(folder / "vocab.txt")).sha256
    other = {name: each + 1 for name, each in named.items()}
    for step, content in ((3, other), (5, named), (8, other)):
        save(str(folder / "run"), step, content, {"t": np.array(step)}, facts)
    (folder / "run" / "0000008.params").write_bytes(b"damaged")
    return folder


def ask(*arguments: str) -> list[dict[str, Any]]:
    config = predict.parse(arguments)
    opened, vocabulary, asked = predict.prepare(config)
    return list(predict.answer(config, opened, vocabulary, asked))


def reference(
    folder: Path, ids: list[int], segments: list[int], form: str = "erf"
) -> tuple[np.ndarray, float]:
    """Probabilities at the masks, and that the second sentence follows, in float64."""
    of = HuggingFace(load_file(str(folder / "huggingface" / "model.safetensors")))
    places = np.array([[place for place, token in enumerate(ids) if token == WORDS.index("[MASK]")]])
    x = sequence(of, SMALL.heads, form, np.array([ids]), np.array([segments]), np.array([len(ids)]))
    next_sentence, decoded = logits(of, form, x, places)
    return softmax(decoded)[0], softmax(next_sentence)[0, 0]


def ids_of(*words: str) -> list[int]:
    return [WORDS.index(word) for word in words]


PAIR = ids_of("[CLS]", "a", "b", "[MASK]", "c", "[SEP]", "d", "[MASK]", "e", "e", "[SEP]")


@pytest.mark.parametrize("form", ["erf", "tanh"])
@pytest.mark.parametrize("operators", ["mxnet", "fused", "fused --padding remove"])
def test_probabilities_are_the_references(weights, operators, form):
    options = ["--top_k", "20", "--operators", *operators.split(), "--gelu", form]
    (found,) = ask(str(weights / "gluonnlp"), FIRST, SECOND, *options)
    tokens, follows = reference(weights, PAIR, [0] * 6 + [1] * 5, form)
    assert (found["text"], found["second"]) == (FIRST, SECOND)
    assert found["next_sentence"] == pytest.approx(follows, abs=1e-5)
    assert len(found["masks"]) == 2
    for mask, expected in zip(found["masks"], tokens):
        assert [each["token"] for each in mask] == [WORDS[index] for index in np.argsort(-expected)]
        for each in mask:
            assert each["probability"] == pytest.approx(expected[each["id"]], abs=1e-5)
        assert sum(each["probability"] for each in mask) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize(
    "given",
    [
        ["huggingface"],
        ["huggingface/model.safetensors"],
        ["tensorflow"],
        ["tensorflow/bert_model.ckpt"],
        ["gluonnlp/model.params"],
        ["nvidia", *BARE],
        ["run", "--vocab", "vocab.txt"],  # of which the newest complete one counts
        ["run:5", "--vocab", "vocab.txt"],
        ["run/0000005.params", "--vocab", "vocab.txt"],
    ],
    ids=" ".join,
)
def test_every_format_gives_the_same_answer(weights, given, monkeypatch):
    monkeypatch.chdir(weights)
    expected = ask("gluonnlp", FIRST, SECOND, "--operators", "mxnet")
    assert ask(*given, FIRST, SECOND, "--operators", "mxnet") == expected


def test_another_checkpoint_gives_another_answer(weights):
    words = ["--vocab", str(weights / "vocab.txt"), FIRST]
    assert ask(f"{weights}/run:3", *words) != ask(f"{weights}/run:5", *words)


def test_the_form_of_gelu_is_the_weights(weights):
    """The file beside the TensorFlow checkpoint says erf; --gelu says otherwise."""
    words = [str(weights / "tensorflow"), FIRST, "--operators", "mxnet"]
    plain, erf, tanh = ask(*words), ask(*words, "--gelu", "erf"), ask(*words, "--gelu", "tanh")
    assert plain == erf != tanh


class TestFile:
    @pytest.mark.parametrize("operators", ["mxnet", "fused --padding remove"])
    def test_inputs_of_all_kinds_and_sizes(self, weights, tmp_path, operators):
        path = tmp_path / "inputs.txt"
        path.write_text("a [MASK]\na b\tc d\r\n[MASK] b c d e f g h [MASK]\ta\n", encoding="utf-8")
        words = [str(weights / "huggingface"), "--operators", *operators.split()]
        found = ask(*words, "--file", str(path), "--batch_size", "2", "--top_k", "3")
        assert [len(each["masks"]) for each in found] == [1, 0, 2]
        assert [each["next_sentence"] is None for each in found] == [True, False, False]
        alone = [ask(*words, *line, "--top_k", "3")[0] for line in (["a [MASK]"], ["a b", "c d"])]
        for one, many in zip(alone, found):
            for mine, theirs in zip([one, *sum(one["masks"], [])], [many, *sum(many["masks"], [])]):
                assert {**mine, "masks": None} == pytest.approx({**theirs, "masks": None}, abs=1e-6)

    @pytest.mark.parametrize(
        "content, said",
        [
            (b"", "is empty"),
            (b"a [MASK]\nb c\n", "line 2: no [MASK] and no second sentence"),
            (b"a [MASK]\n\n", "line 2: no [MASK] and no second sentence"),
            (b"a\tb\tc\n", "line 1: 2 tabs"),
            (b"a\t \n", "line 1: one of its two sentences is empty"),
            (b"[MASK]\n\xff\n", "line 2: not valid UTF-8"),
            (b"[MASK]" + b" a" * 40 + b"\n", "line 1: 43 tokens with [CLS] and [SEP]"),
        ],
    )
    def test_lines_that_cannot_be_answered(self, weights, tmp_path, content, said):
        path = tmp_path / "inputs.txt"
        path.write_bytes(content)
        assert said in rejected(str(weights / "huggingface"), "--file", str(path))


def rejected(*arguments: str) -> str:
    with pytest.raises(InputError) as caught:
        predict.prepare(predict.parse(arguments))
    message = str(caught.value)
    assert "\n" not in message
    return message


def question(folder: Path, *arguments: str) -> predict.Question:
    (found,) = predict.prepare(predict.parse([str(folder / "huggingface"), *arguments]))[2]
    return found


class TestQuestions:
    def test_special_tokens_in_a_text_are_those_tokens(self, weights):
        found = question(weights, "A[MASK]b [SEP] c [mask]. [UNK]")
        # "[mask]" is no special token, and none of its parts is in the vocabulary.
        inner = ids_of("a", "[MASK]", "b", "[SEP]", "c", *["[UNK]"] * 4, "[UNK]")
        assert list(found.ids) == [*ids_of("[CLS]"), *inner, *ids_of("[SEP]")]
        assert list(found.masks) == [2] and set(found.segments) == {0}

    def test_upper_case_is_kept_where_the_weights_keep_it(self, weights):
        assert question(weights, "A [MASK]").ids[1] == WORDS.index("a")
        assert question(weights, "A [MASK]", "--cased").ids[1] == WORDS.index("[UNK]")

    def test_as_many_tokens_as_positions(self, weights):
        longest = "[MASK]" + " a" * (SMALL.positions - 3)
        assert len(question(weights, longest).ids) == SMALL.positions
        assert "41 tokens" in rejected(str(weights / "huggingface"), longest + " a")
        assert question(weights, longest + " a b c", "--truncate").ids == question(weights, longest).ids

    def test_truncation_shortens_the_longer_one(self, weights):
        found = question(weights, "[MASK]" + " a" * 30, "b c" + " d" * 20, "--truncate")
        assert len(found.ids) == SMALL.positions
        ends = [place for place, token in enumerate(found.ids) if token == WORDS.index("[SEP]")]
        assert (ends[0] - 1, ends[1] - ends[0] - 1) in ((18, 19), (19, 18))
        message = rejected(str(weights / "huggingface"), "a " * 50 + "[MASK]", "--truncate")
        assert "--truncate would cut off a [MASK]" in message


def embed(*arguments: str) -> str:
    config = predict.parse(["--embed", *arguments])
    opened, _, asked = predict.prepare(config)
    return predict.embed(config, opened, asked)


class TestEmbed:
    LINES = ("a b c", "d", "e f g h i j k l m n o a b c d\te e", "k [MASK] [UNK] z")
    IDS = (
        (ids_of("[CLS]", *"abc", "[SEP]"), 0),
        (ids_of("[CLS]", "d", "[SEP]"), 0),
        (ids_of("[CLS]", *"efghijklmnoabcd", "[SEP]", "e", "e", "[SEP]"), 3),
        (ids_of("[CLS]", "k", "[MASK]", "[UNK]", "[UNK]", "[SEP]"), 0),
    )

    @pytest.fixture
    def file(self, tmp_path) -> str:
        path = tmp_path / "texts.txt"
        path.write_text("".join(f"{line}\n" for line in self.LINES))
        return str(path)

    @pytest.mark.parametrize("operators", ["mxnet", "fused", "fused --padding remove"])
    @pytest.mark.parametrize(
        "layer, pooling", [(0, "cls"), (0, "mean"), (1, "mean"), (2, "cls"), (2, "mean")]
    )
    def test_vectors_are_the_references(self, weights, file, tmp_path, operators, layer, pooling):
        words = ["--file", file, "--output", str(tmp_path / "v.npz"), "--operators", *operators.split()]
        words += [] if layer == SMALL.layers else ["--layer", str(layer)]
        words += [] if pooling == "mean" else ["--pooling", pooling]
        embed(str(weights / "huggingface"), *words, "--batch_size", "3")
        found = np.load(tmp_path / "v.npz", allow_pickle=False)["vectors"]
        named = load_file(str(weights / "huggingface" / "model.safetensors"))
        above = tuple(f"bert.encoder.layer.{number}." for number in range(layer, SMALL.layers))
        of = HuggingFace({name: each for name, each in named.items() if not name.startswith(above)})
        assert found.shape == (4, SMALL.units) and found.dtype == np.float32
        for vector, (ids, second) in zip(found, self.IDS):
            segments = np.array([[0] * (len(ids) - second) + [1] * second])
            x = sequence(of, SMALL.heads, "erf", np.array([ids]), segments, np.array([len(ids)]))[0]
            np.testing.assert_allclose(vector, x[0] if pooling == "cls" else x.mean(axis=0), atol=1e-5)

    def test_texts_of_the_command_line_and_both_files(self, weights, tmp_path, monkeypatch):
        """The numbers of the TSV are those of the array, to the bit. An encoder alone will do."""
        monkeypatch.chdir(weights)
        words = ["encoder", *BARE]
        for name in ("v.npz", "v.tsv"):
            said = embed(*words, "a b c", "d", "--output", str(tmp_path / name))
        assert said == f"{tmp_path}/v.tsv: 2 vectors of 64 numbers, layer 2 of 2, mean"
        found = np.load(tmp_path / "v.npz")
        assert found.files == ["vectors"] and found["vectors"].shape == (2, 64)
        np.testing.assert_array_equal(np.loadtxt(tmp_path / "v.tsv", dtype=np.float32), found["vectors"])

    def test_nothing_is_half_written(self, weights, tmp_path, monkeypatch):
        def full(self, batch):
            raise OSError(28, "No space left on device")

        path = tmp_path / "v.tsv"
        path.write_text("before")
        monkeypatch.setattr(Embedder, "__call__", full)
        with pytest.raises(OSError, match="No space"):
            embed(str(weights / "huggingface"), "a", "--output", str(path))
        assert list(tmp_path.iterdir()) == [path] and path.read_text() == "before"


@pytest.mark.parametrize(
    "given, said",
    [
        (["huggingface", "a"], "no [MASK] and no second sentence"),
        (["huggingface", "a", "b", "c"], "give one sentence with [MASK], or two"),
        (["huggingface"], "give one sentence with [MASK], or two"),
        (["huggingface", "a", "--file", "f"], "--file f and sentences on the command line exclude"),
        (["huggingface", "a", "--examples", "f"], "--examples f and sentences on the command line exclude"),
        (["huggingface", "--file", "nowhere"], "--file nowhere: cannot be read"),
        (["nowhere", "[MASK]"], "WEIGHTS nowhere does not exist"),
        (["run:5", "[MASK]"], "no vocabulary lies beside it; give --vocab"),
        (["run:4", "[MASK]"], "run:4: no checkpoint of this step; available: 3, 5, 8"),
        (["run:8", "[MASK]"], "0000008.params is damaged"),
        (["encoder", "[MASK]", *BARE], "the masked-LM head, which"),
        (["encoder", "a", "b", *BARE], "pooler and next-sentence"),
        (["huggingface", "[MASK]", "--vocab", "v", "--sentencepiece", "s"], "exclude each other"),
        (["huggingface", "[MASK]", "--top_k", "0"], "--top_k"),
        (["huggingface", "a [MASK]", "--layer", "1"], "--layer is for --embed"),
        ([*EMBED, "a"], "--embed needs --output, a file whose name ends with .npz or .tsv"),
        ([*EMBED, "a", "--output", "v.npy"], "--embed needs --output"),
        ([*EMBED, "a", "--output", "nowhere/v.npz"], "--output nowhere/v.npz: no file can be there"),
        ([*EMBED, "--file", "./v.tsv", "--output", "v.tsv"], "--output v.tsv would replace --file"),
        ([*EMBED, "--output", "v.npz"], "--embed: give texts, or --file"),
        ([*EMBED, "a", "--output", "v.npz", "--json"], "--embed and --json exclude each other"),
        ([*EMBED, "a", "--output", "v.npz", "--top_k", "5"], "--embed and --top_k exclude each other"),
        ([*EMBED, "a", "--output", "v.npz", "--layer", "3"], "--layer 3: huggingface/model.safete"),
        ([*EMBED, "a", " ", "--output", "v.npz"], "text 2: no token is left of the text; remove it"),
        ([*EMBED, "a", "b " * 39, "--output", "v.npz"], "text 2: 41 tokens with [CLS] and [SEP]"),
    ],
)
def test_errors(weights, monkeypatch, given, said):
    monkeypatch.chdir(weights)
    assert said in rejected(*given)


@pytest.fixture
def written(weights, tmp_path, monkeypatch):
    """Writes arrays as a file beside which nothing lies; gives its path. The vocabulary is in this folder."""
    monkeypatch.chdir(weights)
    return lambda named: write(tmp_path / "model.params", named)


def test_a_missing_next_sentence_head_does_not_hide_the_masks(written):
    named = {name: each for name, each in arrays(stdev=0.1).items() if "classifier" not in name}
    (found,) = ask(written(named), FIRST, SECOND, *BARE, "--operators", "mxnet")
    (whole,) = ask("gluonnlp", FIRST, SECOND, "--operators", "mxnet")
    assert found == {**whole, "next_sentence": None}
    assert "the weights lack the next-sentence head" in "\n".join(predict.lines(found))


def test_rows_of_padding_are_no_answers(written):
    """Their share stays in the sum, as in training."""
    (found,) = ask(written(arrays(vocab_size=24, stdev=0.1)), FIRST, *BARE, "--top_k", "99")
    (mask,) = found["masks"]
    assert {each["token"] for each in mask} == set(WORDS)
    assert sum(each["probability"] for each in mask) < 1


def test_weights_that_are_not_finite(written):
    named = arrays()
    named["decoder.0.bias"][3] = np.nan
    with pytest.raises(InputError, match="decoder.0.bias has numbers that are not finite"):
        ask(written(named), FIRST, *BARE)
    named = {name: each * np.float32(1e30) for name, each in arrays(stdev=0.1).items()}
    with pytest.raises(InputError, match="so large that the outputs are not finite"):
        ask(written(named), FIRST, *BARE)


def test_a_run_brings_its_sentencepiece_model(corpus, tmp_path):
    """Nothing but the folder is needed; the model may also lie elsewhere. (A run with a vocab.txt:
    tests/test_readme.py.)"""
    pytest.importorskip("sentencepiece")
    given, run = tmp_path / "m.model", tmp_path / "run"
    made = ["--type", "sentencepiece", "--input", corpus.held_out, "--output", str(given)]
    train_vocab.main([*made, "--vocab_size", "300"])
    words = ["--raw", "--data", corpus.held_out, "--sentencepiece", str(given), "--model", "bert_1_32_2"]
    words += ["--num_steps", "1", "--max_seq_length", "32", "--batch_size", "4"]
    words += ["--num_data_workers", "0", "--progress", "none"]
    config = run_config(parse_options([*words, "--ckpt_dir", str(run)], ""))
    part = Part(config, check_inputs(config))
    assert train_stages([part], Pretraining(), LocalCommunicator()) == 0
    given.unlink()
    asked = [str(run), "The [MASK] of a file", "It is open"]
    (found,) = ask(*asked)
    assert len(found["masks"][0]) == 5 and 0 < found["next_sentence"] < 1
    (run / "sentencepiece.model").rename(given)
    assert ask(*asked, "--sentencepiece", str(given)) == [found]
    assert "no vocabulary lies beside it" in rejected(*asked)


def test_the_command(weights):
    """Lines for people; bad input is one line and exit code 2, before mxnet is imported."""
    command = [sys.executable, str(ROOT / "predict.py"), "gluonnlp"]
    asked = [f"{FIRST} \u4e2d", SECOND, "--operators", "mxnet"]
    shown = run_command([*command, *asked], cwd=weights, env={"PYTHONIOENCODING": "ascii"}).check().stdout
    lines = shown.splitlines()
    assert lines[0] == rf"{FIRST} \u4e2d | {SECOND}"
    assert lines[3].startswith("  the second sentence follows the first: ")
    assert lines[1].startswith("  [MASK] 1  ") and lines[1].count("%") == 5
    failed = run_command([*command, "nothing"], cwd=weights)
    assert failed.returncode == 2 and failed.stdout == ""
    assert failed.stderr.splitlines() == [
        "error: the text: no [MASK] and no second sentence, so there is nothing to predict"
    ]


def test_examples_show_the_true_word_and_its_place(weights, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(predict, "set_threads", lambda: None)  # MXNet is imported already

    def said(*more):
        words = ["--vocab", str(vocabulary), "--examples", str(text), *more]
        assert predict.main([str(weights / "huggingface"), *words]) == 0
        return capsys.readouterr().out

    text = tmp_path / "held_out.txt"
    lines = [" ".join(random.Random(seed).choices(LONG_WORDS, k=9)) + " ." for seed in range(20)]
    text.write_text("\n".join(lines) + "\n", "utf-8")
    vocabulary = tmp_path / "vocab.txt"
    words = [*WORDS[:5], *LONG_WORDS]
    vocabulary.write_text("".join(f"{word}\n" for word in words), "utf-8")
    found = [json.loads(line) for line in said("--json", "--top_k", str(len(words))).splitlines()]
    assert len(found) == 3
    for each in found:
        true, (likeliest,) = each["true"], each["masks"]
        assert each["text"].replace("[MASK]", true["token"]) in lines and true["token"] in LONG_WORDS
        assert likeliest[true["rank"] - 1] == {name: true[name] for name in ("token", "id", "probability")}
    # The same of the same sentences in another order, and in words.
    text.write_text("\n".join(reversed(lines)) + "\n", "utf-8")
    shown = said()
    for each in found:
        true = f"  the word was {each['true']['token']}: number {each['true']['rank']:,} of the answers, "
        assert true in shown and each["text"] in shown


def test_examples_need_enough_text(weights, tmp_path):
    text = tmp_path / "held_out.txt"
    text.write_text("one two three four five six seven eight nine\n", "utf-8")
    said = rejected(str(weights / "huggingface"), "--examples", str(text))
    assert "fewer than 3 sentences of 8 to 20 words" in said
