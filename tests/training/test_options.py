"""The command line: GluonNLP v0.8.3's names and meanings; a bad value is one clear line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from base.errors import InputError
from bert.configuration import BertConfig
from data.options import MAX_POSITIONS
from tests.processes import ROOT
from tests.training.small_runs import SHAPE
from training.config import PUBLISHED_VOCABULARIES
from training.options import NOT_HERE, TABLE, TAKEN, parse_options, run_config

# name: (an argument as text or None for a flag, what it becomes, GluonNLP v0.8.3's default or NEW).
NEW = object()  # the default differs: left out, the value is worked out for the run
GLUONNLP = {
    "num_steps": ("20", 20, NEW),
    "num_buckets": ("3", 3, 32),
    "dtype": ("float16", "float16", NEW),
    "batch_size": ("4096", 4096, 8),
    "accumulate": ("2", 2, 1),
    "use_avg_len": (None, True, False),
    "batch_size_eval": ("16", 16, 8),
    "dataset_name": ("book_corpus_wiki_en_cased", "book_corpus_wiki_en_cased", "book_corpus_wiki_en_uncased"),
    "pretrained": (None, True, False),
    "model": ("bert_24_1024_16", "bert_24_1024_16", "bert_12_768_12"),
    "data": ("a/*.train,~/b/*.train", "a/*.train,~/b/*.train", None),
    "data_eval": ("a/*.dev,b/*.dev", "a/*.dev,b/*.dev", None),
    "ckpt_dir": ("./somewhere", "./somewhere", "./ckpt_dir"),
    "start_step": ("10", 10, 0),
    "lr": ("1e-4", 1e-4, NEW),
    "warmup_ratio": ("0.01", 0.01, NEW),
    "log_interval": ("100", 100, 250),
    "ckpt_interval": ("1000", 1000, 25000),
    "dummy_data_len": ("128", 128, None),
    "verbose": (None, True, False),
    "profile": ("trace.json", "trace.json", None),
    "raw": (None, True, False),
    "max_seq_length": ("128", 128, NEW),
    "short_seq_prob": ("1.0", 1.0, 0.1),
    "masked_lm_prob": ("0.2", 0.2, 0.15),
    "max_predictions_per_seq": ("20", 20, NEW),
    "cased": (None, True, False),
    "whole_word_mask": (None, True, False),
    "sentencepiece": ("s.model", "s.model", None),
    "sp_nbest": ("-1", -1, 0),
    "sp_alpha": ("0.5", 0.5, 1.0),
    "num_data_workers": ("4", 4, 8),
    "eval_use_npz": (None, True, False),
}
# What else an option needs to be accepted.
COMPANIONS = {"sp_nbest": ["--sentencepiece", "s.model"]}


def parse(*argv: str, data: str = "x.txt"):
    return parse_options([*(["--data", data] if data else []), *argv], "description")


def refused(*argv: str, data: str = "x.txt") -> str:
    with pytest.raises(InputError) as caught:
        parse(*argv, data=data)
    return str(caught.value)


@pytest.mark.parametrize("name", GLUONNLP)
def test_an_option_has_gluonnlps_name_and_meaning(name):
    text, value, default = GLUONNLP[name]
    left_out = parse("--dummy_data_len", "8", data="") if name == "data" else parse()
    assert getattr(left_out, name) == (None if default is NEW else default)

    arguments = [f"--{name}"] if text is None else [f"--{name}", text]
    given = getattr(parse(*arguments, *COMPANIONS.get(name, [])), name)
    assert given == value and type(given) is type(value)
    if text is not None:
        assert getattr(parse(f"--{name}={text}", *COMPANIONS.get(name, [])), name) == value


class TestConfigFile:
    """--config_file beside the other options; tests/bert/test_config_file.py has the files themselves."""

    @pytest.fixture
    def model(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)

        def settle(*argv: str, **keys):
            Path("c.json").write_text(json.dumps({**SHAPE, **keys}), encoding="utf-8")
            return run_config(parse("--config_file", "c.json", *argv)).model

        return settle

    def test_all_of_the_model_comes_from_it(self, model):
        found = model(hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.2, initializer_range=0.01, x=1)
        assert found.bert == BertConfig(1, 16, 2, 32, positions=16)
        assert (found.vocab_size, found.dropout, found.initial_stdev) == (40, 0.2, 0.01)
        assert (found.source, found.unknown_keys) == ("c.json", ("x",))
        assert (model().dropout, model().initial_stdev) == (0.1, 0.02)

    def test_no_model_is_named_then(self, model):
        model()
        assert parse("--config_file", "c.json").model is None
        message = refused("--config_file", "c.json", "--model", "bert_2_16_2")
        assert message.startswith("--model bert_2_16_2 and --config_file c.json exclude each other")

    def test_both_rates_of_dropout(self, model):
        file = {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.2}
        assert model().rates == (0.1, 0.1)
        assert model(**file).rates == (0.3, 0.2) and str(model(**file).rates) == "0.3 (attention 0.2)"
        assert model(hidden_dropout_prob=0.3).rates == (0.3, 0.1)  # a default of its own each
        assert model("--dropout", "0.15", **file).rates == (0.15, 0.15)
        assert model("--attention_dropout", "0", **file).rates == (0.3, 0)
        assert model("--dropout", "0", "--attention_dropout", "0.4", **file).rates == (0, 0.4)
        found = parse("--config_file", "c.json", "--dropout", "0")
        assert (found.dropout, found.attention_dropout) == (0, 0)

    def test_without_a_file_the_attention_has_the_rate_of_the_rest(self):
        rates = [run_config(parse(*words)).model.rates for words in ([], ["--dropout", "0.2"])]
        assert rates == [(0.1, 0.1), (0.2, 0.2)]
        assert run_config(parse("--attention_dropout", "0")).model.rates == (0.1, 0)

    def test_gelu(self, model):
        assert model().bert.activation == "erf" and model("--gelu", "tanh").bert.activation == "tanh"
        assert model(hidden_act="gelu_new").bert.activation == "tanh"
        with pytest.raises(InputError, match="^--gelu erf: hidden_act of c.json is gelu_new"):
            model("--gelu", "erf", hidden_act="gelu_new")
        assert run_config(parse("--model", "bert_2_16_2", "--gelu", "tanh")).model.bert.activation == "tanh"

    def test_what_it_cannot_be_for(self, model):
        with pytest.raises(InputError, match="type_vocab_size is 1"):
            model(type_vocab_size=1)
        with pytest.raises(InputError, match="^--pretrained: no parameters are published for c.json"):
            model("--pretrained")
        assert refused("--config_file", "d.json").startswith("--config_file d.json: cannot be read")


def test_gluonnlps_data_set_names_are_complete():
    languages = {"book_corpus_wiki_en_uncased", "book_corpus_wiki_en_cased", "wiki_cn_cased"}
    assert set(PUBLISHED_VOCABULARIES) == languages | {"wiki_multilingual_uncased", "wiki_multilingual_cased"}


def test_a_gluonnlp_command_line_runs_unchanged():
    """In the form of the pretraining command in GluonNLP's documentation."""
    line = (
        "--data=folder1/*.txt,folder2/*.txt --data_eval=dev_folder/*.txt --num_steps 1000000 --lr 1e-4 "
        "--batch_size 65536 --accumulate 4 --use_avg_len --raw --model bert_24_1024_16 --dtype float16 "
        "--max_seq_length 512 --max_predictions_per_seq 80 --warmup_ratio 0.01 --log_interval 250 "
        "--ckpt_interval 25000 --ckpt_dir ./ckpt --num_buckets 1 --verbose --short_seq_prob 0.1"
    )
    options = parse_options(line.split(), "description")
    assert options.data == "folder1/*.txt,folder2/*.txt" and options.use_avg_len and options.raw
    assert (options.lr, options.batch_size, options.accumulate) == (1e-4, 65536, 4)
    assert options.optimizer == "lamb" and options.clip_norm == 1.0 and not options.resume


PHASE_2 = "--phase2 --phase1_num_steps 9"


@pytest.mark.parametrize(
    "given, ours",
    [
        ("--num_dataset_workers 4", "--num_data_workers 4"),
        ("--num_dataset_workers=4 --num_batch_workers 2", "--num_data_workers 6"),
        ("--synthetic_data", "--dummy_data_len 512"),
        ("--synthetic_data --max_seq_length 128", "--dummy_data_len 128 --max_seq_length 128"),
        (f"{PHASE_2} --start_step 9", "--stages 2 --keep_optimizer_state"),
        (f"{PHASE_2} --start_step 12", "--stages 2 --keep_optimizer_state --start_step 12"),
        (f"{PHASE_2} --init_from x", "--stages 2 --init_from x"),
    ],
)
def test_later_options_of_gluonnlps_are_taken_as_ours(given, ours):
    """Those of 0.9's and 0.10's run_pretraining.py."""
    assert parse(*given.split()) == parse(*ours.split())


def test_gluonnlps_options_are_in_the_guide():
    guide = (ROOT / "docs" / "migration.md").read_text("utf-8")
    assert all(f"`--{name}" in guide for name in [*NOT_HERE, *TAKEN])


@pytest.mark.parametrize(
    "flags, bad",
    [
        ("num_steps num_buckets batch_size accumulate batch_size_eval log_interval ckpt_interval", "0 1.5"),
        ("dummy_data_len max_seq_length max_predictions_per_seq", "0 1.5"),
        ("start_step seed num_data_workers keep_checkpoints", "-1 0.5"),
        ("lr sp_alpha decay_power lower_bound upper_bound num_epochs", "0"),
        ("end_lr clip_norm weight_decay", "-0.1"),
        ("warmup_ratio short_seq_prob", "-0.1 1.1"),
        ("dropout attention_dropout beta1", "-0.1 1"),
        ("beta2", "-0.1 0.9999999"),
        ("epsilon", "0 2"),
        ("masked_lm_prob", "0 1.1"),
    ],
)
def test_just_out_of_range(flags, bad):
    """Values just outside; tests/faults/test_bad_values.py has what is no number, or beyond all bounds."""
    for flag in flags.split():
        for value in bad.split():
            assert f"--{flag}" in refused(f"--{flag}={value}")
            assert f"--{flag}" in refused(f"--{flag}", value)
        if bad.startswith("-"):
            assert getattr(parse(f"--{flag}", "0"), flag) == 0


@pytest.mark.parametrize("flag", ["max_seq_length", "dummy_data_len"])
def test_lengths_beyond_berts_positions(flag):
    assert getattr(parse(f"--{flag}", "512"), flag) == MAX_POSITIONS == 512
    assert refused(f"--{flag}", "513").startswith(f"--{flag} 513: ")
    assert refused(f"--{flag}", "7").startswith(f"--{flag} 7: ")


@pytest.mark.parametrize(
    "name", ["bert", "bert_base", "roberta_12_768_12", "bert_12_768", "bert_0_768_12", "bert_12_768_12_1"]
)
def test_unknown_models(name):
    message = refused("--model", name)
    assert message.startswith(f"--model {name}: ") and "bert_12_768_12" in message


@pytest.mark.parametrize(
    "given, named",
    [
        ("--learning_rate 1", ["--learning_rate"]),
        ("--num_step 5", ["--num_step"]),  # no abbreviations: a typing error is not another option
        ("--lr", ["--lr"]),
        ("stray", ["stray"]),
        # Later options of GluonNLP's that cannot be taken.
        *((f"--{name} 4", [f"--{name} is not followed here: ", reason]) for name, reason in NOT_HERE.items()),
        ("--total_batch_size 256 --raw --comm_backend horovod", ["--batch_size", "run_pretraining_hvd.py"]),
        ("--no_compute_acc --gpus=0,1", ["--no_compute_acc", "--gpus", "CUDA_VISIBLE_DEVICES"]),
        ("--phase2", ["--phase1_num_steps", "--stages 2"]),
        ("--phase1_num_steps 9", ["--phase2", "--stages 2"]),
        (f"{PHASE_2} --start_step 8", ["--start_step 8", "--phase1_num_steps 9"]),
        (f"{PHASE_2} --stages 1", ["--phase2", "--stages 1"]),
        # Options that exclude each other.
        ("--vocab v.txt --sentencepiece s.model", ["--vocab", "--sentencepiece"]),
        ("--sp_nbest 5", ["--sp_nbest", "--sentencepiece"]),
        ("--padding remove --operators mxnet", ["--padding", "--operators"]),
        ("--model bert_2_64_3", ["--model bert_2_64_3: 3 heads do not divide 64 units"]),
        ("--resume --start_step 5", ["--resume", "--start_step"]),
        ("--lower_bound 2 --upper_bound 1", ["--lower_bound", "--upper_bound"]),
        ("--lr 1e-4 --end_lr 1e-3", ["--end_lr", "--lr"]),
        ("--start_step 11 --num_steps 10", ["--start_step", "--num_steps"]),
        ("--keep_interval 50 --ckpt_interval 20", ["--keep_interval", "--ckpt_interval"]),
        ("--pretrained --model bert_2_64_2", ["--pretrained", "bert_2_64_2"]),
        ("--optimizer adamw --bias_correction", ["--bias_correction", "--optimizer"]),
        ("--optimizer bertadam --lower_bound 1", ["--lower_bound", "--optimizer"]),
        ("--optimizer adamw --upper_bound 1", ["--upper_bound", "--optimizer"]),
        ("--optimizer_state bfloat16 --operators mxnet", ["_state bfloat16", "or --operators mxnet"]),
        ("--optimizer_state bfloat16 --dtype float16", ["_state bfloat16", "or --dtype float16"]),
        ("--optimizer_state bfloat16 --shard_states", ["bfloat16 with --shard_states: its roundings"]),
        (
            "--optimizer_state bfloat16 --optimizer muon",
            ["bfloat16 is for LAMB's and Adam's moments, not for"],
        ),
        ("--num_epochs 1 --num_steps 5", ["--num_epochs and --num_steps exclude each other"]),
        ("--num_epochs 1 --budget_hours 1", ["--budget_hours and --num_epochs exclude each other"]),
        ("--num_epochs 1 --dummy_data_len 16", ["--num_epochs: passes are over --data"]),
        ("--keep_best", ["--keep_best: nothing is evaluated; name held-out text"]),
        ("--eval_interval 5", ["--eval_interval: nothing is evaluated; name held-out text"]),
    ],
)
def test_what_cannot_be_is_named(given, named):
    message = refused(*given.split())
    assert all(flag in message for flag in named), message


def test_a_run_needs_something_to_do():
    assert "--data" in refused(data="") and "--data_eval" in refused("--raw", data="")
    assert parse("--dummy_data_len", "64", data="").data is None
    assert parse("--data_eval", "x.npz", data="").data is None


def test_the_home_directory_is_expanded(monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    assert parse("--ckpt_dir", "~/ckpt").ckpt_dir == "/home/somebody/ckpt"


def test_help_names_every_option(capsys):
    with pytest.raises(SystemExit) as caught:
        parse("--help")
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert all(f"--{name}" in text for name in TABLE if name != "sp_seed")
