"""The virtual environment ``.venv``, its pinned packages, and the record of a completed set-up.

One default is changed in it. Unless BYTEPS_NUMA_ON=0 is set, bpslaunch ties ranks to cores. Its rule halves
the cores of each NUMA node, and for one rank of a worker a second time. Where nothing is left for a rank (one
rank on fewer than 4 cores, more ranks than half of the cores) it ends in an IndexError, while scheduler and
servers wait for a worker that never comes. BytePS's own files stay as they are: a line in .venv, which Python
reads when it starts, sets the variable for bpslaunch unless it is set.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Sequence

from setup.byteps_build import native_files
from setup.errors import SetupError
from setup.progress import Progress
from setup.wanted import Wanted, mxnet_requirement

UNBOUND = "bpslaunch_without_binding.pth"
# One line: the site module executes lines that begin with `import`, in every process of the environment. Only
# bpslaunch is affected, and it passes the variable on; one that is set stays.
LINE = (
    "import os, sys; "
    "os.path.basename((getattr(sys, 'argv', None) or [''])[0]) == 'bpslaunch' and "
    "os.environ.setdefault('BYTEPS_NUMA_ON', '0')\n"
)


class Environment:
    """``.venv`` in ``root``. Its ``setup.json`` exists once pip runs in it and records when all is there."""

    def __init__(self, root: Path) -> None:
        self.venv = root / ".venv"
        self.python = self.venv / "bin" / "python"
        self.record = self.venv / "setup.json"
        # As they are now: what changes while the set-up runs is not what it works from.
        digest = hashlib.sha256()
        sources = [*root.glob("requirements*.txt"), *native_files(root / "native")]
        for source in sorted([*sources, *(root / "setup").glob("*.py")]):
            digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
        self._made_from = digest.digest()

    def recorded_cuda(self) -> str | None:
        """Device of an earlier set-up: "cpu" or a CUDA version; None if there was none."""
        cuda = self._read().get("cuda")
        return cuda if isinstance(cuda, str) else None

    def complete(self, cuda: str, open_mpi: str) -> bool:
        """Returns whether a set-up for exactly this ended well and its interpreter is still there."""
        return self.python.exists() and self._read().get("made_from") == self._fingerprint(cuda, open_mpi)

    def summary(self) -> str:
        """A few words for people."""
        return f".venv, Python {_version()}, {mxnet_requirement(self.recorded_cuda() or 'cpu')}"

    def check_own(self) -> None:
        """Checks that `.venv` is a folder: `venv --clear` would empty the one that a link names.

        Raises:
            SetupError: it is a link.
        """
        if self.venv.is_symlink():
            raise SetupError(
                f".venv is a link to {os.readlink(self.venv)}, which set-up would empty; remove the link and "
                "run make again."
            )

    def create(self, cuda: str, progress: Progress) -> None:
        """Makes the environment, unless there is one for this Python, this folder and this kind of MXNet.

        An environment that was left unfinished, was copied from elsewhere, or has lost its Python is made
        anew.

        Raises:
            SetupError: it cannot be made.
        """
        if not self._usable() or self.recorded_cuda() != cuda:
            if self.venv.exists():
                progress.note("making it anew: it was incomplete, or for another Python, folder or CUDA")
            progress.run([base_python(), "-m", "venv", "--clear", str(self.venv)], "making .venv")
        self._write(cuda, None)

    def finish(self, cuda: str, open_mpi: str) -> None:
        """Records that all is complete."""
        self._write(cuda, self._fingerprint(cuda, open_mpi))

    def install_requirements(self, wanted: Wanted, folder: Path, progress: Progress) -> None:
        """Installs the pinned packages from the wheels in ``folder``; needs no network.

        Raises:
            SetupError: pip failed.
        """
        options = ["--no-index", "--find-links", str(folder)]
        progress.run(self._pip_install([*options, *wanted.requirements]), "installing")

    def install_wheels(self, wheels: Sequence[Path], progress: Progress) -> None:
        """Installs the built wheels, also over an earlier or interrupted installation.

        Raises:
            SetupError: pip failed.
        """
        options = ["--no-deps", "--no-index", "--force-reinstall"]
        progress.run(self._pip_install([*options, *map(str, wheels)]), "installing the wheels")
        leave_ranks_unbound(self.venv)

    def _pip_install(self, arguments: Sequence[str]) -> list[str]:
        return [str(self.python), "-m", "pip", "install", "--disable-pip-version-check", *arguments]

    def _usable(self) -> bool:
        if not self.record.exists() or not self.python.exists():
            return False
        # Scripts name their interpreter by its full path, so a copy of a clone would run the original's.
        try:
            with open(self.venv / "bin" / "pip", errors="replace") as file:
                if f"{self.venv}/bin/" not in file.read(4096):
                    return False
        except OSError:
            return False
        script = "import sys, pip; print(sys.base_prefix, '.'.join(map(str, sys.version_info[:3])))"
        answer = subprocess.run([self.python, "-c", script], stdin=subprocess.DEVNULL, capture_output=True)
        return answer.returncode == 0 and answer.stdout.decode().strip() == f"{sys.base_prefix} {_version()}"

    def _fingerprint(self, cuda: str, open_mpi: str) -> str:
        digest = hashlib.sha256(self._made_from)
        for part in [str(self.venv), sys.base_prefix, _version(), cuda, open_mpi]:
            digest.update(part.encode() + b"\0")
        return digest.hexdigest()

    def _read(self) -> dict[str, Any]:
        try:
            content = json.loads(self.record.read_text())
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    def _write(self, cuda: str, made_from: str | None) -> None:
        _replace(self.record, json.dumps({"cuda": cuda, "python": _version(), "made_from": made_from}))


def leave_ranks_unbound(venv: Path) -> Path:
    """Makes BYTEPS_NUMA_ON=0 the default of bpslaunch in `venv`, an environment of this Python; returns the
    file that does it."""
    version = ".".join(map(str, sys.version_info[:2]))
    target = venv / "lib" / f"python{version}" / "site-packages" / UNBOUND
    _replace(target, LINE)
    return target


def base_python() -> str:
    """The interpreter below any virtual environment, ``.venv`` included, which making it anew would empty."""
    return os.path.realpath(sys.executable)


def _replace(path: Path, text: str) -> None:
    """Writes a file that appears whole or not at all."""
    temporary = path.with_suffix(".tmp")
    with open(temporary, "w", encoding="ascii") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _version() -> str:
    return ".".join(map(str, sys.version_info[:3]))
