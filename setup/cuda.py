"""CUDA without a toolkit: NVIDIA's wheels where libmxnet.so and compilers look, and a stand-in driver.

``requirements-cuda.txt`` pins the wheels. Of the machine, only the driver is used, and that only by runs:
builds and checks do with ``native/cuda/no_driver.cc`` where there is none (a container's build).
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from pathlib import Path
from typing import Mapping

from setup.errors import SetupError
from setup.progress import Progress

DRIVER = "libcuda.so.1"

# Libraries that a release of MXNet asks for and no wheel has, each with NVIDIA's own package of it.
IN_NO_WHEEL: Mapping[str, Mapping[str, str]] = {
    "110": {"libcusolver.so.10": "libcusolver-11-0", "libnvrtc.so.11.0": "cuda-nvrtc-11-0"},
    "112": {},
}


def check_version(cuda: str) -> None:
    """``cuda`` is "cpu" or a version without its point for which wheels, or what they lack, are at hand.

    Raises:
        SetupError: another version or form, or libraries that no wheel has are not on this machine.
    """
    if cuda == "cpu":
        return
    if not re.fullmatch(r"\d{3}", cuda):
        raise SetupError(f"CUDA={cuda}: give the version without its point, such as CUDA=112, or CUDA=cpu.")
    if cuda not in IN_NO_WHEEL:
        raise SetupError(f"CUDA={cuda}: choose CUDA=112 or CUDA=110, which NVIDIA's wheels serve.")
    absent = {name: package for name, package in IN_NO_WHEEL[cuda].items() if not loads(name)}
    if absent:
        raise SetupError(
            f"CUDA={cuda}: mxnet-cu{cuda} needs {' and '.join(absent)}, which no wheel has: install NVIDIA's "
            f"packages {' and '.join(absent.values())}, or choose CUDA=112, which needs the driver alone."
        )


def loads(name: str) -> bool:
    """Returns whether this machine's loader finds the library."""
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def site_packages(venv: Path) -> Path:
    """The folder of a virtual environment that packages are installed in.

    Raises:
        SetupError: there is none.
    """
    found = sorted((venv / "lib").glob("python3.*/site-packages"))
    if not found:
        raise SetupError(f"{venv} has no site-packages; remove it and run make setup again.")
    return found[-1]


def link_libraries(venv: Path) -> None:
    """Links the libraries of NVIDIA's wheels into MXNet's folder, where libmxnet.so looks first.

    Raises:
        SetupError: what libmxnet.so asks for is still missing; the message names it.
    """
    site = site_packages(venv)
    mxnet = site / "mxnet"
    for library in sorted((site / "nvidia").glob("*/lib/lib*.so*")):
        link = mxnet / library.name
        if link.is_symlink():
            link.unlink()
        link.symlink_to(os.path.relpath(library, mxnet))
    missing = unresolved(mxnet / "libmxnet.so")
    if missing:
        raise SetupError(
            f"libmxnet.so needs {', '.join(missing)}, which no package of requirements-cuda.txt has."
        )


def unresolved(library: Path) -> list[str]:
    """Names of libraries, besides the driver's, that the loader does not find for ``library``."""
    listed = subprocess.run(["ldd", str(library)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    lines = listed.stdout.decode(errors="replace").splitlines()
    absent = [line.split()[0] for line in lines if line.endswith("=> not found")]
    return sorted({name for name in absent if name != DRIVER})


def compile_no_driver(sources: Path, folder: Path, progress: Progress) -> Path:
    """Compiles the stand-in for the driver into ``folder`` and returns its path.

    Raises:
        SetupError: it does not compile.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / DRIVER
    command = ["g++", "-O2", "-shared", "-fPIC", f"-Wl,-soname,{DRIVER}", str(sources / "no_driver.cc")]
    progress.run([*command, "-o", str(target)], "compiling the stand-in for the GPU driver")
    return target


def environment_without_driver(sources: Path, folder: Path, progress: Progress) -> dict[str, str]:
    """Variables with which processes of the set-up load libmxnet.so: none where the machine has a driver.

    Raises:
        SetupError: the stand-in does not compile.
    """
    if loads(DRIVER):
        return {}
    compile_no_driver(sources, folder, progress)
    paths = [str(folder), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return {"LD_LIBRARY_PATH": os.pathsep.join(paths)}


def arrange_toolkit(venv: Path, sources: Path, home: Path, progress: Progress) -> dict[str, str]:
    """Makes ``home`` look like an installed toolkit, from the wheels in ``venv``, for compiling and linking.

    Returns:
        the variables with which MXNet can be imported in the build

    Raises:
        SetupError: a wheel is missing, or the stand-in for the driver does not compile.
    """
    link_libraries(venv)
    nvidia = site_packages(venv) / "nvidia"
    include, lib = home / "include", home / "lib"
    include.mkdir(parents=True)
    (lib / "stubs").mkdir(parents=True)
    (home / "lib64").symlink_to("lib")
    # All of them: MXNet's own headers include those of cuBLAS, cuRAND and cuSOLVER.
    for folder in sorted(nvidia.glob("*/include")):
        for header in sorted(folder.iterdir()):
            place = include / header.name
            if header.name.startswith("__") or place.exists():
                continue
            place.symlink_to(header)
    for name in ("cudart", "nccl", "nvrtc"):
        found = sorted(nvidia.glob(f"*/lib/lib{name}.so.*"))
        if not found:
            raise SetupError(f"no lib{name} among the packages of requirements-cuda.txt.")
        (lib / f"lib{name}.so").symlink_to(found[0])
    stand_in = compile_no_driver(sources, home / "driver", progress)
    (lib / "stubs" / "libcuda.so").symlink_to(stand_in)
    return environment_without_driver(sources, home / "driver", progress)
