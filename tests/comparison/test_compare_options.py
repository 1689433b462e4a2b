"""The command line of compare.py: what is left out, and what is refused before any work."""

from __future__ import annotations

import errno
import subprocess
import sys
from unittest import mock

import pytest

import compare
from base.errors import InputError
from comparison import options as options_module
from comparison.backends import BACKENDS, count_gpus
from comparison.options import Options, parse_options
from tests.processes import ROOT, executable, run_command


def parse(text: str) -> Options:
    return parse_options(text.split(), BACKENDS)


def test_the_default_is_what_the_issue_asks_for():
    found = parse("")
    settings = found.settings
    assert len(settings) == 3 * 2 * 2 * 2
    assert {each.backend for each in settings} == {"hvd_mpi", "hvd_gloo", "byteps"}
    assert {each.workers for each in settings} == {1, 2}
    assert {each.dtype for each in settings} == {"float32", "bfloat16"}
    assert (found.repeats, found.profiles) == (5, 3) and found.cluster is None
    assert found.script_args == () and (found.steps, found.warmup_steps, found.log_interval) == (60, 20, 5)


def test_on_gpus(monkeypatch, tmp_path):
    monkeypatch.setattr(options_module, "count_gpus", lambda: 8)
    found = parse("")
    assert list(found.backends) == ["hvd_mpi", "hvd_gloo", "byteps_local"]
    assert found.workers == (1, 8) and found.dtypes == ("float32", "float16")
    with pytest.raises(InputError, match="--workers 16: there are 8 GPUs"):
        parse("--workers 16")
    with pytest.raises(InputError, match="--backends byteps: all workers of this machine"):
        parse("--backends byteps")
    with pytest.raises(InputError, match="--workers 9: there are 8 GPUs"):
        parse_options(["--comm_only", "--workers", "9"], BACKENDS)
    hosts = tmp_path / "hosts"
    hosts.write_text("a slots=8\nb slots=8\n")
    found = parse(f"--hostfile {hosts}")
    assert list(found.backends)[-1] == "byteps" and found.workers == (1, 16)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("--backends mpi", "--backends mpi: choose from hvd_mpi, hvd_gloo, byteps, byteps_local"),
        ("--no_profile --profiles 2", "--profiles 2 and --no_profile exclude each other; leave one out"),
        ("--profiles 0", "--profiles"),
        ("--backends byteps byteps", "--backends: byteps is named twice"),
        ("--workers 2 2", "--workers: 2 is named twice"),
        ("--workers 0", "--workers"),
        ("--dtypes float16", "--dtypes float16: MXNet multiplies float16 matrices on GPUs only"),
        ("--batch_sizes -5", "--batch_sizes"),
        ("--data x", "--batch_sizes: needed with --data"),
        ("-- --dummy_data_len 8", "--batch_sizes: needed with --data and --dummy_data_len"),
        ("--steps 61", "--steps 61: must be a multiple of --log_interval 5"),
        ("--warmup_steps 7", "--warmup_steps 7: must be a multiple"),
        ("--steps 30", "--steps 30: after 20 steps of warm-up there must be 3 intervals of 5; give 35"),
        ("--confidence 1", "--confidence 1: must be at least 0.5 and below 1"),
        ("--emulate --confidence 1", "--confidence 1: must be at least 0.5 and below 1"),
        ("--merge a b --confidence 1", "--confidence 1: must be at least 0.5 and below 1"),
        ("--price_per_hour 0", "--price_per_hour"),
        ("--time_limit 0", "--time_limit"),
        ("--model bert", "--model bert: use bert_12_768_12"),
        ("--hostfile /no/such/file", "--hostfile /no/such/file"),
        ("--step 60", "unrecognized arguments: --step 60"),
        ("--comm_only --project", "--comm_only and --project exclude each other"),
        ("--comm_only -- --lr 1", "--lr after --: --comm_only runs no training script"),
        ("--project --dry_run", "--dry_run: is not for --project; leave it out"),
        ("--comm_only --dtypes float32", "--dtypes: is not for --comm_only"),
        ("--emulate --steps 80", "--steps: is not for --emulate"),
        ("--merge a b --price_per_hour 3", "--price_per_hour: is not for --merge"),
        ("--comm_only --sizes 4kB", "--sizes: 4kB: write it like"),
        ("--comm_only --workers 1", "--workers: --comm_only needs 2 or more"),
        ("--sizes 4KB", "--sizes: is an option of --comm_only"),
        ("--cluster p3dn", "--cluster: is an option of --project"),
        ("--comm_only --scale 10 10", "--scale: is an option of --emulate"),
        ("--batch_size 8", "--batch_size: is an option of --project; here it is --batch_sizes"),
    ],
)
def test_what_is_rejected(text, message):
    with pytest.raises(InputError) as raised:
        parse(text)
    assert message in str(raised.value) and "\n" not in str(raised.value)


def test_workers_must_have_slots(tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("a slots=2\nb slots=1\n")
    with pytest.raises(InputError, match="--workers 4: .*hosts has 3 slots"):
        parse(f"--hostfile {hosts} --workers 4")
    with pytest.raises(InputError, match="--backends byteps: 3 workers: BytePS needs as many ranks"):
        parse(f"--hostfile {hosts} --workers 3")
    with pytest.raises(InputError, match="--backends byteps: 3 workers: BytePS needs as many ranks"):
        parse(f"--comm_only --hostfile {hosts} --workers 3")
    assert parse(f"--hostfile {hosts} --workers 1 2").workers == (1, 2)


def test_one_line_and_exit_code_2(tmp_path):
    result = run_command([sys.executable, str(ROOT / "compare.py"), "--output", tmp_path, "--repeats", "0"])
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1 and "--repeats" in result.stderr and result.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_output_that_cannot_be_written_is_one_line(tmp_path, monkeypatch):
    def fail(error: OSError) -> None:
        monkeypatch.setattr(compare, "project", mock.Mock(side_effect=error))
        compare.main(["--project", "--output", str(tmp_path)])

    with pytest.raises(InputError, match=f"^--output {tmp_path}: {tmp_path}/x.md: No space left on device$"):
        fail(OSError(errno.ENOSPC, "No space left on device", f"{tmp_path}/x.md"))
    with pytest.raises(BrokenPipeError):
        fail(BrokenPipeError(errno.EPIPE, "Broken pipe"))


def test_gpus_are_counted_only_where_there_is_a_driver(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert count_gpus() == 0
    asked = []
    monkeypatch.setattr(subprocess, "run", lambda words, **_: asked.append(words) or answer)
    answer = subprocess.CompletedProcess([], 0, "a warning of MXNet's\nGPUs 4\n", "")
    assert count_gpus() == 0 and asked == []
    executable(tmp_path / "nvidia-smi", "#!/bin/sh\n")
    assert count_gpus() == 4 and asked[0][0] == sys.executable
    answer = subprocess.CompletedProcess([], 1, "", "no module mxnet")
    assert count_gpus() == 0
