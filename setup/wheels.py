"""The wheel cache outside the clone: the pinned packages as downloaded, the others as built here.

The cache is ``WHEEL_CACHE``, else ``bert-pretraining-mxnet/wheels`` in ``XDG_CACHE_HOME`` or ``~/.cache``,
with one folder per kind of machine: a Horovod linked to another Open MPI, or compiled for a processor with
more instructions, must not be taken. A wheel (and a download) appears under its own name only when complete,
and a lock on the folder keeps set-ups of several clones apart. All of it may be deleted at any time.
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
from typing import Callable, Iterator, Mapping, NamedTuple, Sequence

from setup.errors import SetupError
from setup.progress import Progress

MXNET_VERSION = "1.9.1"
JOB_MEMORY = 1.5 * 2**30  # bytes that one compiler process of Horovod may want
# What belongs to the make that called us, or to another kind of Horovod, stays out of a build.
FOREIGN = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "CUDA", "PYTHON", "HOROVOD_GPU_OPERATIONS")
VECTOR_FLAGS = ("avx", "f16c", "fma")  # those that Horovod's CMake files turn on where the processor has them


class Source(NamedTuple):
    """A package to build, what to expect of it, and the environment variables of its build.

    ``variant`` names what its wheel depends on besides the machine's key, as a folder in the cache; asked
    only when the compiler is there. ``arrange`` makes in an empty folder what the build needs besides the
    archive, and gives further environment variables.
    """

    name: str
    version: str
    duration: str
    env: Mapping[str, str]
    variant: Callable[[], str] = str
    arrange: Callable[[Path, Progress], Mapping[str, str]] = lambda scratch, progress: {}


class Wanted(NamedTuple):
    """All that is to be installed: pins for pip, pins for what those pull in, and what is built here."""

    requirements: Sequence[str]
    constraints: Sequence[str]
    sources: Sequence[Source]


def gluonnlp() -> Source:
    """Its archive holds C code from an old Cython, which Python 3.11 cannot compile: generated anew here."""
    return Source("gluonnlp", "0.10.0", "about 20 seconds", {"CYTHON_FORCE_REGEN": "1"})


def horovod(cuda: str, venv: Path) -> Source:
    """With MPI and Gloo, for MXNet alone; a ``cuda`` other than "cpu" adds NCCL (Horovod's GPU guide)."""
    env = {
        "HOROVOD_CMAKE": str(venv / "bin/cmake"),
        "HOROVOD_WITH_MXNET": "1",
        "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_PYTORCH": "1",
        "HOROVOD_WITH_MPI": "1",
        "HOROVOD_WITH_GLOO": "1",
    }
    if cuda != "cpu":
        env["HOROVOD_GPU_OPERATIONS"] = "NCCL"
    return Source("horovod", "0.28.1", "2 to 8 minutes", env)


def mxnet_requirement(cuda: str) -> str:
    """The pip requirement for MXNet, such as ``mxnet-cu110==1.9.1``."""
    return f"mxnet{'' if cuda == 'cpu' else '-cu' + cuda}=={MXNET_VERSION}"


def cache_root(env: Mapping[str, str]) -> Path:
    """Where the wheels are kept.

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
    """Name of the cache folder for what a built wheel depends on."""
    cpu = set(re.findall(r"\w+", _first_flags_line()))
    parts = [
        f"cp{sys.version_info[0]}{sys.version_info[1]}",
        mxnet_requirement(cuda).replace("==", "-"),
        f"openmpi-{open_mpi}",
        f"glibc-{platform.libc_ver()[1]}",
        *[flag for flag in VECTOR_FLAGS if flag in cpu],
    ]
    return "_".join(parts)


def _first_flags_line() -> str:
    with open("/proc/cpuinfo") as info:
        return next((line for line in info if line.startswith("flags")), "")


def cached(folder: Path, source: Source) -> Path | None:
    """The complete wheel of ``source`` in the cache ``folder``, if there is one; a damaged file is none."""
    return _complete(folder / source.variant(), source)


def _complete(folder: Path, source: Source) -> Path | None:
    wheels = sorted(folder.glob(f"{source.name}-{source.version}-*.whl"))
    return next((wheel for wheel in wheels if zipfile.is_zipfile(wheel)), None)


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
    """Where the downloaded packages are kept; the path exists only when all of them are there."""
    pins = "\n".join([*wanted.requirements, "", *wanted.constraints])
    return folder / f"pinned-{hashlib.sha256(pins.encode()).hexdigest()[:16]}"


def all_cached(folder: Path, wanted: Wanted) -> bool:
    """Whether the cache has everything, so that no package index is needed."""
    built = [cached(folder, source) for source in wanted.sources]
    return None not in built and pinned(folder, wanted).exists()


def download(folder: Path, wanted: Wanted, python: Path, progress: Progress) -> Path:
    """Returns a folder with the wheels of the requirements and what they pull in, downloading them if needed.

    Raises:
        SetupError: pip failed.
    """
    target = pinned(folder, wanted)
    with _workplace(folder, progress) as scratch:
        if target.exists():
            progress.note(f"in the cache: {target}")
            return target
        constraints = scratch / "constraints.txt"
        constraints.write_text("\n".join(wanted.constraints) + "\n")
        options = ["--only-binary", ":all:", "-c", str(constraints), "--dest", str(scratch / "out")]
        progress.run([str(python), "-m", "pip", "download", *options, *wanted.requirements], "downloading")
        os.sync()
        os.replace(scratch / "out", target)
    return target


def build(
    folder: Path, source: Source, python: Path, progress: Progress, prepare: Callable[[], None]
) -> Path:
    """Returns the wheel of ``source`` from ``folder``, building it there first if needed.

    Args:
        python: interpreter of the environment to build with.
        prepare: installs the build tools into that environment; called only when there is something to build.

    Raises:
        SetupError: the build failed.
    """
    with _workplace(folder, progress) as scratch:
        wheel = cached(folder, source)
        if wheel is not None:
            progress.note(f"in the cache: {wheel}")
            return wheel
        prepare()
        (scratch / "tmp").mkdir()
        # Neither pip's own cache nor a folder of wheels may answer: they know nothing of Open MPI.
        options = ["--no-build-isolation", "--no-deps", "--no-cache-dir", "--no-binary", source.name]
        arranged = source.arrange(scratch, progress)
        progress.run(
            [str(python), "-m", "pip", "wheel", "-v", *options]
            + ["--wheel-dir", str(scratch / "out"), f"{source.name}=={source.version}"],
            f"building {source.name} ({source.duration})",
            env={**_build_env(source, scratch / "tmp"), **arranged},
        )
        made = _complete(scratch / "out", source)
        if made is None:
            raise SetupError(f"building {source.name} left no wheel of version {source.version}.")
        with open(made, "rb") as content:
            os.fsync(content.fileno())
        wheel = folder / source.variant() / made.name
        wheel.parent.mkdir(exist_ok=True)
        os.replace(made, wheel)
    progress.note(f"kept as {wheel}")
    return wheel


def _build_env(source: Source, scratch: Path) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if name not in FOREIGN}
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    jobs = max(1, min(len(os.sched_getaffinity(0)), int(memory / JOB_MEMORY)))
    return {**env, "MAKEFLAGS": f"-j{jobs}", "TMPDIR": str(scratch), **source.env}
