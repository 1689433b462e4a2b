"""One wheel from its source archive, in an environment of its own.

What is built must not see what is merely installed: headers of another oneDNN in ``.venv/include``, say,
hide MXNet's own. So each wheel is built in a virtual environment that is made for it and holds exactly what
the build names, with those variables of the user's environment that a build may need and no others.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Callable, Mapping, NamedTuple, Sequence

from setup.errors import SetupError
from setup.progress import Progress

JOB_MEMORY = 1.5 * 2**30  # bytes that one compiler process of Horovod may want
SIDE_BY_SIDE = 2  # builds that compile at the same time for most of it: Horovod's and BytePS's

# What a build may know of its surroundings. Who is at work and how the index is reached changes nothing ...
HARMLESS = re.compile(
    r"HOME|USER|LOGNAME|LANG|LC_\w+|TZ|PIP_\w+|(?:https?|no|all)_proxy|SSL_CERT_\w+|\w+_CA_BUNDLE", re.I
)
# ... where compilers, CUDA and NCCL are does, so it is part of the digest. CPATH, CFLAGS, LIBRARY_PATH,
# PYTHONPATH and the like are no part of either.
DECISIVE = re.compile(r"CC|CXX|LD_LIBRARY_PATH|(?:HOROVOD|BYTEPS|NCCL|CUDA)_\w+")
# Asking for another kind of Horovod than the set-up builds.
REJECTED = ("HOROVOD_GPU_OPERATIONS", "HOROVOD_CMAKE", "HOROVOD_WITH_PYTORCH", "HOROVOD_WITH_TENSORFLOW")
SYSTEM_HEADERS = ("numa.h", "rdma/rdma_cma.h", "infiniband/verbs.h")  # that change what BytePS is


class Source(NamedTuple):
    """A package to build, how long that takes, and what its build names.

    ``needs`` are the packages of its build environment. ``inputs`` names what else its wheel depends on.
    ``arrange`` makes in an empty folder what the build needs besides the archive, and gives further
    environment variables. ``change``, if any, gets that folder and the unpacked archive before the build.
    """

    name: str
    version: str
    duration: str
    needs: Sequence[str]
    env: Mapping[str, str]
    inputs: Callable[[], Sequence[Path]] = tuple
    arrange: Callable[[Path, Progress], Mapping[str, str]] = lambda scratch, progress: {}
    change: Callable[[Path, Path], None] | None = None


class Tools(NamedTuple):
    """Means of the builds: the base interpreter, the downloaded wheels, and their pins."""

    python: str
    downloads: Path
    pins: Sequence[str]


def digest(source: Source, pins: Sequence[str]) -> str:
    """A name for all that the wheel of ``source`` depends on besides the machine's key.

    Raises:
        SetupError: the compiler does not answer.
    """
    known = hashlib.sha256(repr([sys.version, sys.base_prefix, source[:5], sorted(pins)]).encode())
    decisive = sorted((name, value) for name, value in _surroundings().items() if DECISIVE.fullmatch(name))
    known.update(
        repr([decisive, [os.path.exists(f"/usr/include/{name}") for name in SYSTEM_HEADERS]]).encode()
    )
    compiler = os.environ.get("CXX", "g++").split() or ["g++"]
    for options in (["--version"], ["-march=native", "-Q", "--help=target"]):
        try:
            answer = subprocess.run([*compiler, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        except OSError as error:
            raise SetupError(f"the C++ compiler {compiler[0]} does not run: {error.strerror}") from error
        if answer.returncode != 0:
            raise SetupError(f"{' '.join([*compiler, *options])} fails; put a working g++ first on PATH.")
        known.update(answer.stdout)
    for file in [Path(__file__), *source.inputs()]:
        known.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return known.hexdigest()[:16]


def build(source: Source, tools: Tools, scratch: Path, progress: Progress) -> None:
    """Builds the wheel of ``source`` into ``scratch / "out"``; all else that it makes is in ``scratch`` too.

    Raises:
        SetupError: the build failed.
    """
    venv = scratch / "environment"
    what = f"building {source.name}"
    progress.run([tools.python, "-m", "venv", str(venv)], f"making the environment for {what}")
    python = str(venv / "bin" / "python")
    quiet = ["--disable-pip-version-check", "--no-compile"]
    if source.needs:
        constraints = scratch / "constraints.txt"
        constraints.write_text("\n".join(tools.pins) + "\n")
        options = ["--no-index", "--find-links", str(tools.downloads), "-c", str(constraints), *quiet]
        progress.run(
            [python, "-m", "pip", "install", *options, *source.needs], f"installing what {what} needs"
        )
    (scratch / "tmp").mkdir()
    # Neither pip's own cache nor a folder of wheels may answer: they know nothing of Open MPI.
    options = ["--no-build-isolation", "--no-deps", "--no-cache-dir", "--no-binary", source.name]
    env = {**variables(source, venv, scratch / "tmp"), **source.arrange(scratch, progress)}
    target = f"{source.name}=={source.version}"
    if source.change is not None:
        fetched = scratch / "archive"
        command = [python, "-m", "pip", "download", "-v", "--disable-pip-version-check", *options]
        progress.run([*command, "--dest", str(fetched), target], f"fetching {source.name}", env=env)
        target = str(unpack(fetched, scratch / "sources"))
        source.change(scratch, Path(target))
    progress.run(
        [python, "-m", "pip", "wheel", "-v", "--disable-pip-version-check", *options]
        + ["--wheel-dir", str(scratch / "out"), target],
        f"{what} ({source.duration})",
        env=env,
    )


def replace(archive: Path, name: str, old: str, new: str) -> None:
    """Replaces the only place of ``old`` in the file ``name`` of an unpacked archive.

    Raises:
        SetupError: the archive is not the one that this was written for.
    """
    text = (archive / name).read_text()
    if text.count(old) != 1:
        raise SetupError(f"{archive.name} has no {old.strip()} in {name}: it is another release, or changed.")
    (archive / name).write_text(text.replace(old, new))


def unpack(fetched: Path, folder: Path) -> Path:
    """Unpacks the one archive in ``fetched`` and returns its top folder below ``folder``.

    Raises:
        SetupError: there is not exactly one of either, or an entry would lie elsewhere.
    """
    archives = sorted(fetched.glob("*.tar.gz"))
    if len(archives) != 1:
        raise SetupError(f"{fetched} has {len(archives)} source archives instead of one.")
    folder.mkdir()
    with tarfile.open(archives[0]) as archive:
        for entry in archive.getmembers():
            if entry.name.startswith("/") or ".." in Path(entry.name).parts:
                raise SetupError(f"{archives[0].name} has the entry {entry.name}; fetch it anew.")
        archive.extractall(folder)
    tops = sorted(folder.iterdir())
    if len(tops) != 1:
        raise SetupError(f"{archives[0].name} has {len(tops)} top folders instead of one.")
    return tops[0]


def variables(source: Source, venv: Path, temporary: Path) -> dict[str, str]:
    """The whole environment of a build in ``venv``, with the tools of that environment first on PATH."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    jobs = max(1, min(len(os.sched_getaffinity(0)), int(memory / JOB_MEMORY / SIDE_BY_SIDE)))
    path = os.pathsep.join([str(venv / "bin"), *_system_path()])
    return {**_surroundings(), "PATH": path, "MAKEFLAGS": f"-j{jobs}", "TMPDIR": str(temporary), **source.env}


def _surroundings() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if name not in REJECTED and (HARMLESS.fullmatch(name) or DECISIVE.fullmatch(name))
    }


def _system_path() -> list[str]:
    """PATH without the folders of virtual environments: CMake looks for headers and libraries beside them."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return [folder for folder in folders if not (Path(folder).parent / "pyvenv.cfg").exists()]
