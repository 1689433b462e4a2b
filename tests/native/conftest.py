"""Several processes at once, and the collectives of the host runtime as a library of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Callable, NamedTuple, Sequence

import pytest

from setup import byteps_build
from tests.processes import LIMIT, ROOT, run_command

SOURCES = ROOT / "native" / "byteps_host"


class Ended(NamedTuple):
    """The end of a process: `code` is None if the time limit ended it."""

    code: int | None
    seconds: float
    output: str


@pytest.fixture
def together(tmp_path) -> Callable[..., dict[str, Ended]]:
    """Runs processes {name: (argv, env)} at the same time, in an empty folder, all by the words of `prefix`;
    returns how each ended."""

    def run(processes, limit: float = LIMIT, prefix: Sequence[str] = ()) -> dict[str, Ended]:
        folder = tmp_path / "together"
        folder.mkdir(exist_ok=True)
        described = [{"name": name, "argv": argv, "env": env} for name, (argv, env) in processes.items()]
        (folder / "processes.json").write_text(json.dumps(described))
        script = Path(__file__).with_name("together.py")
        command = [*prefix, sys.executable, script, str(limit), "processes.json"]
        answer = json.loads(run_command(command, timeout=2 * limit, cwd=folder).check().stdout)
        return {
            name: Ended(code, seconds, (folder / f"{name}.out").read_text(errors="replace"))
            for name, (code, seconds) in answer.items()
        }

    return run


def compile_collectives(folder: Path, *options: str) -> Path:
    """The CUDA and NCCL calls of the host runtime as a shared library for ctypes."""
    library = folder / "libcollectives.so"
    command = [word for word in byteps_build.COMPILE if word != "-fvisibility=hidden"]
    command += [
        "-Werror",
        *options,
        "-shared",
        f"-I{SOURCES}",
        f"-I{SOURCES / 'include'}",
        "-o",
        str(library),
    ]
    subprocess.run(
        [*command, *(str(SOURCES / name) for name in byteps_build.NCCL)], check=True, timeout=LIMIT
    )
    return library


@pytest.fixture(scope="session")
def collectives(tmp_path_factory) -> Path:
    return compile_collectives(tmp_path_factory.mktemp("collectives"))


@pytest.fixture(scope="session")
def portable_collectives(tmp_path_factory) -> Path:
    """The same, without the processor's float16 instructions."""
    return compile_collectives(tmp_path_factory.mktemp("portable"), "-DHOST_RUNTIME_PORTABLE")
