"""Comparisons of real training runs: right and wrong backends, too little memory, an interruption."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest

from tests.processes import ROOT, run_command, start_command, until

FAULTY = Path(__file__).with_name("faulty_training.py")
STEPS = ["--dtypes", "float32", "--steps", "8", "--warmup_steps", "2", "--log_interval", "2"]
# Of what a comparison reports, nothing depends on the peak, which every launch would measure.
SCHEDULE = ["--lr", "0.02", "--warmup_ratio", "0.1", "--peak_tflops", "1"]


def command(script: Path, output: Path, *words: object, data=("--dummy_data_len", 16)) -> list[str]:
    own = ["--output", output, "--model", "bert_1_32_2", *STEPS, *words]
    return [str(word) for word in (sys.executable, script, *own, "--", *data, *SCHEDULE)]


def report_of(output: Path) -> dict:
    return json.loads((output / "report.json").read_text("utf-8"))


def records_of(output: Path) -> dict[str, dict]:
    """By setting and repeat."""
    return {
        f"{path.parent.parent.name}/{path.parent.name}": json.loads(path.read_text("utf-8"))
        for path in (output / "launches").glob("*/*/record.json")
    }


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """Two right backends, one whose ranks train each for itself, one that sums where it should average, one
    that breaks down."""
    output = tmp_path_factory.mktemp("compare") / "out"
    words = ["--backends", "hvd_mpi", "byteps", "alone", "sum", "crash", "--workers", 2]
    words += ["--batch_sizes", 4, "--repeats", 1, "--no_profile"]
    return output, run_command(command(FAULTY, output, *words))


def test_a_wrong_backend_is_wrong_and_not_fast(judged):
    assert judged[1].returncode == 1, judged[1].describe()
    results = {each["setting"]["backend"]: each for each in report_of(judged[0])["results"]}
    assert {name: each["kind"] for name, each in results.items()} == {
        "hvd_mpi": "ok",  # with two workers: the same bits
        "byteps": "ok",
        "alone": "failed",  # its ranks find out themselves, before they save
        "sum": "wrong",
        "crash": "failed",
    }
    assert results["alone"]["figures"] is None
    assert "of rank 1 " in results["alone"]["reason"] and "are not rank 0's" in results["alone"]["reason"]
    assert "faulty: alone" in judged[1].stdout


def test_a_crash_names_rank_and_reason(judged):
    record = records_of(judged[0])["crash-2x-float32-4/1"]
    assert record["failure"] == "exit code 1: rank 1: RuntimeError: this backend breaks down"
    assert record["intervals"] == [] and not record["out_of_memory"]
    assert record["failure"] in (judged[0] / "report.md").read_text("utf-8")


def test_what_a_launch_leaves(judged):
    output = judged[0]
    record = records_of(output)["byteps-2x-float32-4/1"]
    assert [each["step"] for each in record["warm_up"]] == [2]
    assert [each["step"] for each in record["intervals"]] == [4, 6, 8]
    assert 0 < record["start_up_s"] < record["seconds"]
    assert set(record["peak_bytes"]) == {"worker", "server", "scheduler"}
    assert 100e6 < record["peak_bytes"]["worker"] < 4e9
    assert 5e6 < record["peak_bytes"]["scheduler"] < record["peak_bytes"]["server"] < 1e9
    assert set(records_of(output)["hvd_mpi-2x-float32-4/1"]["peak_bytes"]) == {"worker"}
    kept = sorted(path.name for path in (output / "launches/byteps-2x-float32-4/1").iterdir())
    assert kept == ["0000008.json", "hostfile", "metrics.jsonl", "record.json", "run.log"]


def figures_of(record: dict, *names: str) -> list[list]:
    return [[each[name] for name in names] for each in record["warm_up"] + record["intervals"]]


def test_a_backend_that_sums_instead_of_averaging_is_wrong(judged):
    """Losses and learning rates are equal to the last digit: clipping divides by the norm, whatever it is."""
    output, _ = judged
    results = {each["setting"]["backend"]: each for each in report_of(output)["results"]}
    right, summed = (records_of(output)[f"{name}-2x-float32-4/1"] for name in ("hvd_mpi", "sum"))
    blind = ("step", "mlm_loss", "nsp_loss", "lr")
    assert figures_of(right, *blind) == figures_of(summed, *blind)
    assert right["params_sha256"] == summed["params_sha256"]
    norm = right["warm_up"][0]["grad_norm"]
    assert [[2 * each] for (each,) in figures_of(right, "grad_norm")] == figures_of(summed, "grad_norm")

    assert results["sum"]["figures"] is None and results["sum"]["differs"] == "gradient norms differ"
    start = "wrong: gradient norms differ (first at step 2: gradient norm "
    assert results["sum"]["reason"].startswith(start), results["sum"]["reason"]
    found, expected = results["sum"]["reason"][len(start) : -1].split(" instead of ")
    assert (float(found), float(expected)) == pytest.approx((2 * norm, norm), rel=1e-3)


def test_running_out_of_memory_is_a_result(tmp_path):
    output = tmp_path / "out"
    words = "--backends memory --workers 1 --batch_sizes 4 16384 --repeats 1 --no_profile"
    result = run_command(command(FAULTY, output, *words.split())).check()
    kinds = {each["setting"]["batch_size"]: each["kind"] for each in report_of(output)["results"]}
    assert kinds == {4: "ok", 16384: "out of memory"}
    record = records_of(output)["memory-1x-float32-16384/1"]
    assert record["out_of_memory"] and "allocate" in record["failure"]
    assert "out of memory" in result.stdout


def test_an_interrupted_comparison_goes_on(tmp_path, corpus):
    """BytePS with a profile and a repeat: interrupted in the second launch, which alone is left to do."""
    output = tmp_path / "out"
    words = "--backends byteps --workers 2 --batch_sizes 4 --repeats 1 --profiles 1 --max_seq_length 24 --raw"
    data = ["--data", corpus.held_out, "--vocab", corpus.vocab]
    argv = command(ROOT / "compare.py", output, *words.split(), *data, data=())
    with start_command(argv) as run:
        until(lambda: any(path.stat().st_size for path in output.glob("launches/*/1/run.log")), run)
        run.signal(signal.SIGINT)
        first = run.wait()  # fails if anything is left running
    assert first.returncode == 130, first.describe()
    partial = report_of(output)
    assert not partial["complete"] and len(partial["launches"]) == 1
    assert "PARTIAL" in (output / "report.md").read_text("utf-8")
    before = {path: path.stat().st_mtime_ns for path in output.glob("launches/*/*/record.json")}
    assert [path.parent.name for path in before] == ["profile-1"]

    second = run_command(argv).check()
    assert "launch 2/2" in second.stdout and "launch 1/2" not in second.stdout
    assert "preparing" in first.stdout and "preparing" not in second.stdout
    assert {path: path.stat().st_mtime_ns for path in before} == before
    complete = report_of(output)
    assert complete["complete"] and len(complete["launches"]) == 2

    profile = records_of(output)["byteps-2x-float32-4/profile-1"]
    vocabulary, units = 1024, 32
    assert profile["exchanged_bytes"] > 4 * (vocabulary + 512 + 12 * units) * units  # all float32 gradients
    assert profile["exchanged_bytes"] < 1.5 * 4 * (vocabulary + 512 + 14 * units) * units
    communication = profile["breakdown"]["parts"]["communication, exposed"]
    assert communication["calls"] > 1
    assert communication["ms"] + profile["breakdown"]["hidden_ms"]["communication, exposed"] > 0
    assert communication["ms"] < profile["breakdown"]["step_ms"]
