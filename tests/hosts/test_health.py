"""The health check of containers, with real processes, and the Dockerfile's promises."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hosts.health import problems
from setup.packages import system_needs
from tests.processes import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8")


def test_a_stopped_rank_is_named():
    environment = {**os.environ, "OMPI_COMM_WORLD_RANK": "0"}
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env=environment) as process:
        try:
            os.kill(process.pid, signal.SIGSTOP)
            os.waitpid(process.pid, os.WUNTRACED)
            (line,) = (each for each in problems(Path("/proc")) if f"process {process.pid} " in each)
            assert "has been stopped by a signal" in line
            os.kill(process.pid, signal.SIGCONT)
            assert not [each for each in problems(Path("/proc")) if f"process {process.pid} " in each]
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("port", "said"), [("1", "the ssh server at port 1: Connection refused"), ("x", "2222")]
)
def test_an_ssh_server_that_does_not_answer_is_named(tmp_path, port, said):
    entry = tmp_path / "17"
    entry.mkdir()
    command = ["python", "-m", "hosts.pod", "hvd", "worker", "--port", port]
    (entry / "cmdline").write_text("\0".join(command))
    (entry / "stat").write_text("17 (python) S 1")
    (entry / "environ").write_text("A=b")
    assert any(said in line for line in problems(tmp_path))


def test_a_container_without_a_run_is_healthy(tmp_path):
    assert problems(tmp_path) == []


def test_the_image_has_what_the_set_up_needs():
    """Every Debian package of the set-up is in the first layer, where apt-get runs as root."""
    install = DOCKERFILE.split("USER bert")[0]
    for need in system_needs():
        package = re.sub(r"^python3\.\d+", "python3", need.package)
        assert re.search(rf"\s{re.escape(package)}\s", install), package
    assert "openssh-server" in install
    assert "USER root" not in DOCKERFILE and "HEALTHCHECK" in DOCKERFILE


def test_a_change_of_code_leaves_the_set_ups_layer():
    """Files that are copied before `make setup` are those that it reads; all else comes behind it."""
    before = DOCKERFILE.split("make setup CUDA")[0]
    copied = [
        word for line in re.findall(r"^COPY --chown=\S+ (.*) \S+$", before, re.M) for word in line.split()
    ]
    assert set(copied) - {"setup", "native"} == {
        *("Makefile", "requirements.txt", "requirements-build.txt", "requirements-cuda.txt"),
        *("base/__init__.py", "base/errors.py", "base/machine.py", "base/processes.py"),
        *("bert/__init__.py", "bert/configuration.py", "bert/operators.py"),
    }
    for path in copied:
        assert (ROOT / path).exists(), path
    # Modules that these import, and no others of this project.
    pattern = re.compile(r"^\s*(?:from|import) ((?:base|bert|data|comm|hosts|training)\b[\w.]*)", re.M)
    sources = [*(ROOT / "setup").glob("*.py"), *(ROOT / each for each in copied if each.endswith(".py"))]
    needed = {name for source in sources for name in pattern.findall(source.read_text("utf-8"))}
    assert {f"{name.replace('.', '/')}.py" for name in needed} <= set(copied)
