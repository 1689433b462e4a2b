"""Contestants of bench/step.py, and the interpreter that each runs with."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Mapping, NamedTuple

from bench.launches import ROOT
from bench.work import Work

OURS = "ours"
PRODUCTS = "products"
NO_TORCH = (
    "PyTorch was left out: there is no environment for it. To make one: python3 -m venv .venv-torch && "
    ".venv-torch/bin/pip install torch==2.13.0 transformers  (or --torch_python, TORCH_PYTHON)"
)
# glibc's malloc gives freed memory back to the system and takes it again, page by page, unless it may not.
# PyTorch's steps are about a fifth faster with it; ours keep their memory anyway.
KEEPS_MEMORY = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(1 << 26),
}


class Contestant(NamedTuple):
    """A worker, by its key on the command line."""

    title: str
    module: str
    trains: bool = True  # False: matrix products alone

    @property
    def needs_torch(self) -> bool:
        return self.module == "bench.peer_torch"


CONTESTANTS = {
    OURS: Contestant("ours", "bench.step_ours"),
    "ours_mxnet": Contestant("ours, MXNet's operators", "bench.step_ours"),
    "torch": Contestant("Hugging Face on PyTorch", "bench.peer_torch"),
    "torch_masked": Contestant("the same, masked positions", "bench.peer_torch"),
    "torch_high": Contestant("PyTorch, matmul precision high", "bench.peer_torch"),
    "gluonnlp": Contestant("GluonNLP", "bench.peer_gluonnlp"),
    PRODUCTS: Contestant("our matrix products alone", "bench.step_ours", trains=False),
    "products_torch": Contestant("PyTorch's products alone", "bench.peer_torch", trains=False),
}
# A large model's step takes long, and the peers differ there as they do on a small one.
DEFAULTS = {"large": (OURS, "torch", "gluonnlp", PRODUCTS)}
DEFAULT = (OURS, "ours_mxnet", "torch", "torch_masked", "gluonnlp", PRODUCTS)


def find_torch_python(given: str | None, environ: Mapping[str, str], root: Path = ROOT) -> str | None:
    """The interpreter of an environment with torch: `given`, else TORCH_PYTHON, else .venv-torch; None where
    there is none.

    Raises:
        ValueError: the one that is named does not exist.
    """
    for source, path in (("--torch_python", given), ("TORCH_PYTHON", environ.get("TORCH_PYTHON"))):
        if path:
            if not os.access(path, os.X_OK) or os.path.isdir(path):
                raise ValueError(f"{source} {path}: there is no such program")
            return os.path.abspath(path)
    own = root / ".venv-torch" / "bin" / "python"
    return str(own) if own.exists() else None


def environment(peer: bool, environ: Mapping[str, str]) -> dict[str, str]:
    """Variables of a worker: a peer's malloc keeps its memory."""
    return {**environ, **KEEPS_MEMORY} if peer else dict(environ)


def command(key: str, work: Work, torch_python: str | None) -> list[str]:
    """The worker's command line; ValueError where it needs torch and there is none."""
    contestant = CONTESTANTS[key]
    if contestant.needs_torch and torch_python is None:
        raise ValueError("no environment with torch")
    python = torch_python if contestant.needs_torch else sys.executable
    return [str(python), "-m", contestant.module, key, *work.words]
