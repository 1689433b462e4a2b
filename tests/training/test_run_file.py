"""The run.yaml of a run: complete, and enough to repeat it bit for bit; its model FLOPs utilisation."""

from __future__ import annotations

import statistics

import pytest
import yaml

from bert.flops import BACKWARD, Size, forward_flops
from comm.local import LocalCommunicator
from tests.processes import ROOT, run_ranks
from tests.training.staged import arrays_of
from tests.training.test_options_file import options
from training.options import parse_options, run_config
from training.plan import make_plan
from training.profiling.profiler import TracePlan
from training.report import read_metrics
from training.run import write_run_file

SCRIPT = ROOT / "run_pretraining_hvd.py"
PEAK = 0.05  # 10^12 operations a second


@pytest.fixture(scope="module")
def first(corpus, tmp_path_factory):
    """A run from a file of options, on random tokens so that its batches are known, with dropout."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "own.yaml").write_text(
        f"dummy_data_len: 32\nvocab: {corpus.vocab}\nmodel: bert_1_32_2\nbatch_size: 4\naccumulate: 2\n"
        "max_predictions_per_seq: 5\nnum_steps: 30\nlr: 1e-2\nwarmup_ratio: .1\nschedule: wsd\n"
        "cooldown_ratio: 0.5\nlog_interval: 10\nckpt_interval: 15\nseed: 3\nckpt_dir: first\n"
        f"peak_tflops: {PEAK}\n"
    )
    args = ["--options_file", "own.yaml", "--clip_norm", "0.5"]
    return folder, run_ranks(SCRIPT, 1, "none", args=args, cwd=folder).check()


def test_every_option_is_there_with_its_value(first, corpus):
    folder, _ = first
    with (folder / "first" / "run.yaml").open() as file:
        written = yaml.safe_load(file)
    expected = {
        **options("--options_file", folder / "own.yaml", "--clip_norm", "0.5"), "seed": 3, "ckpt_dir": "first"
    }  # fmt: skip
    assert written == expected and len(written) > 50
    assert options("--options_file", folder / "first" / "run.yaml") == expected
    assert not list((folder / "first").glob("*.tmp*"))


def test_the_comments(first):
    folder, _ = first
    text = (folder / "first" / "run.yaml").read_text()
    assert "run_pretraining_hvd.py --options_file own.yaml --clip_norm 0.5\n" in text
    assert "# processes: 1\n" in text and "mxnet 1.9.1" in text and "30 steps" in text


def test_it_repeats_the_run_bit_for_bit(first):
    """Measuring its peak, which must change nothing."""
    folder, _ = first
    args = ["--options_file", "first/run.yaml", "--ckpt_dir", "second", "--peak_tflops=null"]
    run_ranks(SCRIPT, 1, "none", args=args, cwd=folder).check()
    for step in (15, 30):
        assert arrays_of(folder / "first", step) == arrays_of(folder / "second", step)
    losses = [
        [each["mlm_loss"] for each in read_metrics(str(folder / which)) if "mlm_loss" in each]
        for which in ("first", "second")
    ]
    assert losses[0] == losses[1] and len(losses[0]) == 3


def test_mfu_is_operations_over_the_stated_peak(first, corpus):
    folder, result = first
    with open(corpus.vocab, encoding="utf-8") as lines:
        vocabulary = sum(1 for _ in lines)
    # On the fused operators what follows the top attention is computed for 5 masked positions and the first.
    forward = forward_flops(
        Size(1, 32, 128, vocabulary), 4, 32, 5, top_rows=6 if "on fused" in result.stdout else None
    )
    of_step = 2 * (1 + BACKWARD) * forward.total
    found = read_metrics(str(folder / "first"))
    for each in found:
        assert each["mfu"] == pytest.approx(of_step / each["step_s"] / (PEAK * 1e12), rel=1e-6)
    assert f"mfu is the share of {PEAK:g} TFLOP/s, 1 x --peak_tflops {PEAK:g}" in result.stdout
    assert f"mfu {found[0]['mfu']:.1%}" in result.stdout
    median = statistics.median(each["mfu"] for each in found)
    assert f"model FLOPs utilisation {median:.1%} (median of log intervals)" in result.stdout


def test_a_trace_plan_and_a_command_of_several_lines(tmp_path, monkeypatch):
    parsed = parse_options(["--data", "x", "--ckpt_dir", str(tmp_path), "--num_steps", "9"], "")
    parsed.profile = TracePlan("t.json", 1, 2)
    config = run_config(parsed)
    monkeypatch.setattr("sys.argv", ["run.py", "--data", "a\nlr: 5", "\x85b\u2028"])
    made = make_plan(config.batch, config.optimization, 1, 128)
    (tmp_path / "run.yaml.tmp-17-0123abcd").touch()  # a killed run's
    write_run_file(config, LocalCommunicator(), 7, made)
    found = options("--options_file", tmp_path / "run.yaml")
    assert (found["profile"], found["seed"], found["lr"], found["data"]) == ("t.json", 7, None, "x")
    assert [each.name for each in tmp_path.iterdir()] == ["run.yaml"]
