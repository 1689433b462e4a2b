"""Errors before mxnet is imported: each bad input is one line that names the flag or the file."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from base.errors import InputError
from bert.configuration import BertConfig
from bert.weights.bare_params import DECODER, EMBEDDING, expected_shapes
from bert.weights.params_file import write_params
from data.tokenizing.tokenizer import TokenizerSettings
from data.tokenizing.vocab import load_vocab, vocabulary_from_tokens
from tests.data.instance_files import build_instances
from tests.data.token_stores import build_store
from tests.training.small_runs import SIZES
from training import checkpoint
from training.inputs import check_inputs
from training.optimizer.scaler import LossScaler, SkipCounter
from training.options import parse_options, run_config

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmno"]  # 20 tokens
MODEL = "bert_2_16_2"
TEXT = "a b c\nd e\n\nf g h\ni\n"


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch) -> None:
    """A directory with a vocabulary, two training texts and one for evaluation, and the same as files with
    masks; the run's own is ckpt."""
    monkeypatch.chdir(tmp_path)
    Path("vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    for name in ("train-0.txt", "train-1.txt", "eval.txt"):
        Path(name).write_text(TEXT, encoding="utf-8")
    for name in ("train.npz", "eval.npz"):
        np.savez(name, **arrays())


def check(*arguments: str, raw: bool = True, data: str = "train-*.txt", vocab: str = "vocab.txt") -> Any:
    argv = ["--ckpt_dir", "ckpt", *arguments]
    argv += [] if "--config_file" in arguments else ["--model", MODEL]
    argv += ["--raw"] if raw else []
    argv += ["--data", data] if data else []
    argv += ["--vocab", vocab] if vocab else []
    return check_inputs(run_config(parse_options(argv, "description")))


def config_file(**changes: Any) -> None:
    """A bert_config.json of MODEL, over the 20 tokens of the vocabulary, but for the changes."""
    content = {**SIZES, "num_hidden_layers": 2, "vocab_size": 20}
    Path("bert_config.json").write_text(json.dumps({**content, **changes}), encoding="utf-8")


def words_of(config: dict[str, Any] | None, arguments: str) -> list[str]:
    """Options, and --config_file where the model is to be from one, which is written."""
    if config is None:
        return arguments.split()
    config_file(**config)
    return [*arguments.split(), *FILE]


def refused(*arguments: str, **more: Any) -> str:
    before = sorted(Path().rglob("*"))
    with pytest.raises(InputError) as caught:
        check(*arguments, **more)
    assert sorted(Path().rglob("*")) == before, "nothing is written, nothing removed"
    return str(caught.value)


def arrays(rows: int = 6, length: int = 16, predictions: int = 3) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "input_ids": rng.integers(0, 20, (rows, length)),
        "segment_ids": np.zeros((rows, length), np.int64),
        "masked_lm_positions": np.tile(np.arange(1, predictions + 1), (rows, 1)),
        "masked_lm_ids": rng.integers(0, 20, (rows, predictions)),
        "masked_lm_weights": np.ones((rows, predictions), np.float32),
        "next_sentence_labels": np.zeros(rows, np.int64),
        "valid_lengths": np.full(rows, length),
    }


FILE = ("--config_file", "bert_config.json")
MASKED = {"raw": False, "data": "train.npz"}
OF_MASKS = "--data_eval eval.npz --eval_use_npz "
PREDICTIONS = "--max_predictions_per_seq"


@pytest.mark.parametrize(
    "config, arguments, settings, beginning, more",
    [
        (None, "", {"data": "none-*.txt"}, "--data: no file matches 'none-*.txt'", ""),
        (None, "", {"data": "train-*.txt,none-*.txt"}, "--data: ", "none-*.txt"),
        (None, "--data_eval none.txt", {}, "--data_eval: no file matches", ""),
        # Text, and files with masks, whose headers are read; tests/data/formats has their values.
        (None, "", {"data": "train.npz"}, "train.npz is not text but npz", "--raw"),
        (None, "--data_eval eval.npz", {}, "", "--eval_use_npz"),
        (None, "", {"raw": False, "data": "train-0.txt"}, "train-0.txt ", "--raw"),
        (None, "--whole_word_mask", MASKED, "--whole_word_mask: files with masks hold theirs", ""),
        (None, "--masked_lm_prob 0.3", MASKED, "--masked_lm_prob: files with masks hold theirs", ""),
        (None, "--short_seq_prob 0.3", MASKED, "--short_seq_prob: files with masks hold theirs", ""),
        (None, "--max_seq_length 8", MASKED, "--max_seq_length 8: ", "16"),
        (None, f"{PREDICTIONS} 2", MASKED, f"{PREDICTIONS} 2: train.npz holds up to 3 predictions a sequence",
         "leave the option out"),
        (None, f"{PREDICTIONS} 2 --data_eval eval.npz", {"data": "", "raw": False}, f"{PREDICTIONS} 2: ", ""),
        # SentencePiece models that are none.
        (None, "--sentencepiece nowhere.model", {"vocab": ""}, "", "nowhere.model"),
        (None, "--sentencepiece vocab.txt", {"vocab": ""}, "", "vocab.txt"),
        # The model from a file, against the data.
        ({"vocab_size": 19}, "", {}, "--config_file bert_config.json: vocab_size is 19", "--vocab has 20"),
        ({"vocab_size": 148}, "", {}, "--config_file bert_config.json: vocab_size is 148", "--vocab has 20"),
        ({"vocab_size": 77}, "", {"vocab": ""}, "",
         "--dataset_name book_corpus_wiki_en_uncased has 30522 tokens"),
        ({"max_position_embeddings": 12}, "--max_seq_length 13", {}, "--max_seq_length 13",
         "max_position_embeddings 12"),
        ({"max_position_embeddings": 12}, "--dummy_data_len 16", {}, "--dummy_data_len 16",
         "max_position_embeddings 12"),
        ({"max_position_embeddings": 12}, "", MASKED, "", "sequences of 16"),
        ({"max_position_embeddings": 1024}, "--max_seq_length 513", {}, "", "513"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line(config, arguments, settings, beginning, more):
    message = refused(*words_of(config, arguments), **settings)
    assert message.startswith(beginning) and more in message


@pytest.mark.parametrize(
    "config, arguments, settings, length, rows",
    [
        (None, "", {}, 512, 20),  # GluonNLP's length where none is given
        (None, "--dummy_data_len 64", {}, 64, 20),
        (None, "--data_eval eval.npz", MASKED, 16, 20),
        (None, OF_MASKS, {}, 16, 20),
        (None, "--max_seq_length 16", MASKED, 16, 20),
        # Without a vocabulary the published one counts.
        (None, "", {**MASKED, "vocab": ""}, 16, 30522),
        (None, "--dataset_name wiki_cn_cased --dummy_data_len 8", {"data": "", "vocab": ""}, 8, 21128),
        # These speak of the text, or of random tokens.
        (None, f"{OF_MASKS} --whole_word_mask", {}, 16, 20),
        (None, f"{OF_MASKS} --masked_lm_prob 0.3 --short_seq_prob 0.3", {}, 16, 20),
        (None, f"{OF_MASKS} {PREDICTIONS} 2", {}, 16, 20),
        (None, f"{PREDICTIONS} 2 --dummy_data_len 16", MASKED, 16, 20),
        (None, f"{PREDICTIONS} 3", MASKED, 16, 20),
        # The model from a file: its rows may be padded.
        ({}, "", {}, 512, 20),
        ({"vocab_size": 24}, "", {}, 512, 24),
        ({"vocab_size": 147}, "", {}, 512, 147),
        ({"vocab_size": 77}, "", {**MASKED, "vocab": ""}, 16, 77),
        ({"vocab_size": 77}, "--dummy_data_len 16", {"raw": False, "data": "", "vocab": ""}, 16, 77),
        ({"max_position_embeddings": 12}, "", {}, 12, 20),
        ({"max_position_embeddings": 12}, "--max_seq_length 8", {}, 8, 20),
        ({"max_position_embeddings": 1024}, "", {}, 512, 20),
    ],
)  # fmt: skip
def test_what_fits(config, arguments, settings, length, rows):
    found = check(*words_of(config, arguments), **settings)
    assert (found.max_seq_length, found.vocab_size) == (length, rows)


class TestFiles:
    def test_text(self):
        found = check("--data_eval", "eval.txt", "--max_seq_length", "32")
        assert list(found.train.paths) == ["train-0.txt", "train-1.txt"]
        assert list(found.evaluation.paths) == ["eval.txt"]
        assert found.vocabulary.sha256 == load_vocab("vocab.txt").sha256 and found.max_seq_length == 32
        found = check(data="train-1.txt,train-*.txt,eval.txt")
        assert list(found.train.paths) == ["eval.txt", "train-0.txt", "train-1.txt"]
        found = check(**MASKED, vocab="")
        assert list(found.train.paths) == ["train.npz"] and found.vocabulary is None

    def test_random_tokens_take_the_place_of_data(self):
        """In GluonNLP --dummy_data_len is given beside --data; longer samples in it do not matter."""
        found = check("--dummy_data_len", "8", **MASKED)
        assert found.max_seq_length == 8 and not found.train.kind
        assert not check("--dummy_data_len", "8", vocab="").reads_text, "no vocabulary is downloaded for it"

    def test_a_folder_stands_for_the_files_in_it(self):
        Path("corpus/deeper").mkdir(parents=True)
        for name in ("corpus/b.txt", "corpus/deeper/a.txt", "corpus/.hidden"):
            Path(name).write_text(TEXT, encoding="utf-8")
        assert list(check(data="corpus").train.paths) == ["corpus/b.txt", "corpus/deeper/a.txt"]
        Path("empty").mkdir()
        assert refused(data="empty").startswith("--data: ")

    def test_sequences_longer_than_bert_has_positions(self):
        np.savez("train.npz", **arrays(rows=2, length=520))
        message = refused(**MASKED)
        assert "train.npz" in message and "512" in message


class TestStore:
    """A token store of data.prepare, with a vocabulary of its own."""

    def prepare(self, directory: str = "store", *words: str) -> str:
        vocabulary = vocabulary_from_tokens([*WORDS, *words])
        build_store(["train-0.txt", "train-1.txt"], TokenizerSettings(vocabulary), directory)
        return directory

    def test_it_brings_its_vocabulary(self):
        found = check(raw=False, data=self.prepare(), vocab="")
        assert found.train.kind == "store" and list(found.train.paths) == ["store"]
        assert found.vocab_size == 20 and found.vocabulary.sha256 == load_vocab("vocab.txt").sha256
        assert found.max_seq_length == 512
        assert check(raw=True, data="store/").train.kind == "store", "--raw may speak of --data_eval"

    def test_another_vocabulary(self):
        self.prepare("other", "zebra")
        message = refused(raw=False, data="other")
        assert message.startswith("other was tokenized with another vocabulary than that of --vocab")
        self.prepare()
        message = refused("--data_eval", "other", raw=False, data="store", vocab="")
        assert message.startswith("other was tokenized with another vocabulary than that of store")

    def test_a_file_of_it_or_something_beside_it(self):
        self.prepare()
        assert "name the folder store" in refused(raw=False, data="store/manifest.json")
        assert "name the folder store" in refused(data="train-0.txt,store")

    def test_a_manifest_that_is_damaged_or_gone(self):
        manifest = Path(self.prepare()) / "manifest.json"
        for content in (manifest.read_text()[:-9], "", '{"format": "x"}', None):
            if content is None:
                manifest.unlink()
            else:
                manifest.write_text(content)
            for data in ("store", "store/", "store/*.bin", "train-0.txt,store"):
                for raw in (False, True):
                    message = refused(raw=raw, data=data)
                    assert message.startswith("--data: store is a token store "), message
                    assert "manifest.json" in message
                    assert message.endswith("prepare the text again with data.prepare")

    def test_an_unfinished_store(self):
        with (
            pytest.raises(KeyboardInterrupt),
            mock.patch("data.store.build._append_folder", side_effect=KeyboardInterrupt),
        ):
            self.prepare()
        for data in ("store.partial", "store.partial/unfinished", "store.partial/unfinished/0/ids-00000.bin"):
            message = refused(data=data)
            assert message.startswith("--data: store.partial is an unfinished token store: prepare")

    def test_an_instance_store_of_a_cache(self):
        build_instances(["train.npz"], 20, "instances")
        message = refused(data="instances", raw=False)
        assert "--data: instances/" in message and "is a part of an instance store" in message
        Path("instances/manifest.json").write_text("{")
        message = refused(data="instances", raw=False)
        assert message.startswith("--data: instances is an instance store whose manifest.json is damaged: ")

    def test_sampling_needs_text(self):
        self.prepare()
        refused("--sentencepiece", "x.model", "--sp_nbest", "3", raw=False, data="store", vocab="")


def save(step: int = 5, **facts: Any) -> None:
    """A checkpoint of MODEL over the vocabulary, but for the facts."""
    made_with = {"model": MODEL, "vocab_size": 20, "vocab_sha256": load_vocab("vocab.txt").sha256}
    made_with.update(options={}, scaler=LossScaler().state(), skips=SkipCounter().state(), blocks=0)
    ones = {"word_embed.0.weight": np.ones((20, 16), np.float32)}
    checkpoint.save("ckpt", step, ones, {"t": np.array(step)}, {**made_with, **facts})


def bare(layers: int = 2, units: int = 16, tokens: int = 20, name: str = "word_embed.0.weight") -> None:
    """A file as GluonNLP's own scripts leave it."""
    Path("ckpt").mkdir(exist_ok=True)
    shapes = expected_shapes(BertConfig(layers, units, 2, 4 * units), tokens)
    content = {key: np.full(shape, 0.5, np.float32) for key, shape in shapes.items()}
    content.pop(DECODER)
    content[name] = content.pop(EMBEDDING)
    with open("ckpt/0000005.params", "wb") as file:
        write_params(file, content)


class TestCheckpoints:
    def test_a_new_run_does_not_write_over_an_old_one(self):
        save(5)
        save(10)
        message = refused()
        assert message.startswith("--ckpt_dir ckpt holds checkpoints up to step 10") and "--resume" in message
        assert "--resume" in refused("--dummy_data_len", "8", data="", vocab="vocab.txt")
        check("--resume")
        check("--start_step", "5")

    def test_nor_over_gluonnlps_parameters(self):
        bare()
        for how in ((), ("--resume",)):
            message = refused(*how)
            assert "0000005.params" in message and "--start_step" in message
        check("--start_step", "5")
        Path("ckpt/0000005.states.npz").touch()  # a save of these scripts that was cut off
        check("--resume")

    def test_evaluation_alone_writes_nothing_over(self):
        save()
        check("--data_eval", "eval.txt", data="")

    def test_a_directory_without_checkpoints_is_free_and_a_file_is_none(self):
        Path("ckpt").mkdir()
        Path("ckpt/notes.txt").touch()
        check()
        check("--resume")
        shutil.rmtree("ckpt")
        Path("ckpt").touch()
        assert refused() == "--ckpt_dir ckpt is a file; name a directory"

    @pytest.mark.parametrize(
        "facts, said",
        [
            ({"model": "bert_4_16_2"}, ["bert_4_16_2", MODEL]),
            ({"vocab_size": 21}, ["21", "20"]),
            ({"vocab_sha256": "0" * 64}, ["000000000000"]),
            ({"bert": asdict(BertConfig(2, 16, 2, 48))}, ["(feed-forward layers of 48 units), this run"]),
        ],
    )
    def test_a_checkpoint_of_another_model_or_vocabulary(self, facts, said):
        save(**facts)
        for how in (["--resume"], ["--start_step", "5"]):
            message = refused(*how)
            assert message.startswith("--ckpt_dir ckpt: its checkpoint of step 5 has ")
            assert all(words in message for words in said)

    def test_a_config_file_of_the_checkpoints_model(self):
        save(bert=asdict(BertConfig(2, 16, 2, 48)))
        config_file(intermediate_size=48)
        check(*FILE, "--resume")
        assert "GELU by tanh" in refused(*FILE, "--gelu", "tanh", "--resume")

    def test_a_checkpoint_that_records_the_name_alone(self):
        save()
        config_file()
        check(*FILE, "--resume")
        config_file(type_vocab_size=3)
        assert "3 token types" in refused(*FILE, "--resume")

    def test_npz_runs_do_not_know_their_vocabulary(self):
        save(vocab_sha256=None)
        check("--resume")

    def test_only_the_step_named_counts(self):
        save(5)
        save(10, model="bert_4_16_2")
        check("--start_step", "5")
        assert "step 10" in refused("--resume")

    def test_a_damaged_manifest_is_left_for_later(self):
        save(5)
        save(10, model="bert_4_16_2")
        Path("ckpt/0000010.json").write_text("{")
        check("--resume")

    @pytest.mark.parametrize(
        "other, said",
        [({"layers": 3}, "3 layers"), ({"units": 32}, "32 units"), ({"tokens": 30522}, "30522 tokens")],
    )
    def test_gluonnlps_parameters_of_another_model(self, other, said):
        bare(**other)
        message = refused("--start_step", "5")
        assert message.startswith("--start_step 5: ") and "0000005.params" in message and said in message

    def test_parameters_of_something_else(self):
        bare(name="embedding.weight")
        assert "0000005.params" in refused("--start_step", "5")
        Path("ckpt/0000005.params").write_bytes(b"not parameters")
        assert "0000005.params" in refused("--start_step", "5")
