"""The wheel cache outside the clone: the pinned packages as downloaded, the others as built here.

The cache is ``WHEEL_CACHE``, else ``bert-pretraining-mxnet/wheels`` in ``XDG_CACHE_HOME`` or ``~/.cache``,
with one folder per kind of machine and in it one per wheel, named by everything that can change what is
built (``building.digest``). A wheel (and a download) appears under its own name only when complete, and a
lock on its folder keeps set-ups of several clones apart. All of it may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import re
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Callable, Iterator, Mapping, Sequence

from setup import building, mxnet_wheel
from setup.building import Source
from setup.errors import SetupError
from setup.progress import Progress
from setup.wanted import Wanted, mxnet_requirement

VECTOR_FLAGS = ("avx", "f16c", "fma")  # those that Horovod's CMake files turn on where the processor has them


def cache_root(env: Mapping[str, str]) -> Path:
    """Directory of the wheels.

    Raises:
        SetupError: it cannot be written.
    """
    if env.get("WHEEL_CACHE"):
        root = Path(env["WHEEL_CACHE"]).absolute()
    else:
        base = env.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        root = Path(base) / "bert-pretraining-mxnet" / "wheels"
    existing = next(folder for folder in [root, *root.parents] if folder.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise SetupError(f"the wheel cache {root} cannot be written; name another folder with WHEEL_CACHE=.")
    return root


def machine_key(cuda: str, open_mpi: str) -> str:
    """Name of the cache folder for one kind of machine, for people as much as for the set-up."""
    with open("/proc/cpuinfo") as info:
        cpu = set(re.findall(r"\w+", next((line for line in info if line.startswith("flags")), "")))
    parts = [
        f"cp{sys.version_info[0]}{sys.version_info[1]}",
        mxnet_requirement(cuda).replace("==", "-"),
        f"openmpi-{open_mpi}",
        f"glibc-{platform.libc_ver()[1]}",
        *[flag for flag in VECTOR_FLAGS if flag in cpu],
    ]
    return "_".join(parts)


def place(folder: Path, source: Source, pins: Sequence[str]) -> Path:
    """The folder below the machine's ``folder`` for the wheel of ``source``, built with tools of these pins.

    Raises:
        SetupError: the compiler does not answer.
    """
    return folder / f"{source.name}-{source.version}-{building.digest(source, pins)}"


def complete(place: Path, source: Source) -> Path | None:
    """The wheel of ``source`` in its ``place``, if there is one; a damaged file is none."""
    wheels = sorted(place.glob(f"{source.name}-{source.version}-*.whl"))
    return next((wheel for wheel in wheels if zipfile.is_zipfile(wheel)), None)


def all_cached(folder: Path, wanted: Wanted) -> bool:
    """Returns whether the cache has everything, so that no package index is needed."""
    built = [complete(place(folder, source, wanted.pins), source) for source in wanted.sources]
    return None not in built and pinned(folder, wanted).exists()


@contextlib.contextmanager
def locked(folder: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Holds the only lock on ``folder``; calls ``waiting`` once if another process has it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _workplace(folder: Path, progress: Progress) -> Iterator[Path]:
    """Holds the lock on ``folder`` and gives an empty folder in it, removed afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder, lambda: progress.note("another set-up is at work in the wheel cache; waiting ...")):
        # Left by an interrupted build. If that build still runs, losing its files ends it.
        for left in folder.glob("unfinished-*"):
            shutil.rmtree(left, ignore_errors=True)
        scratch = Path(tempfile.mkdtemp(prefix="unfinished-", dir=folder))
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def pinned(folder: Path, wanted: Wanted) -> Path:
    """Directory of the downloaded packages; the path exists only when all of them are there."""
    pins = "\n".join([*wanted.requirements, "", *wanted.build_tools])
    changes = Path(mxnet_wheel.__file__).read_bytes()
    return folder / f"pinned-{hashlib.sha256(pins.encode() + changes).hexdigest()[:16]}"


def download(folder: Path, wanted: Wanted, python: Path, progress: Progress) -> Path:
    """Returns a folder with the wheels of the requirements and the build tools, downloading them if needed.

    Raises:
        SetupError: pip failed, or MXNet's wheel is not the one that is known.
    """
    target = pinned(folder, wanted)
    with _workplace(folder, progress) as scratch:
        if target.exists():
            progress.note(f"in the cache: {target}")
            return target
        # The pins are complete, and what MXNet's own wheel demands is not what the changed one does.
        options = ["--no-deps", "--only-binary", ":all:", "--dest", str(scratch / "out")]
        command = [str(python), "-m", "pip", "download", "--disable-pip-version-check", *options]
        progress.run([*command, *wanted.pins], "downloading")
        mxnet_wheel.change(scratch / "out")
        os.sync()
        os.replace(scratch / "out", target)
    return target


def build(folder: Path, source: Source, tools: building.Tools, progress: Progress) -> Path:
    """Returns the wheel of ``source`` from the machine's ``folder``, building it there first if needed.

    Raises:
        SetupError: the build failed.
    """
    home = place(folder, source, tools.pins)
    with _workplace(home, progress) as scratch:
        wheel = complete(home, source)
        if wheel is not None:
            progress.note(f"in the cache: {wheel}")
            return wheel
        building.build(source, tools, scratch, progress)
        made = complete(scratch / "out", source)
        if made is None:
            raise SetupError(f"building {source.name} left no wheel of version {source.version}.")
        with open(made, "rb") as content:
            os.fsync(content.fileno())
        wheel = home / made.name
        os.replace(made, wheel)
    progress.note(f"kept as {wheel}")
    return wheel
