"""Options that the training scripts get, and that their own rules hold before anything is launched."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from base.errors import InputError
from comparison.backends import BACKENDS
from comparison.options import parse_options
from comparison.runs.command import Training, plan_training
from comparison.runs.record import PROFILED, TIMED
from comparison.settings import Turn
from data import embedded
from training.options import parse_options as parse_script_options
from training.profiling.profiler import LAST


def plan(words: list[str]) -> tuple[Training, list]:
    options = parse_options(words, BACKENDS)
    return plan_training(options, Path(options.output)), list(options.settings)


def own_data(directory: Path, *more: str) -> list[str]:
    (directory / "a.text").write_text("one two three\nfour five six\n\nseven eight\nnine ten\n")
    (directory / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "one"]))
    words = ["--output", directory / "out", "--raw", "--data", directory / "*.text", "--max_seq_length", 16]
    words += ["--vocab", directory / "vocab.txt", "--batch_sizes", 2, 4]
    return [*map(str, words), *more]


def script_options(training: Training, work: Turn, directory: Path):
    """As the script itself reads them."""
    return parse_script_options(training.script_words(work, directory), "")


def test_a_launch_gets_its_setting_and_what_all_share(tmp_path):
    training, settings = plan(own_data(tmp_path, "--seed", "7", "--", "--dropout", "0", "--cased"))
    for setting in settings:
        found = script_options(training, Turn(setting, 2, TIMED), tmp_path)
        assert (found.dtype, found.batch_size) == (setting.dtype, setting.batch_size)
        assert (found.num_steps, found.log_interval, found.seed) == (60, 5, 7)
        assert found.dropout == 0 and found.cased and found.raw and found.max_seq_length == 16
        assert found.ckpt_dir == str(tmp_path / "ckpt") and not found.profile and not found.resume
        assert found.cache_dir == str(tmp_path / "out" / "tokens")
        assert found.lr is None  # the paper's: only the embedded text has a schedule of its own
    profiled = script_options(training, Turn(settings[0], 0, PROFILED), tmp_path)
    assert profiled.profile == str(tmp_path / "trace.json") and profiled.num_steps == LAST
    assert profiled.ckpt_dir == str(tmp_path / "ckpt")


def test_facts_for_the_report(tmp_path):
    facts = plan(own_data(tmp_path, "--accumulate", "3"))[0].facts
    assert facts["vocab_size"] == 6 and facts["max_seq_length"] == 16 and facts["accumulate"] == 3
    assert facts["model"] == "bert_2_128_2" and facts["use_avg_len"] is False
    assert (facts["num_steps"], facts["warmup_steps"], facts["log_interval"]) == (60, 20, 5)
    assert json.loads(json.dumps(facts)) == facts


def test_the_embedded_text(tmp_path, corpus, monkeypatch):
    """A copy of what all tests share, of which nothing but the size of the vocabulary is other."""
    made = Path(corpus.vocab).parent
    monkeypatch.setattr(embedded, "build", lambda folder: shutil.copytree(made, folder))
    training, settings = plan(["--output", str(tmp_path), "--dtypes", "float32", "--workers", "2"])
    found = script_options(training, Turn(settings[0], 0, TIMED), tmp_path)
    assert found.use_avg_len and found.raw and found.max_seq_length == 32 and found.lr == 0.014
    assert found.dropout == 0.1  # the scripts' own
    assert training.facts["vocab_size"] == 1024 and len(training.identity["data"]) > 1
    assert [setting.batch_size for setting in settings] == [512] * 3 + [1024] * 3
    assert "--lr" in training.preparation
    assert parse_script_options(training.preparation[2:], "").num_steps == 1


def test_a_model_from_a_file(tmp_path):
    """Instead of compare.py's own; the report has all of its sizes."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    content = {**sizes, "max_position_embeddings": 32, "type_vocab_size": 2, "vocab_size": 8}
    (tmp_path / "c.json").write_text(json.dumps(content))
    training, settings = plan(own_data(tmp_path, "--", "--config_file", str(tmp_path / "c.json")))
    assert training.facts["model"] == "bert_1_16_2" and training.facts["vocab_size"] == 8
    assert training.facts["bert"]["hidden"] == 24
    assert script_options(training, Turn(settings[0], 0, TIMED), tmp_path).model is None
    assert parse_script_options(training.preparation[2:], "").num_steps == 1


def test_random_tokens_need_no_data(tmp_path):
    words = ["--output", str(tmp_path), "--batch_sizes", "4", "--", "--dummy_data_len", "16"]
    training, _ = plan(words)
    assert training.identity["data"] == [] and not training.preparation
    assert training.facts["max_seq_length"] == 16 and not list(tmp_path.iterdir())


def test_data_is_known_by_its_files(tmp_path):
    before = plan(own_data(tmp_path))[0].identity["data"]
    assert [[path, size] for path, size, _ in before] == [
        [str(tmp_path / name), (tmp_path / name).stat().st_size] for name in ("a.text", "vocab.txt")
    ]
    (tmp_path / "b.text").write_text("more text\nin another file\n\nof two\ndocuments\n")
    assert len(plan(own_data(tmp_path))[0].identity["data"]) == len(before) + 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--", "--ckpt_dir", "x"], "--ckpt_dir after --: compare.py decides it"),
        (["--", "--resume"], "--resume after --: compare.py decides it"),
        (["--", "--profile=x"], "--profile after --: compare.py decides it"),
        (["--", "--progress", "bar"], "--progress after --"),
        (["--", "--dtype", "float32"], "--dtype after --: compare.py sets it; use --dtypes before --"),
        (["--", "--batch_size=9"], "--batch_size after --: compare.py sets it; use --batch_sizes"),
        (["--", "--num_steps", "9"], "--num_steps after --: compare.py sets it; use --steps"),
        (["--", "--log_interval", "9"], "--log_interval after --"),
        (["--", "--seed", "9"], "--seed after --"),
        (["--", "--model", "bert_1_32_2"], "--model after --: is an option of compare.py"),
        (["--", "--no_such_option"], "--no_such_option"),
        (["--", "--dropout", "2"], "--dropout"),
    ],
)
def test_what_is_rejected(tmp_path, words, message):
    with pytest.raises(InputError) as raised:
        plan(own_data(tmp_path, *words))
    assert message in str(raised.value) and "\n" not in str(raised.value)


def test_missing_files_are_named(tmp_path):
    words = own_data(tmp_path)
    words[words.index("--data") + 1] = str(tmp_path / "nothing-*.txt")
    with pytest.raises(InputError, match="nothing"):
        plan(words)
    with pytest.raises(InputError, match="--vocab: is for --data, which was left out"):
        plan(["--output", str(tmp_path / "out"), "--vocab", "vocab.txt"])
