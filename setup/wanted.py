"""Everything that a set-up installs or builds, read from the clone's pins."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Sequence

from setup.building import Source
from setup.byteps_build import byteps
from setup.errors import SetupError
from setup.horovod_build import horovod

MXNET_VERSION = "1.9.1"


class Wanted(NamedTuple):
    """Pins for pip, with markers, pins of the tools that only builds need, and what is built here."""

    requirements: Sequence[str]
    build_tools: Sequence[str]
    sources: Sequence[Source]

    @property
    def pins(self) -> list[str]:
        """All versions that a build environment can be made of."""
        return [*self.requirements, *self.build_tools]


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
    libraries = _pins(root / "requirements-cuda.txt") if cuda != "cpu" else []
    names = tuple(pin.split("==")[0] for pin in libraries)
    return Wanted(
        [*(mxnet_requirement(cuda) if pin == cpu else pin for pin in pins), *libraries],
        _pins(root / "requirements-build.txt"),
        [
            gluonnlp(),
            horovod(cuda, root, _mxnet(cuda), names),
            byteps(cuda, root, _mxnet(cuda), names),
        ],
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


def _mxnet(cuda: str) -> str:
    return mxnet_requirement(cuda).split("==")[0]


def _pins(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
