"""How the fused CPU operators in ``native/operators`` become a library that MXNet loads."""

from __future__ import annotations

import hashlib
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Sequence

from setup.errors import SetupError

NAME = "libbert_operators.so"
COMPILE = ["g++", "-std=c++17", "-O3", "-fPIC", "-fopenmp", "-fno-math-errno", "-fno-trapping-math"]
COMPILE += ["-Wall", "-Wextra"]
# Kernels are compiled once for each; the library chooses when it is loaded (native/operators/isa.h).
AVX512 = [
    "-mavx512f",
    "-mavx512bw",
    "-mavx512vl",
    "-mavx512dq",
    "-mavx2",
    "-mfma",
    "-mprefer-vector-width=512",
]
ISAS: dict[str, list[str]] = {
    "baseline": [],
    "avx2": ["-mavx2", "-mfma"],
    "avx512": AVX512,
    "avx512_bf16": [*AVX512, "-mavx512bf16"],
}


def build(sources: Path, venv: Path) -> Path:
    """Compiles what has changed and links it into ``venv/lib``; the objects stay in ``venv/operators``.

    Raises:
        SetupError: it does not compile.
    """
    packages = next((venv / "lib").glob("python3.*/site-packages"))
    mxnet = packages / "mxnet"
    includes = [f"-I{sources}", f"-isystem{mxnet / 'include'}", f"-isystem{venv / 'include'}"]
    # Compilers before GCC 10 do not know bfloat16; for them the last build is the same as the one before.
    bf16 = ISAS["avx512_bf16"] if _understood(ISAS["avx512_bf16"]) else AVX512
    flags_of = {**ISAS, "avx512_bf16": bf16}
    jobs = [(mxnet / "src" / "lib_api.cc", "lib_api", ["-w"])]
    for file in sorted(sources.glob("*.cc")):
        if file.stem.endswith("_kernels"):
            jobs += [
                (file, f"{file.stem}.{isa}", [*flags, f"-DISA={isa}"]) for isa, flags in flags_of.items()
            ]
        else:
            jobs.append((file, file.stem, []))
    objects = venv / "operators"
    objects.mkdir(exist_ok=True)
    headers = b"".join(file.read_bytes() for file in sorted(sources.glob("*.h")))

    def compile_one(job: tuple[Path, str, Sequence[str]]) -> Path:
        file, stem, flags = job
        command = [*COMPILE, *flags, *includes, "-c", str(file)]
        key = hashlib.sha256(headers + file.read_bytes() + repr(command).encode()).hexdigest()[:16]
        target = objects / f"{stem}.{key}.o"
        if not target.exists():
            partial = target.with_suffix(".partial")
            _compile([*command, "-o", str(partial)], file.name)
            os.replace(partial, target)
        return target

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        made = list(pool.map(compile_one, jobs))
    for old in set(objects.glob("*")) - set(made):
        old.unlink()
    library = venv / "lib" / NAME
    link = ["g++", "-shared", "-fopenmp", *map(str, made), "-o", f"{library}.partial"]
    link += [f"-L{venv / 'lib'}", "-l:libdnnl.so.3", "-Wl,-rpath,$ORIGIN", "-Wl,-z,defs"]
    _compile(link, NAME)
    os.replace(f"{library}.partial", library)
    return library


def _understood(flags: Sequence[str]) -> bool:
    command = ["g++", *flags, "-x", "c++", "-fsyntax-only", "/dev/null"]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True).returncode == 0


def _compile(command: Sequence[str], what: str) -> None:
    result = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if result.returncode != 0:
        raise SetupError(f"{what} does not compile:\n{result.stdout.decode(errors='replace')}")


if __name__ == "__main__":
    root = Path(__file__).resolve().parent.parent
    print(build(root / "native" / "operators", root / ".venv"))
