"""`make bench ARGS=--quick` as it is, and what a measurement does with its sizes and its peers."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time

import pytest

from bench import harness, tokenize_text
from bench.step import CONTESTANTS
from bench.workers import find_torch_python
from tests.embedded import built_once
from tests.processes import ROOT, run_command

# Of a `make test` that this test runs in.
FOREIGN = dict.fromkeys(
    ("MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "BENCH", "ARGS", "BACKEND", "NP")
)
BY_DEFAULT = ["step", "finetune", "loader", "tokenize_text", "questions"]
# What shows in its output that a measurement has come to its end.
SHOWS = {
    "step": "ours, MXNet's operators",
    "finetune": "training a classifier of sentence pairs",
    "loader": "waiting for ours, 128, 8 prefetching threads",
    "tokenize_text": "Hugging Face tokenizers",
    "questions": "features",
}


@pytest.fixture
def text(tmp_path_factory) -> dict[str, str]:
    """Variables with which a measurement finds its text, which takes seconds to write."""
    return {"BENCH_TEXT": str(built_once(tmp_path_factory, harness.VOCAB_SIZE))}


@pytest.mark.skipif(not shutil.which("make"), reason="there is no make")
@pytest.mark.slow
def test_all_measurements_run_to_their_end(tmp_path):
    """As the README has it; only `setup`, which installs, is left out, and one writes its figures. Their text
    is not left behind."""
    arguments = f"ARGS=--quick $$(test $$each != step || echo --json {tmp_path}/step.json)"
    words = ["make", "-o", "setup", f"PY={sys.executable}", "bench", arguments]
    # On a machine that others share they took 11 minutes.
    result = run_command(words, 1700, env={**FOREIGN, "TMPDIR": str(tmp_path)}, cwd=ROOT).check()
    assert not list(tmp_path.glob("tmp.*"))  # the text that they share, in a folder of mktemp's
    parts = re.split(r"^--- python -m bench\.(\w+) --quick\b.*\n", result.stdout, flags=re.MULTILINE)
    assert parts[1::2] == BY_DEFAULT
    for name, output in zip(parts[1::2], parts[2::2]):
        assert SHOWS[name] in output, name
        assert output.rstrip().endswith(harness.NOTICE), name
        if name in ("step", "finetune") and find_torch_python(None, os.environ) is None:
            (line,) = (line for line in output.splitlines() if "PyTorch" in line)
            assert line.startswith("PyTorch was left out")
    step = json.loads((tmp_path / "step.json").read_text())
    assert step["machine"]["cpu"] and step["threads"] >= 1
    for each in step["results"]:
        assert each["idle"] < 0.2
        assert {"ours", "products"} <= set(each["contestants"])  # of bfloat16 no peers
        for key, figures in each["contestants"].items():
            assert CONTESTANTS[key].title in result.stdout
            assert figures["step_s"]["median"] > 0 and figures["peak_bytes"] > 1e7 and figures["of_peak"] > 0
        assert 10 < each["contestants"]["ours"]["losses"][-1] < 12  # ln 30522 + ln 2


def test_startup_quick(text):
    words = [sys.executable, "-m", "bench.startup", "--quick", "--ranks", "1"]
    start = time.monotonic()
    result = run_command(words, env=text, cwd=ROOT).check()
    elapsed = time.monotonic() - start
    seconds = {
        name: float(re.search(rf"^{name} +([0-9.]+) \(", result.stdout, re.MULTILINE)[1])
        for name in ("hparams.py", "import mxnet", "first step")
    }
    # Measured one after the other; beside other tests any of them may be the longest.
    assert min(seconds.values()) > 0 and sum(seconds.values()) < elapsed
    assert result.stdout.rstrip().endswith(harness.NOTICE)


def test_latency_quick():
    words = ["-m", "bench.latency", "--quick", "--dtypes", "float32", "--sizes", "1x16", "2x9"]
    result = run_command([sys.executable, *words], cwd=ROOT).check()
    parts = re.split(r"^(1x16|2x9) ", result.stdout, flags=re.MULTILINE)
    assert parts[1::2] == ["1x16", "2x9"]
    for rows in parts[2::2]:
        for contestant in ("ours", "onnxruntime"):
            (times,) = re.findall(rf"\b{contestant} +([0-9.]+) +([0-9.]+)", rows)
            assert 0 < float(times[0]) <= float(times[1]), result.stdout
    assert result.stdout.rstrip().endswith(harness.NOTICE)


def test_what_is_named_stays():
    parser = harness.Measurement("some", None, "little")
    parser.option("--rounds", 5, 2, type=int)
    parser.option("--sizes", "large", "small")
    parser.option("--repeats", 3)

    def values(*words: str) -> list:
        return list(vars(parser.settle(parser.parse_args(words))).values())[2:]

    assert values("--quick", "--rounds", "9") == [9, "small", 3] and values() == [5, "large", 3]


def test_a_tokenizer_that_is_not_there_is_left_out(monkeypatch, capsys, corpus):
    monkeypatch.setitem(sys.modules, "gluonnlp", None)
    assert tokenize_text.main(["--quick", "--input", corpus.held_out, "--vocab", corpus.vocab]) == 0
    output = capsys.readouterr().out
    assert "gluonnlp BERTTokenizer: left out: gluonnlp is not installed here" in output
    assert output.count("gluonnlp BERTTokenizer") == 1 and harness.NOTICE in output


@pytest.mark.parametrize(
    "name, words, message",
    [
        ("loader", ["--vocab", "x.txt"], "--input and --vocab belong together"),
        ("step", ["--models", "tiny"], "bert_LAYERS_UNITS_HEADS"),
        ("step", ["--torch_python", "no/python"], "there is no such program"),
        ("latency", ["--sizes", "8x384", "8x0"], "8x0: write SEQUENCESxTOKENS"),
        ("questions", ["--json", "/nowhere/figures.json"], "--json /nowhere/figures.json: no file can be"),
        ("pretraining", ["--quick", "--plot", "/"], "--plot /: no file can be there"),
    ],
)
def test_bad_options_are_one_line(name, words, message):
    """Errors that no value alone shows; tests/faults/test_bad_values.py has the others."""
    result = run_command([sys.executable, "-m", f"bench.{name}", *words], cwd=ROOT)
    assert result.returncode == 2 and message in result.stderr.splitlines()[-1], result.describe()
