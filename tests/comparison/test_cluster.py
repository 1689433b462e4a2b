"""compare.py --hostfile over two hosts with real ssh servers, namespaces of this machine (as root)."""

from __future__ import annotations

import json
import signal
import sys

import pytest

from tests.namespaces import or_skip
from tests.processes import ROOT, run_command, start_command, until
from tests.ssh_hosts import ssh_hosts

WORDS = ["--workers", 2, "--dtypes", "float32", "--batch_sizes", 4, "--repeats", 1, "--no_profile"]
WORDS += ["--model", "bert_1_32_2", "--steps", 8, "--warmup_steps", 2, "--log_interval", 2]
SCRIPT = ["--dummy_data_len", 16, "--peak_tflops", 1, "--lr", 0.02, "--warmup_ratio", 0.1]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    with or_skip(ssh_hosts(tmp_path_factory.mktemp("ssh"), 2), "ssh hosts") as made:
        yield made


@pytest.mark.slow
def test_a_comparison_over_two_hosts_is_interrupted_and_continued(hosts, tmp_path):
    """Each host has a rank, of every backend, and of what was interrupted nothing runs on any."""
    output = tmp_path / "out"
    own = ["--hostfile", hosts.hostfile, "--output", output, "--backends", "hvd_mpi", "byteps", "hvd_gloo"]
    command = [*hosts.prefix, sys.executable, ROOT / "compare.py", *own, *WORDS]
    command, env = [str(word) for word in command], {"PATH": hosts.path}
    script = ["--", *map(str, SCRIPT)]
    dry = run_command([*command, "--dry_run", *script], env=env).check().stdout
    assert "hosts and slots: 10.77.0.1:1 10.77.0.2:1\n3 launches for 3 settings" in dry

    with start_command([*command, *script], env=env) as run:
        until(lambda: list(output.glob("launches/*/*/record.json")), run)
        until(lambda: "--ckpt_dir" in " ".join(hosts.processes(1)), run)  # a rank of the next launch
        run.signal(signal.SIGINT)
        assert run.wait().returncode == 130
    hosts.wait_until_empty()
    partial = json.loads((output / "report.json").read_text("utf-8"))
    assert partial["outcome"]["code"] == 130 and len(partial["launches"]) == 1

    run_command([*command, *script], env=env).check()
    hosts.wait_until_empty()
    report = json.loads((output / "report.json").read_text("utf-8"))
    assert report["outcome"]["code"] == 0 and report["outcome"]["complete"]
    assert [each["kind"] for each in report["results"]] == ["ok"] * 3
    assert all(each["confirmed"] for each in report["results"])  # the same bits over all three
    kept = [each for each in report["launches"] if each["begun"] == partial["launches"][0]["begun"]]
    assert kept == partial["launches"]
    for backend in ("hvd_mpi", "byteps"):
        lines = (output / f"launches/{backend}-2x-float32-4/1/hostfile").read_text("ascii")
        assert lines == "10.77.0.1 slots=1\n10.77.0.2 slots=1\n"
