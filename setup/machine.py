"""Checks of the machine before any work. They change nothing and each has one message."""

from __future__ import annotations

import os
import platform
import re
import socket
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Sequence

from setup.errors import SetupError

PROBE_PACKAGE = "graphviz==0.8.4"  # the smallest of the pinned packages that every installation needs


def check_platform() -> None:
    """MXNet 1.9.1 has wheels for CPython on x86-64 Linux with glibc only.

    Raises:
        SetupError: this is another platform.
    """
    here = f"{platform.python_implementation()} on {platform.system()} {platform.machine()}"
    if here != "CPython on Linux x86_64" or sys.maxsize < 2**32 or platform.libc_ver()[0] != "glibc":
        libc = platform.libc_ver()[0] or "another C library"
        raise SetupError(f"MXNet 1.9.1 needs CPython on x86-64 Linux with glibc; this is {here}, {libc}.")


def check_own_name() -> None:
    """Looks up this machine's name, as Gloo does, which crashes where there is no answer.

    Raises:
        SetupError: the name has no address.
    """
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError as error:
        raise SetupError(
            f"this machine's name {name} has no address ({error.strerror}), which Horovod's Gloo needs; "
            f'add the line "127.0.1.1 {name}" to /etc/hosts or install libnss-myhostname.'
        ) from error


def check_compiler() -> None:
    """Compiles three lines of C++.

    Raises:
        SetupError: the compiler is absent or does not work.
    """
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "probe.cc"
        source.write_text("#include <memory>\nint main() { return !std::make_unique<int>(1); }\n")
        command = ["g++", "-std=c++14", str(source), "-o", str(source.with_suffix(""))]
        try:
            result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        except OSError as error:
            raise SetupError(f"the C++ compiler g++ does not run: {error.strerror}") from error
    if result.returncode != 0:
        lines = result.stdout.decode(errors="replace").strip().splitlines()
        raise SetupError(f"the C++ compiler g++ does not work: {lines[0] if lines else 'no message'}")


def open_mpi_version() -> str:
    """Version of the Open MPI behind mpicxx, such as "4.1.4".

    Raises:
        SetupError: mpicxx belongs to another MPI.
    """
    result = subprocess.run(["mpicxx", "--showme:version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    version = re.search(r"Open MPI (\S+)", result.stdout.decode(errors="replace"))
    if version is None:
        raise SetupError("mpicxx on PATH is not Open MPI's; put Open MPI's first on PATH.")
    return version.group(1)


def pip_command() -> list[str] | None:
    """Command for pip with this Python before there is an environment; None where Debian has split it off."""
    if find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    ensurepip = find_spec("ensurepip")
    if ensurepip is None or ensurepip.origin is None:
        return None
    bundled = [Path(ensurepip.origin).parent / "_bundled", Path("/usr/share/python-wheels")]
    wheels = sorted(wheel for folder in bundled for wheel in folder.glob("pip-*.whl"))
    return [sys.executable, f"{wheels[-1]}/pip"] if wheels else None


def check_index(pip: Sequence[str]) -> None:
    """Asks pip for one small package, the way the installation itself will ask.

    Raises:
        SetupError: pip cannot get it.
    """
    # A user's own setting of pip's patience stands; its defaults are too patient for a question.
    patience = [] if "PIP_DEFAULT_TIMEOUT" in os.environ else ["--timeout", "20"]
    patience += [] if "PIP_RETRIES" in os.environ else ["--retries", "1"]
    with tempfile.TemporaryDirectory() as scratch:
        options = ["--no-deps", "--no-cache-dir", "--disable-pip-version-check", "--dest", scratch]
        result = subprocess.run(
            [*pip, "download", *options, *patience, PROBE_PACKAGE],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    if result.returncode != 0:
        lines = result.stdout.decode(errors="replace").strip().splitlines()
        errors = [line for line in lines if line.startswith("ERROR:")] or lines or ["ERROR: no message"]
        raise SetupError(
            f"pip cannot reach the package index (it says: {errors[0][7:]}); "
            "check the network, the proxy settings and PIP_INDEX_URL."
        )
