"""Build of BytePS from its source archive, which stays as it is but for three lines and two files of ps-lite.

``native/ps_lite`` takes the place of these: the transport over ZeroMQ and the count of answers, which kept
memory of every message. On machines without CUDA, BytePS is also compiled against the host runtime in
``native/byteps_host``, which offers the CUDA and NCCL calls of its workers on host memory, keeps the runs of
one host apart and lets its threads sleep. On CUDA machines nothing of that is involved.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Mapping

from setup import cuda as cuda_wheels
from setup.building import Source, replace
from setup.errors import SetupError
from setup.progress import Progress

VERSION = "0.2.5.post15"
COMPILE = ["g++", "-std=c++14", "-O2", "-fPIC", "-Wall", "-Wextra", "-fvisibility=hidden"]
# Gradients that are all zero are divided by their norm, and 0/0 is another whole number on other processors.
DITHERING = (
    "byteps/common/compressor/impl/dithering.cc",
    "  BitWriter<index_t> bit_writer(dst);\n",
    "  if (scale == 0) scale = 1;\n  BitWriter<index_t> bit_writer(dst);\n",
)
# A worker without further local ranks pushes and pulls where an array lies; its buffer stays untouched.
BUFFER = "byteps/common/operations.cc"
UNUSED = (
    "  char *data = const_cast<char *>(static_cast<const char *>(context.cpubuff));\n",
    "  const bool alone = cpubuff && BytePSGlobal::GetLocalSize() == 1;\n"
    "  char *data = static_cast<char *>(alone ? cpubuff : context.cpubuff);\n",
)
PLACE = (
    "  e->cpubuff = context.cpubuff;\n",
    "  const bool alone = device == CPU_DEVICE_ID && BytePSGlobal::GetLocalSize() == 1\n"
    "                     && context.compressor_list.empty();  // which write to a multiple of their words\n"
    "  e->cpubuff = alone ? const_cast<void*>(input->data()) : context.cpubuff;\n",
)
RUN_PATH = "link_flags.append('-Wl,-rpath,%s' % lib_dir)"

# What BytePS's workers link as NCCL, and what takes the place of functions in both of its libraries.
NCCL = ("cuda.cc", "collectives.cc", "reduce.cc", "shared.cc")
WRAPPERS = ("engine.cc", "isolation.cc", "pipeline.cc")
WRAPPER = re.compile(r" T __wrap_(\w+)$", re.MULTILINE)  # as nm lists it

COMMON = {
    "BYTEPS_WITH_MXNET": "1",
    "BYTEPS_WITHOUT_MXNET": "0",
    "BYTEPS_WITHOUT_TENSORFLOW": "1",
    "BYTEPS_WITHOUT_PYTORCH": "1",
    "BYTEPS_WITH_UCX": "0",
    "BYTEPS_USE_MPI": "0",
    # Headers that BytePS's sources use and do not include. The rest is for ReadyTable::SetReadyCount,
    # which has no return statement: GCC would let it run on into whatever code comes next.
    "CFLAGS": "-include memory -include cstring -include string -include cstdint "
    "-fsanitize=unreachable -fsanitize-undefined-trap-on-error",
    # The archive brings its own ZeroMQ: "downloaded" from two folders up.
    "WGET": "cp -t .",
    "ZMQ_URL": "../../zeromq-4.1.4.tar.gz",
    # Any other value makes BytePS start as many compilers as there are files.
    "CI": "true",
}


def byteps(cuda: str, root: Path, mxnet: str, libraries: tuple[str, ...] = ()) -> Source:
    """BytePS for the package ``mxnet``, on GPUs with the packages ``libraries``; ``root`` is the clone with
    ``native``."""
    needs = ("setuptools", "wheel", mxnet, *libraries)
    ps_lite = root / "native" / "ps_lite"
    host = root / "native" / "byteps_host"
    gpu = root / "native" / "cuda"
    env = COMMON
    if cuda != "cpu":
        # MXNet's folder, where setup/cuda.py has linked CUDA's runtime and NCCL.
        linker = "g++ -shared -pthread -Wl,-rpath,$ORIGIN/../../mxnet"
        env = {**COMMON, "BYTEPS_NCCL_LINK": "SHARED", "LDSHARED": linker}

    def inputs() -> list[Path]:
        return [
            Path(__file__),
            *native_files(ps_lite),
            *(native_files(host) if cuda == "cpu" else [Path(cuda_wheels.__file__), *native_files(gpu)]),
        ]

    def arrange(scratch: Path, progress: Progress) -> Mapping[str, str]:
        if re.search(r"[\s,'\"]", str(scratch)):  # which make and the linker cannot be given
            raise SetupError(
                f"BytePS cannot be built below {scratch}: no blanks, commas or quotes in the path, please; "
                "name another folder with WHEEL_CACHE=."
            )
        # ps-lite's makefile compiles these in place of its own files.
        shutil.copytree(ps_lite, scratch / "ps-lite")
        replaced = {"config": str(scratch / "ps-lite" / "build.mk")}
        if cuda == "cpu":
            return {**replaced, **compile_host_runtime(host, scratch, progress)}
        home = scratch / "cuda"
        found = cuda_wheels.arrange_toolkit(scratch / "environment", gpu, home, progress)
        return {**replaced, **found, "BYTEPS_CUDA_HOME": str(home), "BYTEPS_NCCL_HOME": str(home)}

    def change(scratch: Path, archive: Path) -> None:
        replace(archive, *DITHERING)
        if cuda == "cpu":
            replace(archive, BUFFER, *UNUSED)
            replace(archive, BUFFER, *PLACE)
        else:
            # Its libraries look for others where they are installed, not in the MXNet of the build.
            replace(archive, "setup.py", RUN_PATH, "pass")

    return Source("byteps", VERSION, "2 to 6 minutes", needs, env, inputs, arrange, change)


def native_files(folder: Path) -> list[Path]:
    """All files below ``folder`` that something is compiled from."""
    return sorted(file for file in folder.rglob("*") if file.suffix in (".cc", ".cu", ".h", ".mk"))


def compile_host_runtime(sources: Path, folder: Path, progress: Progress) -> dict[str, str]:
    """Compiles the host runtime into ``folder`` and returns the environment that makes BytePS link to it.

    Raises:
        SetupError: it does not compile.
    """
    home = folder / "host-runtime"
    (home / "lib").mkdir(parents=True)
    shutil.copytree(sources / "include", home / "include")
    for archive, names in (("libnccl_static.a", NCCL), ("libwrappers.a", WRAPPERS)):
        objects = []
        for name in names:
            target = str(home / f"{name}.o")
            command = [*COMPILE, f"-I{sources}", f"-I{sources / 'include'}", "-c", str(sources / name)]
            progress.run([*command, "-o", target], f"compiling {name}")
            objects.append(target)
        progress.run(["ar", "rcs", str(home / "lib" / archive), *objects], f"making {archive}")
    # ps-lite's makefile has its own LDFLAGS, so these travel with the command that links Python's extensions.
    wrappers = home / "lib" / "libwrappers.a"
    listed = subprocess.run(["nm", str(wrappers)], stdout=subprocess.PIPE, check=True).stdout.decode()
    wraps = ",".join(f"--wrap={name}" for name in sorted(WRAPPER.findall(listed)))
    linker = f"g++ -shared -pthread -Wl,{wraps},--whole-archive,{wrappers},--no-whole-archive"
    return {
        "LDSHARED": linker,
        "BYTEPS_NCCL_HOME": str(home),
        "BYTEPS_NCCL_LINK": "STATIC",
        "BYTEPS_CUDA_HOME": str(home),
    }
