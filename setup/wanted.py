"""Everything that a set-up installs or builds, read from the clone's pins."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Sequence

from setup.building import Source
from setup.byteps_build import byteps
from setup.errors import SetupError

MXNET_VERSION = "1.9.1"


class Wanted(NamedTuple):
    """Pins for pip, pins of the tools that only builds need, pins for what those pull in, and what is built
    here."""

    requirements: Sequence[str]
    build_tools: Sequence[str]
    constraints: Sequence[str]
    sources: Sequence[Source]

    @property
    def pins(self) -> list[str]:
        """All versions that a build environment can be made of."""
        return [*self.requirements, *self.build_tools, *self.constraints]


def mxnet_requirement(cuda: str) -> str:
    """The pip requirement for MXNet, such as ``mxnet-cu110==1.9.1``."""
    return f"mxnet{'' if cuda == 'cpu' else '-cu' + cuda}=={MXNET_VERSION}"


def wanted(cuda: str, root: Path) -> Wanted:
    """The pins of the clone ``root``, with the MXNet for this kind of machine, and the packages to build.

    Raises:
        SetupError: the file pins another MXNet than this module builds for.
    """
    pins = _pins(root / "requirements.txt")
    cpu = mxnet_requirement("cpu")
    if cpu not in pins:
        raise SetupError(f"requirements.txt must pin {cpu}, the version that setup/wanted.py builds for.")
    return Wanted(
        [mxnet_requirement(cuda) if pin == cpu else pin for pin in pins],
        _pins(root / "requirements-build.txt"),
        _pins(root / "constraints.txt"),
        [gluonnlp(), horovod(cuda), byteps(cuda, root, _mxnet(cuda))],
    )


def gluonnlp() -> Source:
    """Its archive holds C code from an old Cython, which Python 3.11 cannot compile: generated anew here."""
    return Source(
        "gluonnlp",
        "0.10.0",
        "about 20 seconds",
        ("setuptools", "wheel", "cython"),
        {"CYTHON_FORCE_REGEN": "1"},
    )


def horovod(cuda: str) -> Source:
    """With MPI and Gloo, for MXNet alone; a ``cuda`` other than "cpu" adds NCCL (Horovod's GPU guide)."""
    env = {
        "HOROVOD_WITH_MXNET": "1",
        "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_PYTORCH": "1",
        "HOROVOD_WITH_MPI": "1",
        "HOROVOD_WITH_GLOO": "1",
    }
    if cuda != "cpu":
        env["HOROVOD_GPU_OPERATIONS"] = "NCCL"
    # What its setup.py imports or requires; CMake is the one on PATH, the environment's.
    needs = ("setuptools", "wheel", "cmake", "packaging", "cloudpickle", "psutil", "pyyaml", _mxnet(cuda))
    return Source("horovod", "0.28.1", "2 to 8 minutes", needs, env)


def _mxnet(cuda: str) -> str:
    return mxnet_requirement(cuda).split("==")[0]


def _pins(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
