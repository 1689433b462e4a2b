"""Build of Horovod from its source archive: as it is for CPUs; for GPUs with NCCL, and without nvcc.

Horovod's CMake files take CUDA's kernels to nvcc, which no wheel has. For GPUs the archive is changed:
``native/cuda/horovod_kernels.cc`` takes the place of the kernels, and CMake finds CUDA in NVIDIA's wheels.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Mapping

from setup import cuda as cuda_wheels
from setup.building import Source, replace
from setup.byteps_build import native_files
from setup.errors import SetupError
from setup.progress import Progress

VERSION = "0.28.1"
# What its setup.py imports or requires; CMake is the one on PATH, the environment's.
NEEDS = ("setuptools", "wheel", "cmake", "packaging", "cloudpickle", "psutil", "pyyaml")
ENV = {
    "HOROVOD_WITH_MXNET": "1",
    "HOROVOD_WITHOUT_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_PYTORCH": "1",
    "HOROVOD_WITH_MPI": "1",
    "HOROVOD_WITH_GLOO": "1",
    # Headers that Horovod and Gloo use and do not include; since GCC 13 others no longer bring them.
    "CXXFLAGS": "-include stdexcept -include cstdint",
}
# Files of the archive, text in them, and what takes its place: a template that assigns to a constant member,
# which nothing uses and GCC 14 rejects; a module that Python 3.12 no longer has.
MENDED = (
    (
        "third_party/flatbuffers/include/flatbuffers/stl_emulation.h",
        "const size_type count_;",
        "size_type count_;",
    ),
    (
        "horovod/runner/js_run.py",
        "from distutils.spawn import find_executable",
        "from shutil import which as find_executable",
    ),
)
LIBRARIES = ("libcudart.so", "libnvrtc.so", "stubs/libcuda.so")
# The text of CMakeLists.txt and what takes its place.
CHANGES = {
    "check_language(CUDA)": "set(CMAKE_CUDA_COMPILER NOTFOUND)",
    "    find_package(CUDAToolkit)\n": "",
    "find_package(CUDAToolkit REQUIRED)": """list(APPEND LINKER_LIBS {libraries})
    # Where the library looks for others: not in the folders that it is built from, which are removed.
    set(CMAKE_BUILD_WITH_INSTALL_RPATH TRUE)
    set(CMAKE_INSTALL_RPATH "$ORIGIN/../../mxnet")
    foreach(library ${{MPI_LIBRARIES}})
        get_filename_component(folder "${{library}}" DIRECTORY)
        list(APPEND CMAKE_INSTALL_RPATH "${{folder}}")
    endforeach()
    list(REMOVE_DUPLICATES CMAKE_INSTALL_RPATH)""",
    "${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES}": '"{home}/include"',
}
KERNELS = """add_library(horovod_cuda_kernels STATIC cuda_kernels.cc)
target_compile_definitions(horovod_cuda_kernels PRIVATE _GLIBCXX_USE_CXX11_ABI=1)
add_library(compatible_horovod_cuda_kernels STATIC cuda_kernels.cc)
target_compile_definitions(compatible_horovod_cuda_kernels PRIVATE _GLIBCXX_USE_CXX11_ABI=0)
include_directories(SYSTEM "{home}/include")
set_target_properties(horovod_cuda_kernels compatible_horovod_cuda_kernels PROPERTIES
                      POSITION_INDEPENDENT_CODE ON CXX_STANDARD 14)
"""


def horovod(cuda: str, root: Path, mxnet: str, libraries: tuple[str, ...]) -> Source:
    """With MPI and Gloo, for the package ``mxnet`` alone; a ``cuda`` other than "cpu" adds NCCL, from the
    packages ``libraries`` (Horovod's GPU guide); ``root`` is the clone with ``native``."""
    needs = (*NEEDS, mxnet, *libraries)
    if cuda == "cpu":
        return Source("horovod", VERSION, "2 to 8 minutes", needs, ENV, lambda: [Path(__file__)], change=mend)
    sources = root / "native" / "cuda"
    env = {**ENV, "HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_NCCL_LINK": "SHARED"}

    def inputs() -> list[Path]:
        return [Path(__file__), Path(cuda_wheels.__file__), *native_files(sources)]

    def arrange(scratch: Path, progress: Progress) -> Mapping[str, str]:
        home = scratch / "cuda"
        found = cuda_wheels.arrange_toolkit(scratch / "environment", sources, home, progress)
        return {**found, "HOROVOD_NCCL_HOME": str(home)}

    def change(scratch: Path, archive: Path) -> None:
        mend(scratch, archive)
        leave_out_nvcc(sources, scratch / "cuda", archive)

    return Source("horovod", VERSION, "3 to 10 minutes", needs, env, inputs, arrange, change)


def mend(scratch: Path, archive: Path) -> None:
    """Changes Horovod's unpacked ``archive`` for newer compilers and releases of Python."""
    for name, old, new in MENDED:
        replace(archive, name, old, new)


def leave_out_nvcc(sources: Path, home: Path, archive: Path) -> None:
    """Changes Horovod's unpacked ``archive`` so that CMake needs no nvcc; ``home`` looks like a toolkit.

    Raises:
        SetupError: the archive is not the one that this was written for.
    """
    main = archive / "CMakeLists.txt"
    text = main.read_text()
    libraries = " ".join(f'"{home}/lib/{name}"' for name in LIBRARIES)
    for old, new in CHANGES.items():
        if old not in text:
            raise SetupError(f"Horovod's CMakeLists.txt has no {old.strip()}; it is not that of {VERSION}.")
        text = text.replace(old, new.format(home=home, libraries=libraries))
    main.write_text(text)
    folder = archive / "horovod" / "common" / "ops" / "cuda"
    (folder / "cuda_kernels.cu").unlink()
    shutil.copy(sources / "horovod_kernels.cc", folder / "cuda_kernels.cc")
    kernels = (sources / "horovod_kernels.cu").read_text()
    (folder / "horovod_kernels_text.h").write_text(f'R"kernels({kernels})kernels"\n')
    (folder / "CMakeLists.txt").write_text(KERNELS.format(home=home))
