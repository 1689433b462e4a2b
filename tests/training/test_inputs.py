"""Errors before mxnet is imported: each bad input is one line that names the flag or the file."""

from __future__ import annotations

import json
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
from training import checkpoint
from training.inputs import check_inputs
from training.optimizer.scaler import SkipCounter, StaticScaler
from training.options import parse_options, run_config

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmno"]  # 20 tokens
MODEL = "bert_2_16_2"


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """A directory with a vocabulary, two training texts and one for evaluation; the run's own is ckpt."""
    monkeypatch.chdir(tmp_path)
    Path("vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    for name in ("train-0.txt", "train-1.txt", "eval.txt"):
        Path(name).write_text("a b c\nd e\n\nf g h\ni\n", encoding="utf-8")
    return tmp_path


def check(*arguments: str, raw: bool = True, data: str = "train-*.txt", vocab: str = "vocab.txt") -> Any:
    argv = ["--ckpt_dir", "ckpt", *arguments]
    argv += [] if "--config_file" in arguments else ["--model", MODEL]
    argv += ["--raw"] if raw else []
    argv += ["--data", data] if data else []
    argv += ["--vocab", vocab] if vocab else []
    return check_inputs(run_config(parse_options(argv, "description")))


def config_file(**changes: Any) -> None:
    """A bert_config.json of MODEL, over the 20 tokens of the vocabulary, but for the changes."""
    content = {
        **{"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 64},
        **{"max_position_embeddings": 512, "type_vocab_size": 2, "vocab_size": 20, "hidden_act": "gelu"},
        **{"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "initializer_range": 0.02},
    }
    Path("bert_config.json").write_text(json.dumps({**content, **changes}), encoding="utf-8")


def refused(*arguments: str, **more: Any) -> str:
    before = sorted(Path().rglob("*"))
    with pytest.raises(InputError) as caught:
        check(*arguments, **more)
    message = str(caught.value)
    assert message and "\n" not in message
    assert sorted(Path().rglob("*")) == before, "nothing is written, nothing removed"
    return message


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


def npz(name: str = "train.npz", **changes: Any) -> str:
    np.savez(name, **{**arrays(), **changes})
    return name


class TestGoodInput:
    def test_text(self, place):
        found = check("--data_eval", "eval.txt", "--max_seq_length", "32")
        assert list(found.train.paths) == ["train-0.txt", "train-1.txt"]
        assert list(found.evaluation.paths) == ["eval.txt"]
        assert found.vocab_size == 20 and found.vocabulary.sha256 == load_vocab("vocab.txt").sha256
        assert found.max_seq_length == 32

    def test_several_globs_separated_by_commas(self, place):
        found = check(data="train-1.txt,train-*.txt,eval.txt")
        assert list(found.train.paths) == ["eval.txt", "train-0.txt", "train-1.txt"]

    def test_gluonnlps_length_where_none_is_given(self, place):
        assert check().max_seq_length == 512
        assert check("--dummy_data_len", "64").max_seq_length == 64

    def test_npz_files_bring_their_length(self, place):
        found = check("--data_eval", npz("eval.npz"), raw=False, data=npz())
        assert found.max_seq_length == 16 and list(found.train.paths) == ["train.npz"]

    def test_text_to_train_and_npz_to_evaluate(self, place):
        assert check("--data_eval", npz("eval.npz"), "--eval_use_npz").max_seq_length == 16

    def test_without_a_vocabulary_the_published_one_counts(self, place):
        found = check(raw=False, data=npz(), vocab="")
        assert found.vocabulary is None and found.vocab_size == 30522
        found = check(
            "--dataset_name", "book_corpus_wiki_en_cased", "--dummy_data_len", "8", data="", vocab=""
        )
        assert found.vocab_size == 28996

    def test_random_tokens_take_the_place_of_data(self, place):
        """In GluonNLP --dummy_data_len is given beside --data; longer samples in it do not matter."""
        found = check("--dummy_data_len", "8", raw=False, data=npz())
        assert found.max_seq_length == 8 and not found.train.kind
        assert not check("--dummy_data_len", "8", vocab="").reads_text, "no vocabulary is downloaded for it"


class TestText:
    def test_a_glob_without_files(self, place):
        assert refused(data="none-*.txt").startswith("--data: no file matches 'none-*.txt'")
        assert refused(data="train-*.txt,none-*.txt").startswith("--data: ")
        assert refused("--data_eval", "none.txt").startswith("--data_eval: no file matches")

    def test_an_empty_file(self, place):
        Path("train-2.txt").touch()
        assert refused() == "--data: train-2.txt is empty"

    def test_a_byte_order_mark_and_carriage_returns_are_utf8(self, place):
        Path("dos.txt").write_bytes(b"\xef\xbb\xbfa b\r\nc d\r\n")
        check(data="dos.txt")

    def test_npz_files_for_text(self, place):
        message = refused(data=npz())
        assert message.startswith("train.npz is not text but npz") and "--raw" in message
        assert "--eval_use_npz" in refused("--data_eval", npz("eval.npz"))

    def test_text_for_files_with_masks(self, place):
        message = refused(raw=False, data="train-0.txt")
        assert message.startswith("train-0.txt ") and "--raw" in message

    def test_a_folder_stands_for_the_files_in_it(self, place):
        Path("corpus/deeper").mkdir(parents=True)
        for name in ("corpus/b.txt", "corpus/deeper/a.txt", "corpus/.hidden"):
            Path(name).write_text("a b c\nd e\n\nf g h\ni\n", encoding="utf-8")
        assert list(check(data="corpus").train.paths) == ["corpus/b.txt", "corpus/deeper/a.txt"]
        Path("empty").mkdir()
        assert refused(data="empty").startswith("--data: ")


class TestStore:
    """A token store of data.prepare, with a vocabulary of its own."""

    def prepare(self, directory: str = "store", *words: str) -> str:
        vocabulary = vocabulary_from_tokens([*WORDS, *words])
        build_store(["train-0.txt", "train-1.txt"], TokenizerSettings(vocabulary), directory)
        return directory

    def test_it_brings_its_vocabulary(self, place):
        found = check(raw=False, data=self.prepare(), vocab="")
        assert found.train.kind == "store" and list(found.train.paths) == ["store"]
        assert found.vocab_size == 20 and found.vocabulary.sha256 == load_vocab("vocab.txt").sha256
        assert found.max_seq_length == 512
        assert check(raw=True, data="store/").train.kind == "store", "--raw may speak of --data_eval"

    def test_another_vocabulary(self, place):
        self.prepare("other", "zebra")
        message = refused(raw=False, data="other")
        assert message.startswith("other was tokenized with another vocabulary than that of --vocab")
        self.prepare()
        message = refused("--data_eval", "other", raw=False, data="store", vocab="")
        assert message.startswith("other was tokenized with another vocabulary than that of store")

    def test_a_file_of_it_or_something_beside_it(self, place):
        self.prepare()
        assert "name the folder store" in refused(raw=False, data="store/manifest.json")
        assert "name the folder store" in refused(data="train-0.txt,store")

    @pytest.mark.parametrize("raw", [False, True])
    @pytest.mark.parametrize("damage", ["gone", "cut", "empty", "another"])
    def test_a_manifest_that_is_damaged_or_gone(self, place, damage, raw):
        manifest = Path(self.prepare()) / "manifest.json"
        content = manifest.read_text()
        manifest.write_text(
            {"cut": content[:-9], "empty": "", "another": '{"format": "x"}'}.get(damage, content)
        )
        if damage == "gone":
            manifest.unlink()
        for data in ("store", "store/", "store/*.bin", "train-0.txt,store"):
            message = refused(raw=raw, data=data)
            assert message.startswith("--data: store is a token store "), message
            assert "manifest.json" in message and message.endswith("prepare the text again with data.prepare")

    def test_an_unfinished_store(self, place):
        with (
            pytest.raises(KeyboardInterrupt),
            mock.patch("data.store.build._append_folder", side_effect=KeyboardInterrupt),
        ):
            self.prepare()
        for data in ("store.partial", "store.partial/unfinished", "store.partial/unfinished/0/ids-00000.bin"):
            message = refused(data=data)
            assert message.startswith("--data: store.partial is an unfinished token store: prepare")

    def test_an_instance_store_of_a_cache(self, place):
        build_instances([npz()], 20, "instances")
        assert "--data: instances/" in refused(data="instances", raw=False)
        assert "is a part of an instance store" in refused(data="instances", raw=False)
        Path("instances/manifest.json").write_text("{")
        message = refused(data="instances", raw=False)
        assert message.startswith("--data: instances is an instance store whose manifest.json is damaged: ")

    def test_sampling_needs_text(self, place):
        self.prepare()
        options = parse_options(
            ["--model", MODEL, "--data", "store", "--sentencepiece", "x.model", "--sp_nbest", "3"], ""
        )
        with pytest.raises(InputError):
            check_inputs(run_config(options))


class TestVocabulary:
    @pytest.mark.parametrize("token", ["[MASK]", "[CLS]", "[SEP]", "[PAD]", "[UNK]"])
    def test_without_a_special_token(self, place, token):
        Path("vocab.txt").write_text("\n".join(word for word in WORDS if word != token))
        assert refused().startswith(f"vocab.txt lacks {token}")

    def test_a_sentencepiece_model_that_is_none(self, place):
        pytest.importorskip("sentencepiece")
        assert "nowhere.model" in refused("--sentencepiece", "nowhere.model", vocab="")
        assert "vocab.txt" in refused("--sentencepiece", "vocab.txt", vocab="")


class TestFilesWithMasks:
    """Their headers are read. Every value is checked when they are converted: tests/data/formats."""

    def test_object_arrays_are_never_unpickled(self, place):
        class Exploding:
            def __reduce__(self):
                return (Path.touch, (Path("unpickled"),))

        rows = np.empty(6, dtype=object)
        rows[:] = [Exploding() for _ in range(6)]
        message = refused(raw=False, data=npz(input_ids=rows))
        assert "train.npz" in message and "input_ids" in message and "convert_npz" in message
        assert not Path("unpickled").exists()

    def test_masks_that_are_there_already(self, place):
        message = refused("--whole_word_mask", raw=False, data=npz())
        assert message.startswith("--whole_word_mask: files with masks hold theirs")
        check("--whole_word_mask", "--data_eval", npz(), "--eval_use_npz")

    def test_sequences_longer_than_asked_for(self, place):
        message = refused("--max_seq_length", "8", raw=False, data=npz())
        assert message.startswith("--max_seq_length 8: ") and "16" in message
        assert check("--max_seq_length", "16", raw=False, data=npz()).max_seq_length == 16

    def test_fewer_predictions_than_the_files_hold(self, place):
        message = refused("--max_predictions_per_seq", "2", raw=False, data=npz())
        assert message.startswith(
            "--max_predictions_per_seq 2: train.npz holds up to 3 predictions a sequence"
        )
        assert "leave the option out" in message
        message = refused("--max_predictions_per_seq", "2", "--data_eval", npz(), data="", raw=False)
        assert message.startswith("--max_predictions_per_seq 2: ")
        check("--max_predictions_per_seq", "3", raw=False, data=npz())
        # Here it speaks of the text, and of random tokens.
        check("--max_predictions_per_seq", "2", "--data_eval", npz(), "--eval_use_npz")
        check("--max_predictions_per_seq", "2", "--dummy_data_len", "16", data=npz(), raw=False)

    @pytest.mark.parametrize("flag", ["masked_lm_prob", "short_seq_prob"])
    def test_shares_for_masks_and_pairs_that_are_there_already(self, place, flag):
        message = refused(f"--{flag}", "0.3", raw=False, data=npz())
        assert message.startswith(f"--{flag}: files with masks hold theirs")
        check(f"--{flag}", "0.3", "--data_eval", npz(), "--eval_use_npz")

    def test_sequences_longer_than_bert_has_positions(self, place):
        long = arrays(rows=2, length=520)
        np.savez("train.npz", **long)
        message = refused(raw=False, data="train.npz")
        assert "train.npz" in message and "512" in message


FILE = ("--config_file", "bert_config.json")


class TestConfigFile:
    """The model from a file, against the run's data and checkpoints."""

    def test_a_file_of_a_named_model_is_that_model(self, place):
        config_file()
        run = run_config(parse_options([*FILE, "--data", "x"], ""))
        named = run_config(parse_options(["--model", MODEL, "--data", "x"], ""))
        assert run.model.bert == named.model.bert and run.model.dropout == named.model.dropout
        assert run.model.initial_stdev == named.model.initial_stdev
        assert check(*FILE).vocab_size == check().vocab_size == 20

    def test_padding_of_the_vocabulary(self, place):
        for rows in (20, 24, 147):
            config_file(vocab_size=rows)
            assert check(*FILE).vocab_size == rows

    @pytest.mark.parametrize("rows", [19, 148, 30522])
    def test_another_vocabulary(self, place, rows):
        config_file(vocab_size=rows)
        message = refused(*FILE)
        assert message.startswith(f"--config_file bert_config.json: vocab_size is {rows}")
        assert "--vocab has 20 tokens" in message

    def test_data_without_a_vocabulary_takes_the_files(self, place):
        config_file(vocab_size=77)
        assert check(*FILE, raw=False, data=npz(), vocab="").vocab_size == 77
        assert check(*FILE, "--dummy_data_len", "16", raw=False, data="", vocab="").vocab_size == 77

    def test_a_vocabulary_to_be_downloaded(self, place):
        config_file(vocab_size=77)
        assert "--dataset_name book_corpus_wiki_en_uncased has 30522 tokens" in refused(*FILE, vocab="")

    def test_fewer_positions(self, place):
        config_file(max_position_embeddings=12)
        assert check(*FILE).max_seq_length == 12
        assert check(*FILE, "--max_seq_length", "8").max_seq_length == 8
        for arguments, given in (
            (["--max_seq_length", "13"], "--max_seq_length 13"),
            (["--dummy_data_len", "16"], "--dummy_data_len 16"),
        ):
            message = refused(*FILE, *arguments)
            assert message.startswith(given) and "max_position_embeddings 12" in message
        message = refused(*FILE, raw=False, data=npz())
        assert "sequences of 16" in message and "max_position_embeddings 12" in message

    def test_more_positions_than_the_data_can_have(self, place):
        config_file(max_position_embeddings=1024)
        assert check(*FILE).max_seq_length == 512
        assert "513" in refused(*FILE, "--max_seq_length", "513")

    def test_a_checkpoint_of_another_shape(self, place):
        checkpoints = TestCheckpoints()
        checkpoints.save(bert=asdict(BertConfig(2, 16, 2, 48)))
        message = refused("--resume")
        assert "has model bert_2_16_2 (feed-forward layers of 48 units), this run bert_2_16_2;" in message
        config_file(intermediate_size=48)
        check(*FILE, "--resume")
        assert "GELU by tanh" in refused(*FILE, "--gelu", "tanh", "--resume")

    def test_a_checkpoint_that_records_the_name_alone(self, place):
        TestCheckpoints().save()
        config_file()
        check(*FILE, "--resume")
        config_file(type_vocab_size=3)
        assert "3 token types" in refused(*FILE, "--resume")


class TestCheckpoints:
    def save(self, step: int = 5, **facts: Any) -> None:
        vocabulary = load_vocab("vocab.txt")
        made_with = {"model": MODEL, "vocab_size": 20, "vocab_sha256": vocabulary.sha256, **facts}
        made_with = {
            "options": {},
            "scaler": StaticScaler().state(),
            "skips": SkipCounter().state(),
            "blocks": 0,
            **made_with,
        }
        ones = {"word_embed.0.weight": np.ones((20, 16), np.float32)}
        checkpoint.save("ckpt", step, ones, {"t": np.array(step)}, made_with)

    def bare(
        self, layers: int = 2, units: int = 16, tokens: int = 20, name: str = "word_embed.0.weight"
    ) -> None:
        """A file as GluonNLP's own scripts leave it."""
        Path("ckpt").mkdir(exist_ok=True)
        shapes = expected_shapes(BertConfig(layers, units, 2, 4 * units), tokens)
        content = {key: np.full(shape, 0.5, np.float32) for key, shape in shapes.items()}
        content.pop(DECODER)
        content[name] = content.pop(EMBEDDING)
        with open("ckpt/0000005.params", "wb") as file:
            write_params(file, content)

    def test_a_new_run_does_not_write_over_an_old_one(self, place):
        self.save(5)
        self.save(10)
        message = refused()
        assert message.startswith("--ckpt_dir ckpt holds checkpoints up to step 10") and "--resume" in message
        assert "--resume" in refused("--dummy_data_len", "8", data="", vocab="vocab.txt")
        check("--resume")
        check("--start_step", "5")

    def test_nor_over_gluonnlps_parameters(self, place):
        self.bare()
        message = refused()
        assert "0000005.params" in message and "--start_step" in message
        check("--start_step", "5")

    def test_evaluation_alone_writes_nothing_over(self, place):
        self.save()
        check("--data_eval", "eval.txt", data="")

    def test_a_directory_without_checkpoints_is_free(self, place):
        Path("ckpt").mkdir()
        Path("ckpt/notes.txt").touch()
        check()
        check("--resume")

    def test_a_file_in_its_place(self, place):
        Path("ckpt").touch()
        assert refused() == "--ckpt_dir ckpt is a file; name a directory"

    @pytest.mark.parametrize("how", [["--resume"], ["--start_step", "5"]])
    @pytest.mark.parametrize(
        "facts, said",
        [
            ({"model": "bert_4_16_2"}, ["bert_4_16_2", MODEL]),
            ({"vocab_size": 21}, ["21", "20"]),
            ({"vocab_sha256": "0" * 64}, ["000000000000"]),
        ],
    )
    def test_a_checkpoint_of_another_model_or_vocabulary(self, place, how, facts, said):
        self.save(**facts)
        message = refused(*how)
        assert message.startswith("--ckpt_dir ckpt: its checkpoint of step 5 has ")
        assert all(words in message for words in said)

    def test_npz_runs_do_not_know_their_vocabulary(self, place):
        self.save(vocab_sha256=None)
        check("--resume")

    def test_only_the_step_named_counts(self, place):
        self.save(5)
        self.save(10, model="bert_4_16_2")
        check("--start_step", "5")
        assert "step 10" in refused("--resume")

    def test_a_damaged_manifest_is_left_for_later(self, place):
        self.save(5)
        self.save(10, model="bert_4_16_2")
        Path("ckpt/0000010.json").write_text("{")
        check("--resume")

    @pytest.mark.parametrize(
        "other, said",
        [({"layers": 3}, "3 layers"), ({"units": 32}, "32 units"), ({"tokens": 30522}, "30522 tokens")],
    )
    def test_gluonnlps_parameters_of_another_model(self, place, other, said):
        self.bare(**other)
        message = refused("--start_step", "5")
        assert message.startswith("--start_step 5: ") and "0000005.params" in message and said in message

    def test_parameters_of_something_else(self, place):
        self.bare(name="embedding.weight")
        assert "0000005.params" in refused("--start_step", "5")
        Path("ckpt/0000005.params").write_bytes(b"not parameters")
        assert "0000005.params" in refused("--start_step", "5")
