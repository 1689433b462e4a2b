"""hosts/check.py: its table and verdict on hosts with real ssh (tests/ssh_hosts.py), rules without any."""

from __future__ import annotations

import itertools
import json
import os
import sys

import pytest

from hosts.check import Report, _slow, _unlike, main, rounds, table
from hosts.launching.parts import DEFAULT_PORT
from hosts.reach import Question
from tests.hosts.launcher import rejected
from tests.hosts.test_ssh import hosts as hosts  # noqa: PLC0414 (the fixture)
from tests.processes import ROOT, executable, run_command

CHECK = ROOT / "hosts" / "check.py"
QUESTION = Question(("ssh",), "/place", "python", "/bin", ())
LIKE = {
    "python": "3.11.2",
    "versions": {"mxnet": "1.9.1"},
    "programs": {"orted": "/usr/bin/orted"},
    "interfaces": ["lo", "eth0"],
    "mpirun": "mpirun (Open MPI) 4.1.4",
    "commit": "abc",
    "code": "0123456789abcdef",
    "data": {"*.txt": {"files": 2, "bytes": 10, "digest": "aa"}},
    "cores": 8,
    "gpus": 0,
    "memory": 1 << 33,
    "clock": 0.0,
}


def check(hosts, *options, prefix=None):
    words = hosts.prefix if prefix is None else prefix
    return run_command([*words, sys.executable, CHECK, hosts.hostfile, "--ssh", hosts.ssh, *options])


def test_hosts_in_order(hosts):
    options = ["--data", "bert/*.py", "--send", "0.1", "--at_least", "0.001", "--memory", "0.01", "--json"]
    report = json.loads(check(hosts, *options).check().stdout)
    assert list(report["hosts"]) == ["10.77.0.1", "10.77.0.2", "10.77.0.3"] and report["mend"] == []
    names = [each["host"] for each in report["hosts"].values()]
    assert names == ["alpha", "beta", "gamma"]  # each has been asked itself
    links = {(each["from"], each["to"]) for each in report["links"]}
    assert links == set(itertools.permutations(report["hosts"], 2))
    assert all(each["gbit_per_s"] > 0.001 for each in report["links"])


def test_hosts_with_faults(hosts, tmp_path):
    """Beta has other data, another process at the scheduler's port is on alpha, gamma rejects the key."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("one\n")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a.txt").write_text("two\n")  # as long
    authorized = hosts.folder / "authorized.gamma"
    before = authorized.read_text()
    authorized.write_text("")
    code = f"import socket, subprocess, sys; kept = socket.create_server(('', {DEFAULT_PORT}))\n"
    code += "sys.exit(subprocess.call(sys.argv[1:]))"
    options = ["--data", f"{tmp_path}/data/*.txt", "--send", "0", "--memory", "0.01"]
    try:
        with hosts.mounted(1, ["--bind", tmp_path / "other", tmp_path / "data"], tmp_path / "data"):
            result = check(hosts, *options, prefix=[*hosts.prefix, sys.executable, "-c", code])
    finally:
        authorized.write_text(before)
    assert result.returncode == 1, result.describe()
    mend = [line for line in result.stdout.splitlines() if line.startswith("mend: ")]
    assert [line.split()[1] for line in mend] == ["10.77.0.1", "10.77.0.2", "10.77.0.3"], result.stdout
    assert f"has no free port {DEFAULT_PORT} for BytePS's scheduler" in mend[0]
    assert f"has other data for {tmp_path}/data/*.txt: 1 files, 4 bytes" in mend[1]
    assert "rejects this user's key; add it there: ssh-copy-id 10.77.0.3" in mend[2]
    assert result.stdout.splitlines()[3].split() == ["10.77.0.3", "1", "not", "reached"]


def test_another_mpi_is_rejected_with_a_cure_of_this_command(tmp_path, monkeypatch, capsys):
    executable(tmp_path / "mpirun", "#!/bin/sh\necho HYDRA\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    line = rejected(main, capsys, ROOT / "hosts" / "local")
    assert "put Open MPI's first on PATH, or name it to hosts/launch.py: --mpirun" in line


@pytest.mark.parametrize("number", [1, 2, 5, 8])
def test_rounds_have_each_pair_once(number):
    names = [f"host{each}" for each in range(number)]
    played = list(rounds(names))
    for turn in played:
        assert len({name for pair in turn for name in pair}) == 2 * len(turn)
    pairs = [frozenset(pair) for turn in played for pair in turn]
    assert len(pairs) == len(set(pairs))
    assert set(pairs) == set(map(frozenset, itertools.combinations(names, 2)))
    assert len(played) == (number - 1 if number % 2 == 0 else number if number > 1 else 1)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"python": "3.10.1"}, "b has Python 3.10.1 as python, a 3.11.2"),
        ({"versions": {"mxnet": None}}, "b has no mxnet under python, a 1.9.1; run make setup there"),
        ({"programs": {"orted": None}}, "b has no orted"),
        ({"mpirun": ""}, "b has no mpirun, a mpirun (Open MPI) 4.1.4"),
        ({"code": "f", "commit": ""}, "b has other source files (commit unknown, a abc)"),
    ],
)
def test_differences(changed, said):
    found = list(_unlike({"a": LIKE, "down": None, "b": {**LIKE, **changed}}, QUESTION))
    assert len(found) == 1 and " ".join(found[0]).startswith(said)
    assert not list(_unlike({"a": LIKE, "b": {**LIKE, "python": "3.11.9"}}, QUESTION))


def test_slow_links():
    links = {("a", "b"): 10.0, ("b", "a"): 9.0, ("a", "c"): 11.0, ("c", "a"): 4.0}
    (found,) = _slow(links, None)
    assert found[0] == "a" and "gets 4 Gbit/s from c, the median link has 10" in found[1]
    assert len(list(_slow(links, 9.5))) == 2 and not list(_slow(links, 0.0))


def test_table():
    report = Report({"a": LIKE, "user@b": None}, {("a", "c"): 3.0}, [])
    lines = table(report, {"a": 8, "user@b": 4}).splitlines()
    assert lines[1].split()[:5] == ["a", "8", "3.11.2", "1.9.1", "abc"]
    assert lines[1].endswith("3 Gbit/s a > c")
    assert lines[2].split() == ["b", "4", "not", "reached"]
