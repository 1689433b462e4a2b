"""Build of the fused CPU operators in ``native/operators`` into a library that MXNet loads."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Sequence

from setup.progress import Progress

NAME = "libbert_operators.so"
ONEDNN = "onednn_devel_cpu_gomp"
COMPILE = ["g++", "-std=c++17", "-O3", "-fPIC", "-fopenmp", "-fno-math-errno", "-fno-trapping-math"]
COMPILE += ["-Wall", "-Wextra"]
LEAKING = "_opCallMutateInputs"  # a function of MXNet's that native/operators/library.cc replaces
# Kernels are compiled once for each; the library chooses when it is loaded (native/operators/isa.h).
AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx2", "-mfma"]
AVX512 += ["-mprefer-vector-width=512"]
ISAS: dict[str, list[str]] = {
    "baseline": [],
    "avx2": ["-mavx2", "-mfma"],
    "avx512": AVX512,
    "avx512_bf16": [*AVX512, "-mavx512bf16"],
    "amx": [*AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-bf16"],
}


def build(sources: Path, venv: Path, downloads: Path, progress: Progress) -> Path:
    """Compiles what has changed and links it into ``venv/lib``; the objects stay in ``venv/operators``.

    The headers are those of the MXNet in ``venv`` and of the oneDNN in ``downloads``, the folder of pinned
    wheels; ``venv/include`` is no part of it.

    Raises:
        SetupError: it does not compile.
    """
    mxnet = next((venv / "lib").glob("python3.*/site-packages")) / "mxnet"
    onednn, headers_of = _unpack_headers(downloads, venv / "operators-headers")
    includes = [f"-I{sources}", f"-isystem{mxnet / 'include'}", f"-isystem{onednn}"]
    # GCC before 10 does not know bfloat16, before 11 not AMX: then a build is the same as the one before, and
    # bfloat16 is rounded in float32 or multiplied by vectors.
    flags_of: dict[str, list[str]] = {}
    for isa, flags in ISAS.items():
        trial = ["g++", *flags, "-x", "c++", "-fsyntax-only", "/dev/null"]
        understood = not subprocess.run(trial, stdin=subprocess.DEVNULL, capture_output=True).returncode
        flags_of[isa] = flags if understood else list(flags_of.values())[-1]
    jobs = [(mxnet / "src" / "lib_api.cc", "lib_api", ["-w", f"-D{LEAKING}=mxnets{LEAKING}"])]
    for file in sorted(sources.glob("*.cc")):
        if file.stem.endswith("_kernels"):
            jobs += [
                (file, f"{file.stem}.{isa}", [*flags, f"-DISA={isa}"]) for isa, flags in flags_of.items()
            ]
        else:
            jobs.append((file, file.stem, []))
    objects = venv / "operators"
    objects.mkdir(exist_ok=True)
    own = b"".join(file.read_bytes() for file in sorted(sources.glob("*.h")))
    compiler = subprocess.run(["g++", "--version"], stdout=subprocess.PIPE, check=True).stdout
    mxnet_version = (mxnet / "libinfo.py").read_bytes()
    common = b"\0".join([own, compiler, mxnet_version, headers_of.encode()])

    def compile_one(job: tuple[Path, str, Sequence[str]]) -> Path:
        file, stem, flags = job
        command = [*COMPILE, *flags, *includes, "-c", str(file)]
        key = hashlib.sha256(common + file.read_bytes() + repr(command).encode()).hexdigest()[:16]
        target = objects / f"{stem}.{key}.o"
        if not target.exists():
            partial = target.with_suffix(".partial")
            progress.run([*command, "-o", str(partial)], f"compiling {file.name}", env)
            os.replace(partial, target)
        return target

    env = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "TMPDIR")}
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        made = list(pool.map(compile_one, jobs))
    for old in set(objects.glob("*")) - set(made):
        old.unlink()
    library = venv / "lib" / NAME
    link = ["g++", "-shared", "-fopenmp", *map(str, made), "-o", f"{library}.partial"]
    link += [f"-L{venv / 'lib'}", "-l:libdnnl.so.3", "-Wl,-rpath,$ORIGIN", "-Wl,-z,defs"]
    progress.run(link, f"linking {NAME}", env)
    os.replace(f"{library}.partial", library)
    return library


def _unpack_headers(downloads: Path, target: Path) -> tuple[Path, str]:
    """Unpacks oneDNN's headers from its wheel into ``target``; returns their folder and the wheel's name."""
    wheel = next(downloads.glob(f"{ONEDNN}-*.whl"))
    shutil.rmtree(target, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            _, data, inner = name.partition(".data/data/")
            if data and inner.startswith("include/"):
                file = target / inner
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(archive.read(name))
    return target / "include", wheel.name
