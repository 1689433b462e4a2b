"""Launches of run_pretraining_hvd.py over mpirun on this machine, and the seconds of their steps."""

from __future__ import annotations

import json
import os
import statistics
import sys
from pathlib import Path
from typing import Mapping, Sequence

from base.processes import run_in_session
from bench.workers import ROOT

WARM_UP = 2  # intervals


def command(ranks: int, script: Sequence[str], before: Sequence[str] = ()) -> list[str]:
    """The words of a launch as `make pretrain` has it, nothing bound to a core: the options `script` of the
    training script, and `before` it the words of a program that runs it."""
    mpirun = ["mpirun", "-np", str(ranks), "--oversubscribe", "--bind-to", "none"]
    mpirun += ["-mca", "mpi_yield_when_idle", "1"]
    return [*mpirun, *before, sys.executable, str(ROOT / "run_pretraining_hvd.py"), *script]


def environment(environ: Mapping[str, str], is_root: bool) -> dict[str, str]:
    """Variables of a launch, without the caller's settings of threads. The ranks find this project's modules,
    whatever folder they begin in."""
    kept = {name: value for name, value in environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    kept["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [environ.get("PYTHONPATH")])])
    if is_root:
        kept.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    return kept


def launch(words: Sequence[str], limit: float, more: Mapping[str, str]) -> tuple[int, str]:
    """Exit code and output of a launch, with the variables `more`.

    Raises:
        subprocess.TimeoutExpired: it ran for `limit` seconds, and has been ended.
    """
    return run_in_session(words, {**environment(os.environ, os.geteuid() == 0), **more}, limit)


def failure(words: Sequence[str], code: int, text: str) -> SystemExit:
    """The end of a measurement whose command has failed, with that command's last lines."""
    return SystemExit(f"{' '.join(words)}\nfailed ({code}):\n{text[-2000:]}")


def step_seconds(metrics: Path) -> float:
    """Median over the log intervals of a run, the first ones left out."""
    lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    seconds = [line["step_s"] for line in lines if "step_s" in line]
    return statistics.median(seconds[WARM_UP:] or seconds)
