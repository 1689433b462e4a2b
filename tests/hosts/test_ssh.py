"""Real ssh: OpenSSH's client and servers, on hosts that are network namespaces (tests/ssh_hosts.py)."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest

from tests.hosts.launcher import HVD
from tests.namespaces import INTERFACE, or_skip
from tests.processes import ROOT, executable, run_command, start_command, until, wait_for_file
from tests.ssh_hosts import ssh_hosts

HERE = Path(__file__).parent
PLACE = "import os; print(os.uname().nodename, os.environ['OMPI_COMM_WORLD_RANK'], os.getcwd())"


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    with or_skip(ssh_hosts(tmp_path_factory.mktemp("ssh"), 3), "ssh hosts") as made:
        yield made


@pytest.fixture(autouse=True)
def nothing_stays(request):
    """No process is left on any host after a test."""
    yield
    if "hosts" in request.fixturenames:
        request.getfixturevalue("hosts").wait_until_empty()


def launcher(hosts, *options, number=2, ssh=None):
    """Words that start a run on the first hosts, up to its own command."""
    lines = hosts.hostfile.read_text(encoding="ascii").splitlines()[:number]
    hostfile = hosts.folder / f"hostfile.{number}"
    hostfile.write_text("".join(f"{line}\n" for line in lines), encoding="ascii")
    words = ["--hostfile", hostfile, "--ssh", ssh or hosts.ssh, "--interface", INTERFACE, *options]
    return [*hosts.prefix, *HVD, *words]


def test_a_run_over_three_hosts(hosts):
    result = run_command([*launcher(hosts, number=3), "--", sys.executable, "-c", PLACE]).check()
    said = sorted(result.stdout.splitlines())
    names = ("alpha", "beta", "gamma")
    assert said == [f"[rank {rank}] {name} {rank} {ROOT}" for rank, name in enumerate(names)]


def test_the_printed_command(hosts, tmp_path):
    """The text of `hparams.py --launch hvd`, with another program for the ranks.

    Each rank writes a file: mpirun itself may join the words of two ranks to one line.
    """
    plan = [sys.executable, "hparams.py", "--launch", "hvd", "--hostfile", hosts.hostfile]
    plan += ["--tokens_per_gpu", "8192", "--sockets", "1", "--interface", INTERFACE]
    printed = run_command(plan).check().stdout
    name = f"os.path.join('{tmp_path}', os.environ['OMPI_COMM_WORLD_RANK'])"
    program = f"import os; print(os.uname().nodename, os.getcwd(), file=open({name}, 'w'))"
    command = re.sub(
        r"python run_pretraining_hvd\.py .*", f'{sys.executable} -c "{program}"', printed, flags=re.S
    )
    assert command != printed
    # Two CPUs of the machine that plays all hosts are not bound to three ranks.
    command = command.replace("-bind-to socket", "-bind-to none --oversubscribe")
    env = {"PATH": hosts.path, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    run_command([*hosts.prefix, "bash", "-c", command], env=env).check()
    said = {each.name: each.read_text(encoding="ascii") for each in tmp_path.iterdir()}
    assert said == {str(rank): f"{name} {ROOT}\n" for rank, name in enumerate(("alpha", "beta", "gamma"))}


def test_restarts_and_ctrl_c(hosts, tmp_path):
    """A rank on another host is killed and named, the run goes on; Ctrl-C reaches both hosts."""
    plan = json.dumps([[5, 1, "kill 9"], [8, 0, "wait"]])
    script = [sys.executable, HERE / "restarted.py", "--ckpt_dir", tmp_path / "ckpt", plan]
    with start_command([*launcher(hosts, "--backoff", "0.2"), "--", *script]) as run:
        wait_for_file(tmp_path / "ckpt" / "metrics.jsonl", text='"step": 7', run=run)
        run.signal(signal.SIGINT)
        result = run.wait()
    assert result.returncode == 130, result.describe()
    (line,) = (tmp_path / "ckpt" / "restarts.jsonl").read_text(encoding="utf-8").splitlines()
    record = json.loads(line)
    assert (record["how"], record["host"]) == ("rank 1 on 10.77.0.2 was killed by SIGKILL", "10.77.0.2")
    assert (tmp_path / "ckpt" / "0000008.json").exists()


def test_a_part_ends_when_its_connection_is_cut(hosts, tmp_path):
    """Its ssh server would not notice for hours: it sends nothing, and waits for nothing."""
    supervise = [sys.executable, "-I", "-S", ROOT / "hosts" / "supervise.py", "--token", "t", "--line", "1"]
    part = f"touch {tmp_path}/begun; exec sleep 600"
    text = " ".join(map(str, [*supervise, "--", "sh", "-c", f"'{part}'"]))
    line = ["sh", "-c", 'sleep 600 | exec "$0" "$@"']  # as the launcher keeps its end open
    command = [*hosts.prefix, *line, *hosts.ssh.split(), "10.77.0.2", text]
    with start_command(command) as run:
        wait_for_file(tmp_path / "begun", run=run)
        with silent(hosts):
            until(lambda: not any("sleep 600" in each for each in hosts.processes(1)), run)
            run.signal(signal.SIGKILL)


# --------------------------------------------------------------------- faults, before anything is started
#
# Each: the way to make it, on beta or in the client's configuration, and what the line must say.


@contextlib.contextmanager
def silent(hosts):
    hosts.cut(1)
    try:
        yield
    finally:
        hosts.mend(1)


@contextlib.contextmanager
def written(path, text):
    """A file with another content as long as the block lasts."""
    before = path.read_text(encoding="ascii")
    path.write_text(text, encoding="ascii")
    try:
        yield
    finally:
        path.write_text(before, encoding="ascii")


def other_python(hosts, tmp_path, text):
    """Another interpreter on beta, at the place of this one, of which PYTHON in `text` is a copy."""
    target = os.path.realpath(sys.executable)
    copy = shutil.copy(target, tmp_path / "python-copy")
    script = executable(tmp_path / "python", f"#!/bin/sh\n{text.replace('PYTHON', str(copy))}\n")
    return hosts.mounted(1, ["--bind", str(script), target], target)


def unknown(hosts, line=""):
    """known_hosts with another line about beta."""
    known = hosts.folder / "known_hosts"
    lines = [each for each in known.read_text(encoding="ascii").splitlines() if "10.77.0.2 " not in each]
    return written(known, "\n".join([*lines, line, ""]))


def of_alpha(hosts):
    return (hosts.folder / "host.alpha.pub").read_text(encoding="ascii").rsplit(" ", 1)[0]


FAULTS = {
    "refused key": (
        lambda hosts, _: written(hosts.folder / "authorized.beta", ""),
        "10.77.0.2 rejects this user's key; add it there: ssh-copy-id 10.77.0.2",
    ),
    "unknown host key": (
        lambda hosts, _: unknown(hosts),
        "10.77.0.2 has a host key that is not known here; compare and accept it once: ssh 10.77.0.2",
    ),
    "changed host key": (
        lambda hosts, _: unknown(hosts, f"10.77.0.2 {of_alpha(hosts)}"),
        "10.77.0.2 has another host key than known_hosts says",
    ),
    "missing folder": (
        lambda hosts, _: hosts.hide(1, ROOT.parent),
        f"10.77.0.2 has no folder {ROOT}; copy this one there, or mount it at the same path",
    ),
    "missing project": (
        lambda hosts, _: hosts.hide(1, ROOT / "hosts"),
        f"10.77.0.2 has no {ROOT / 'hosts' / 'answer.py'}; copy this project there, to the same path",
    ),
    "no interpreter": (
        lambda hosts, _: hosts.hide(1, Path(sys.executable).parent),
        f"10.77.0.2 has no {sys.executable}; run make setup there",
    ),
    "another interpreter": (
        lambda hosts, folder: other_python(hosts, folder, "exec PYTHON -S \"$@\""),
        "run make setup there",
    ),
    "no Open MPI": (
        lambda hosts, folder: hosts.mounted(1, ["--bind", "/dev/null", "/usr/bin/orted"], "/usr/bin/orted"),
        "10.77.0.2 has no orted on the PATH of its login shell; make setup there installs Open MPI",
    ),
    "a silent host": (
        lambda hosts, _: silent(hosts),
        "10.77.0.2 does not answer; look whether it is on",
    ),
    "no server": (
        lambda hosts, _: contextlib.nullcontext(),
        "10.77.0.2 has no ssh server at that port; start it there (systemctl start ssh), or name its port",
    ),
}  # fmt: skip
# Options of ssh for those after which the launcher ends with 1: the host may answer the next time.
PASSING = {"a silent host": "-o ConnectTimeout=5", "no server": "-p 2222"}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_one_line_and_nothing_is_started(hosts, tmp_path, name):
    make, said = FAULTS[name]
    begun = tmp_path / "begun"
    words = launcher(hosts, ssh=f"{hosts.ssh} {PASSING.get(name, '-o ConnectTimeout=300')}")
    with make(hosts, tmp_path):
        result = run_command([*words, "--", sys.executable, "-c", f"open({str(begun)!r}, 'w')"])
    assert result.returncode == (1 if name in PASSING else 2), result.describe()
    assert result.stderr.count("\n") == 1 and said in result.stderr, result.stderr
    assert not begun.exists()
