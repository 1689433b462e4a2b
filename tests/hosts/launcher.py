"""Words that start hosts/launch.py, up to its options; the line of another command that rejects its words."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Callable

from tests.processes import ROOT

LAUNCH = [sys.executable, ROOT / "hosts" / "launch.py"]
HVD, BYTEPS = ([*LAUNCH, "--backend", backend] for backend in ("hvd", "byteps"))


def on(folder: Path, *lines: str, backend: str = "byteps") -> list[Any]:
    """The words with a host file of these lines."""
    hostfile = folder / "hosts"
    hostfile.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return [*LAUNCH, "--backend", backend, "--hostfile", hostfile]


def rejected(main: Callable[[list[str]], int], capsys: Any, *words: object) -> str:
    """The only line of a command that rejects its words and writes nothing else; in this process."""
    try:
        code: Any = main([*map(str, words)])
    except SystemExit as stop:  # argparse's own errors
        code = stop.code
    out, err = capsys.readouterr()
    assert (code, out) == (2, "") and err.count("\n") == 1, err
    return err
