"""Debian packages, fetched and unpacked into a folder, without installing them and without root."""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
from typing import NamedTuple, Sequence

from base.errors import InputError


class Package(NamedTuple):
    """An unpacked package: `folder` is what would be / had it been installed."""

    name: str
    version: str
    folder: str


def fetch_package(name: str, folder: str) -> Package:
    """Download the release's version of a package with apt-get and unpack it into `folder`, a new one.

    A name that ends in "*" stands for the package that the one without it depends on: python3-doc* is
    python3.11-doc in Debian 12.

    Raises:
        InputError: no apt-get here, or it knows no such package or cannot get it.
    """
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise _missing(name, "this system has no apt-get")
    if name.endswith("*"):
        name = _depended_on(name[:-1])
    os.makedirs(folder)
    done = _run(["apt-get", "download", name], folder)
    archives = glob.glob(os.path.join(glob.escape(folder), "*.deb"))
    if done.returncode != 0 or len(archives) != 1:
        problems = [line for line in done.stderr.splitlines() if line.startswith("E: ")]
        raise _missing(
            name, problems[-1][3:] if problems else f"apt-get download ended with {done.returncode}"
        )
    unpacked = os.path.join(folder, "root")
    field = _run(["dpkg-deb", "--field", archives[0], "Version"], folder)
    done = _run(["dpkg-deb", "--extract", archives[0], unpacked], folder)
    for each in (field, done):
        if each.returncode != 0:
            raise _missing(name, f"dpkg-deb: {each.stderr.strip()}")
    os.unlink(archives[0])
    return Package(name, field.stdout.strip(), unpacked)


def _depended_on(name: str) -> str:
    done = _run(["apt-cache", "depends", name], os.curdir)
    found = re.search(r"^ +Depends: (\S+)$", done.stdout, re.MULTILINE)
    if found is None:
        raise _missing(name, "apt-cache names nothing that it depends on")
    return found[1]


def _run(command: Sequence[str], folder: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}  # messages and names of fields in English
    return subprocess.run(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )


def _missing(name: str, reason: str) -> InputError:
    return InputError(
        f"Debian package {name}: {reason}; run `apt-get update`, leave the package out of --packages, or use "
        "text of your own: make corpus TEXT='FILES'"
    )
