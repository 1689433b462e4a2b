"""run_pretraining_hvd.py from end to end: real processes, real text, a tiny model."""

from __future__ import annotations

import json
import math
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

import lamb_paper
from tests.embedded import sentencepiece_model
from tests.processes import ROOT, run_command, run_ranks, start_ranks, wait_for_file, words_of
from tests.training.staged import arrays_of, copy_step, manifest_of, read_params
from training.checkpoint import newest_complete
from training.report import read_metrics

SCRIPT = ROOT / "run_pretraining_hvd.py"
STEPS = 12


def options(corpus, ckpt_dir, **changes) -> list[str]:
    chosen = {
        **{"raw": True, "data": corpus.train, "vocab": corpus.vocab, "model": "bert_1_32_2", "seed": 3},
        **{"max_seq_length": 32, "batch_size": 256, "use_avg_len": True, "num_buckets": 2, "lr": 0.01},
        **{"num_steps": STEPS, "warmup_ratio": 0.25, "log_interval": 4, "ckpt_interval": 6},
        **{"peak_tflops": 1, "cache_dir": Path(corpus.vocab).with_name("tokens"), "ckpt_dir": ckpt_dir},
        **changes,
    }
    return words_of(chosen)


def train(args, ranks=1, launcher="none"):
    # One thread each: threads that wait for each other are slow on a busy machine.
    return run_ranks(SCRIPT, ranks, launcher, args=args, env={"OMP_NUM_THREADS": "1"})


def metrics_of(ckpt_dir: Path) -> list[dict]:
    return read_metrics(str(ckpt_dir))


@pytest.fixture(scope="module")
def two_ranks(corpus, tmp_path_factory):
    """An uninterrupted run of two Horovod processes over MPI, with evaluation. It measures its peak."""
    directory = tmp_path_factory.mktemp("two")
    args = options(corpus, directory, data_eval=corpus.held_out, accumulate=2, peak_tflops=None)
    return directory, train(args, 2, "mpirun").check()


@pytest.fixture(scope="module")
def resumed(two_ranks, corpus, tmp_path_factory):
    """`two_ranks` once more from its checkpoint of step 6, the one of step 12 being damaged; under Gloo."""
    complete, _ = two_ranks
    directory = copy_step(complete, 6, tmp_path_factory.mktemp("resumed"))
    copy_step(complete, 12, directory)
    shutil.copy(complete / "metrics.jsonl", directory)  # holds lines beyond step 6, to be run again
    damaged = directory / "0000012.params"
    content = bytearray(damaged.read_bytes())
    content[-1000] ^= 1
    damaged.write_bytes(content)
    args = options(corpus, directory, data_eval=corpus.held_out, accumulate=2, resume=True, seed=None)
    return directory, train(args, 2, "gloo").check()


def test_operators_and_dtypes_train_alike(corpus, tmp_path):
    """Without dropout, whose random numbers differ, the fused operators give the losses of MXNet's own, and
    bfloat16 without the rows of padding nearly."""
    losses = {}
    for operators, dtype, padding in (
        ("mxnet", "float32", "keep"),
        ("fused", "float32", "keep"),
        ("fused", "bfloat16", "remove"),
    ):
        directory = tmp_path / f"{operators}-{dtype}"
        args = options(corpus, directory, dropout=0, operators=operators, dtype=dtype, padding=padding)
        said = train(args).check().stdout
        without = " without padding" if padding == "remove" else ""
        assert f"{dtype} on {operators} operators{without}, 1 process" in said
        losses[operators, dtype] = [line["mlm_loss"] for line in metrics_of(directory) if "mlm_loss" in line]
    expected = losses["mxnet", "float32"]
    assert expected[-1] < expected[0] - 0.1
    np.testing.assert_allclose(losses["fused", "float32"], expected, rtol=1e-4)
    np.testing.assert_allclose(losses["fused", "bfloat16"], expected, rtol=1e-2)
    assert losses["fused", "bfloat16"] != losses["fused", "float32"]


def test_metrics(two_ranks):
    directory, _ = two_ranks
    metrics = metrics_of(directory)
    training = [each for each in metrics if "mlm_loss" in each]
    assert [each["step"] for each in training] == [4, 8, 12]
    for each in training:
        assert 0 < each["tokens_per_s"] <= each["padded_tokens_per_s"]
        assert each["padded_tokens_per_s"] * each["step_s"] <= 2 * 2 * 256 * 1.001
        assert 0 <= each["data_wait"] < 1
        assert 0 < each["mlm_loss_se"] < 0.3  # four steps of two ranks
    assert training[0]["mlm_loss"] == pytest.approx(math.log(1024), abs=0.5)  # starts by guessing
    assert training[-1]["mlm_loss"] < training[0]["mlm_loss"]
    evaluations = [each for each in metrics if "eval_mlm_loss" in each]
    assert [each["step"] for each in evaluations] == [6, 12]
    assert evaluations[-1]["eval_mlm_loss"] < evaluations[0]["eval_mlm_loss"]
    for each in evaluations:
        assert 0 < each["eval_mlm_loss_se"] < 0.3
        assert abs(each["eval_context_gain"]) < 0.1 and 0 < each["eval_context_gain_se"] < 0.05
        parts = each["eval_parts"]
        assert sum(parts["loss"]) / sum(parts["count"]) == pytest.approx(each["eval_mlm_loss"], abs=1e-4)
    assert evaluations[0]["eval_sequences"] == evaluations[1]["eval_sequences"] > 100


def test_only_rank_0_talks(two_ranks):
    directory, result = two_ranks
    assert result.ranks[1].stdout == "" and result.ranks[1].stderr == ""
    said = result.ranks[0].stdout
    assert "2 processes on cpu" in said and "unigram entropy" in said
    assert "TFLOP/s, products of 2048 x 2048 float32 matrices on 2 processes" in said
    last = metrics_of(directory)[-1]
    assert f"The held-out MLM loss, {last['eval_mlm_loss']:.3f}, is " in said and "held-out text, of " in said
    assert f"(two standard errors: {2 * last['eval_mlm_loss_se']:.3f})." in said
    gain, error = last["eval_context_gain"], last["eval_context_gain_se"]
    assert f"context gain {gain:.3f} nats (two standard errors: {2 * error:.3f}): use of" in said
    assert f"checkpoint {directory}/{STEPS:07d}.params" in said
    assert "warning" not in result.ranks[0].stderr  # small steps, with all values given


def test_resume_is_bit_identical_on_two_ranks_and_under_gloo(two_ranks, resumed):
    """A damaged checkpoint is named, and passed over."""
    (complete, _), (directory, result) = two_ranks, resumed
    assert f"{directory / '0000012.params'} is damaged" in result.ranks[0].stderr
    assert "continuing after step 6" in result.ranks[0].stdout and "keeps" not in result.ranks[0].stdout
    assert arrays_of(complete, 12) == arrays_of(directory, 12)
    first, second = metrics_of(complete), metrics_of(directory)
    assert [each["step"] for each in first] == [each["step"] for each in second]
    # The interval that holds the resumed step is shorter; the others saw the same.
    assert first[-2]["mlm_loss"] == second[-2]["mlm_loss"]
    assert first[-1]["eval_mlm_loss"] == second[-1]["eval_mlm_loss"]


@pytest.fixture(scope="module")
def elastic(two_ranks, corpus, tmp_path_factory):
    """`two_ranks` from its checkpoint of step 6 on, with the same sequences a step, but 1 process, which has
    no time for more than a step, then 4."""
    complete, _ = two_ranks
    directory, launches = copy_step(complete, 6, tmp_path_factory.mktemp("elastic")), []
    shutil.copy(complete / "metrics.jsonl", directory)
    for ranks, max_hours in ((1, 1e-6), (4, None)):
        changes = {"data_eval": corpus.held_out, "accumulate": 2, "resume": True, "max_hours": max_hours}
        launches.append(train(options(corpus, directory, **changes), ranks, "mpirun"))
    return directory, launches


def test_a_run_whose_time_is_up_leaves_with_75_and_is_continued(elastic):
    directory, launches = elastic
    assert [each.returncode for each in launches] == [75, 0], launches[0].describe()
    assert "time is up after step 7; --resume continues" in launches[0].ranks[0].stderr
    assert sorted(path.name for path in directory.glob("*.json")) == [
        "0000006.json", "0000007.json", "0000012.json", "results.json"
    ]  # fmt: skip
    assert [each["step"] for each in metrics_of(directory)] == [4, 6, 7, 8, 12, 12]


def test_a_run_shrunk_and_grown_back_is_the_undisturbed_one(elastic, two_ranks):
    """With dropout: its masks belong to a micro-batch's place in the step, whoever computes it."""
    (directory, launches), (complete, _) = elastic, two_ranks
    for launch, (size, each) in zip(launches, ((1, 4), (4, 1))):
        kept = f"a step keeps the 4 micro-batches of 2 processes: each of {size} takes {each}"
        assert kept in launch.ranks[0].stdout
    assert "seen twice" not in launches[1].stderr
    found, expected = metrics_of(directory)[-2:], metrics_of(complete)[-2:]  # steps 9 to 12
    for figure in ("mlm_loss", "nsp_loss", "lr", "grad_norm", "eval_mlm_loss", "eval_nsp_loss"):
        for step, (one, other) in enumerate(zip(found, expected)):
            if figure in other:
                assert one[figure] == pytest.approx(other[figure], rel=1e-5), (figure, step)
    manifests = [manifest_of(place, 12) for place in (directory, complete)]
    assert manifests[0]["blocks"] == manifests[1]["blocks"] == 12 * 4
    assert [each["processes"] for each in manifests] == [2, 2]
    assert [each["world_size"] for each in manifests] == [4, 2]
    arrays = read_params(directory, 12)
    for name, expected in read_params(complete, 12).items():
        if not name.endswith("proj_key.bias"):  # gradients of rounding alone, which LAMB blows up
            np.testing.assert_allclose(arrays[name], expected, rtol=1e-3, atol=1e-5, err_msg=name)


def test_sigusr1_to_mpirun_saves_on_all_ranks_at_the_next_step(corpus, tmp_path):
    """SIGTERM to one process: test_finetune.py."""
    args = options(corpus, tmp_path, num_steps=100_000, ckpt_interval=100_000, log_interval=5)
    with start_ranks(SCRIPT, 2, "mpirun", args=args) as run:
        wait_for_file(tmp_path / "metrics.jsonl", "\n", run)
        run.signal(signal.SIGUSR1)
        result = run.wait()
    assert result.returncode == 143, result.describe()
    (manifest,) = tmp_path.glob("[0-9]*.json")
    step = int(manifest.stem)
    assert 5 <= step < 100_000
    assert f"stopped by a signal after step {step}" in result.ranks[0].stderr
    assert newest_complete(str(tmp_path), pytest.fail).step == step


def test_files_with_masks_train_and_evaluate(corpus, tmp_path):
    """Output of data.prepare, in three formats under names that say nothing."""
    for name in ("npz", "hdf5", "tfrecord"):
        words = ["--input", corpus.held_out, "--vocab", corpus.vocab, "--format", name, "--dupe_factor", "1"]
        words += ["--max_seq_length", "32", "--output", str(tmp_path / name)]
        run_command([sys.executable, "-m", "data.prepare", *words]).check()
        (written,) = [path for path in (tmp_path / name).iterdir() if path.suffix != ".json"]
        written.rename(tmp_path / f"{name}.bin")
    # Three files, two ranks.
    args = options(
        corpus, tmp_path / "run", raw=None, data=tmp_path / "*.bin", data_eval=tmp_path / "hdf5.bin",
        max_seq_length=None, num_steps=6,
    )  # fmt: skip
    train(args, 2, "mpirun").check()
    assert [each["step"] for each in metrics_of(tmp_path / "run")] == [4, 6, 6]
    written = (tmp_path / "run" / "run.yaml").read_text()
    # And evaluation alone, of the checkpoint just made: the same figures from the same sequences elsewhere.
    args = options(
        corpus, tmp_path / "run", raw=None, data=None, data_eval=tmp_path / "npz.bin", max_seq_length=None,
        num_steps=6, resume=True,
    )  # fmt: skip
    train(args).check()
    first, second = [each for each in metrics_of(tmp_path / "run") if "eval_mlm_loss" in each]
    assert second["eval_mlm_loss"] == pytest.approx(first["eval_mlm_loss"], rel=1e-5)
    assert (tmp_path / "run" / "run.yaml").read_text() == written, "the options of the training"


def test_sentencepiece_sampling_and_whole_words(corpus, tmp_path):
    args = options(
        corpus, tmp_path / "run", vocab=None, data=corpus.held_out, data_eval=corpus.held_out,
        sentencepiece=sentencepiece_model(corpus.held_out, tmp_path), sp_nbest=-1, sp_alpha=0.5,
        whole_word_mask=True, cased=True, profile=tmp_path / "trace.json",
    )  # fmt: skip
    train([*args, "--num_steps", "16"], 2, "mpirun").check()
    first, *_, last = [each for each in metrics_of(tmp_path / "run") if "mlm_loss" in each]
    assert first["mlm_loss"] == pytest.approx(math.log(600), abs=0.7) and last["mlm_loss"] < first["mlm_loss"]
    for trace in ("trace.json", "trace.json.1"):
        assert len(json.loads((tmp_path / trace).read_text())["traceEvents"]) > 1000


def test_left_out_hyperparameters_come_from_the_paper(corpus, tmp_path):
    args = options(
        corpus, tmp_path, num_steps=None, lr=None, warmup_ratio=None, max_seq_length=128, batch_size=128,
        log_interval=1, resume=True,
    )  # fmt: skip
    with start_ranks(SCRIPT, 1, "none", args=args) as run:
        wait_for_file(tmp_path / "metrics.jsonl", "\n", run)
        said = run.stdout()
    assert f"no complete checkpoint in {tmp_path}: starting from the beginning" in said
    stage = lamb_paper.stage_for_run(1, 128, 1, 128)
    assert f"--num_steps {stage.num_steps} --lr {stage.lr!r} --warmup_ratio {stage.warmup_ratio!r}" in said
    (first, *_) = metrics_of(tmp_path)
    assert first["lr"] == pytest.approx(stage.lr / stage.warmup_steps)


def test_bad_input_under_mpirun_is_said_once(corpus, tmp_path):
    result = train(options(corpus, tmp_path / "new", data="nowhere/*.txt"), 2, "mpirun")
    assert result.returncode == 2
    # On a busy machine mpirun may end rank 1 after it has said the same, under its own name.
    assert result.stderr.count("error: --data: no file matches 'nowhere/*.txt'") == 1, result.stderr
