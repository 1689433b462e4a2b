"""Debian packages: what the project needs of the system, what is missing, and its installation."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from typing import Callable, NamedTuple, Sequence

from setup.cuda import loads
from setup.errors import SetupError
from setup.progress import Progress

# A user's PATH on Debian leaves out the directories where `ip` may live.
SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


class Need(NamedTuple):
    """Something of the system that the project uses: how to see it, and the Debian package that brings it."""

    what: str
    present: Callable[[], bool]
    package: str


def _tool(name: str) -> Callable[[], bool]:
    return lambda: shutil.which(name, path=SEARCH_PATH) is not None


def _library(name: str) -> Callable[[], bool]:
    return lambda: loads(name)


def _file(path: str) -> Callable[[], bool]:
    return lambda: os.path.exists(path)


def system_needs() -> list[Need]:
    """Packages that the machine must have, for this Python."""
    needs = [
        Need("the C++ compiler g++", _tool("g++"), "g++"),
        Need("make", _tool("make"), "make"),
        Need("Open MPI's mpirun", _tool("mpirun"), "openmpi-bin"),
        Need("Open MPI's compiler mpicxx", _tool("mpicxx"), "libopenmpi-dev"),
        Need("ssh, which mpirun starts other hosts with", _tool("ssh"), "openssh-client"),
        Need("ip, for the two-host test", _tool("ip"), "iproute2"),
        Need("the NUMA headers, for BytePS", _file("/usr/include/numa.h"), "libnuma-dev"),
        Need("libgomp, for MXNet", _library("libgomp.so.1"), "libgomp1"),
        Need("libquadmath, for MXNet", _library("libquadmath.so.0"), "libquadmath0"),
    ]
    python = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    header = Path(sysconfig.get_config_var("INCLUDEPY")) / "Python.h"
    if sys.base_prefix == "/usr":
        needs.append(Need("Python's headers", _file(str(header)), f"{python}-dev"))
        # Asked anew each time: set-up installs the package in between.
        needs.append(
            Need("Python's venv module", lambda: find_spec("ensurepip") is not None, f"{python}-venv")
        )
    elif not header.exists():
        raise SetupError(
            f"{sys.executable} has no headers ({header}); install the full Python, or name another."
        )
    return needs


def missing(needs: Sequence[Need]) -> list[str]:
    """Debian packages to install for the needs that are not present.

    Raises:
        SetupError: something is absent although its package is installed, or this is no Debian-like system.
    """
    absent = [need for need in needs if not need.present()]
    if not absent:
        return []
    listed = ", ".join(need.what for need in absent)
    if (
        shutil.which("dpkg-query", path=SEARCH_PATH) is None
        or shutil.which("apt-get", path=SEARCH_PATH) is None
    ):
        raise SetupError(f"missing: {listed}. Install them with this system's package manager.")
    for need in absent:
        if _installed(need.package):
            raise SetupError(f"{need.what} is not on PATH although the package {need.package} is installed.")
    return [need.package for need in absent]


def _installed(package: str) -> bool:
    query = subprocess.run(
        ["dpkg-query", "--show", "--showformat=${Status}", package],
        env={**os.environ, "PATH": SEARCH_PATH},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    return query.stdout == b"install ok installed"


def refuse_unless_root(packages: Sequence[str], user_id: int) -> None:
    """Raises SetupError with the command to type if packages are missing that this user may not install."""
    if packages and user_id != 0:
        command = f"sudo apt-get install -y --no-install-recommends {' '.join(packages)}"
        raise SetupError(f"Debian packages are missing; install them and run make again:\n  {command}")


def install(packages: Sequence[str], progress: Progress) -> None:
    """Installs the packages with apt-get; the caller is root.

    Raises:
        SetupError: apt-get failed.
    """
    env = {**os.environ, "PATH": SEARCH_PATH, "DEBIAN_FRONTEND": "noninteractive"}
    apt = ["apt-get", "-q", "-o", "DPkg::Lock::Timeout=300"]
    # Completes what an interrupted installation left half configured.
    progress.run(["dpkg", "--configure", "-a"], "completing earlier installations", env)
    # Without Error-Mode=any apt-get calls it a success when no server answered.
    progress.run([*apt, "-o", "APT::Update::Error-Mode=any", "update"], "reading the package lists", env)
    progress.run([*apt, "install", "-y", "--no-install-recommends", *packages], "installing packages", env)
