"""Open MPI host files, read by hosts/hostfile.py, and the limits of what they list."""

from __future__ import annotations

import os
import sys

import pytest

from base.errors import InputError
from hosts import hostfile
from hosts.hostfile import check_limits, read_host_lines, read_hostfile
from tests.processes import ROOT, run_command


def test_host_file_forms(tmp_path):
    path = tmp_path / "hosts"
    path.write_text(
        "# the cluster\n\nnode-1 slots=8  # rack 1\n10.0.0.2   slots = 4 max-slots=8\n"
        "user@node-3.example max_slots=4 slots=2\nnode-1 slots=2\n"
    )
    assert read_hostfile(str(path)) == [("node-1", 10), ("10.0.0.2", 4), ("user@node-3.example", 2)]
    lines = [("node-1", 8), ("10.0.0.2", 4), ("user@node-3.example", 2), ("node-1", 2)]
    assert read_host_lines(str(path)) == lines


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("a slots=8\nb\n", 2, "slots"),
        ("a slots=0\n", 1, "slots=0"),
        ("a slots=-1\n", 1, "slots=-1"),
        ("a slots=many\n", 1, "slots=many"),
        ("# c\n\na 8\n", 3, "'8'"),
        ("^a slots=8\n", 1, "'^a'"),
        ("a slots=8 b slots=8\n", 1, "'b'"),
    ],
)
def test_host_file_errors_name_file_and_line(text, line, said, tmp_path):
    path = tmp_path / "hosts"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_hostfile(str(path))
    assert f"{path}, line {line}:" in str(error.value) and said in str(error.value)


@pytest.mark.parametrize("content", [b"", b"# nobody\n", b"\xff\xfe\x00", None])
def test_host_files_without_hosts(content, tmp_path):
    path = tmp_path / "hosts"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match="--hostfile .*hosts: "):
        read_hostfile(str(path))


@pytest.mark.parametrize(
    ("text", "times", "line", "said"),
    [
        ("a slots=999999\n", 1, 1, "slots=999999: at most 1,024"),
        ("a slots=1\n", 100_000, 4097, "more than 4,096 hosts"),
        ("a slots=1024\n", 65, 65, "66,560 ranks, at most 65,536"),
        ("# spare: b{} slots=1\n", 100_000, 4098, "more than 4,096 hosts"),
    ],
)
def test_more_than_any_cluster_has_is_said_at_once(text, times, line, said, tmp_path):
    path = tmp_path / "hosts"
    first = "a slots=1\n" if text.startswith("#") else ""
    path.write_text(first + "".join(text.format(number) for number in range(times)))
    command = {"launch": ["--backend", "hvd", "--hostfile", path, "--", sys.executable], "check": [path]}
    for script in ("launch", "check") if text == "a slots=1\n" else ("launch",):
        before = sum(os.times()[2:4])
        result = run_command([sys.executable, ROOT / "hosts" / f"{script}.py", *command[script]])
        assert result.returncode == 2 and sum(os.times()[2:4]) - before < 1
        (shown,) = result.stderr.splitlines()
        assert f"{path}, line {line}: " in shown and said in shown


@pytest.mark.parametrize(
    ("backend", "slots", "said"),
    [
        ("byteps", 41, "41 ranks, 41 of them here, need 205 open files, and 200 are allowed"),
        ("byteps", 40, None),
        ("hvd", 67, "67 ranks, 67 of them here, need 201 open files, and 200 are allowed"),
        ("hvd", 66, None),
    ],
)
def test_ranks_are_compared_with_the_machines_limits(backend, slots, said, tmp_path):
    path = tmp_path / "hosts"
    path.write_text(f"127.0.0.1 slots={slots}\n")
    if said is None:  # as many as may be are not started here
        text = "from hosts.hostfile import check_limits\n"
        words = ["-c", f"{text}check_limits([('127.0.0.1', {slots})], {backend!r}, 'F')"]
    else:
        words = ["hosts/launch.py", "--backend", backend, "--hostfile", path, "--", sys.executable, "-c", ""]
    result = run_command(["bash", "-c", 'ulimit -n 200; exec "$@"', "bash", sys.executable, *words])
    shown = result.stderr.splitlines()
    assert (result.returncode, len(shown)) == ((2, 1) if said else (0, 0)), result.describe()
    assert not said or said in shown[0]


def test_processes_are_counted_too(tmp_path, monkeypatch):
    (tmp_path / "sys/kernel").mkdir(parents=True)
    (tmp_path / "sys/kernel/pid_max").write_text("300\n")
    monkeypatch.setattr(hostfile, "PROC", tmp_path)
    check_limits([("localhost", 150)], "byteps", "F")
    check_limits([("localhost", 300), ("other", 900)], "hvd", "F")
    for backend, hosts, shown in (
        ("byteps", [("localhost", 151)], "151 ranks, 151 of them here, are 302 processes"),
        ("byteps", [("localhost", 1), ("other", 299)], "300 ranks, 1 of them here, are 301 processes"),
        ("hvd", [("localhost", 301)], "301 ranks, 301 of them here, are 301 processes"),
    ):
        with pytest.raises(InputError, match=f"{shown} of this machine, which allows 300 .kernel.pid_max"):
            check_limits(hosts, backend, "F")
