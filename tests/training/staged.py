"""Runs of two stages in this process, small enough for unit tests, and what they must have in common."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Mapping

import numpy as np

from bert.weights.params_file import read_index
from tests.processes import words_of
from tests.training import small_runs
from training.inputs import Part

MODEL = "bert_1_16_2"
FIRST, SECOND = 4, 3  # steps of the stages
END = FIRST + SECOND


def words(ckpt_dir: Path, text: Any, **changes: Any) -> list[str]:
    """The command line of a run over `text` (of the fixture `corpus`); an option of None is left out."""
    chosen: dict[str, Any] = {
        "stages": "both", "raw": True, "data": text.held_out, "data_eval": text.held_out,
        "vocab": text.vocab, "cache_dir": Path(text.vocab).parent / "tokens", "model": MODEL,
        "max_seq_length": "16,32", "batch_size": "4,2", "batch_size_eval": 256, "num_buckets": 2,
        "num_steps": f"{FIRST},{SECOND}", "lr": "0.02,0.01", "warmup_ratio": "0.25,0.5",
        "log_interval": 1, "ckpt_interval": 2, "num_data_workers": 1, "progress": "none",
        "peak_tflops": 1, "seed": 5, "ckpt_dir": ckpt_dir, **changes,
    }  # fmt: skip
    return words_of(chosen)


def parts_of(ckpt_dir: Path, text: Any, **changes: Any) -> list[Part]:
    """The checked stages of a run."""
    return small_runs.parts_of(words(ckpt_dir, text, **changes))


def run(ckpt_dir: Path, text: Any, communicator: Any = None, **changes: Any) -> int:
    """Trains as the scripts do, in this process; returns the exit code."""
    return small_runs.train(words(ckpt_dir, text, **changes), communicator)


def manifest_of(ckpt_dir: Path, step: int) -> Mapping[str, Any]:
    """The manifest of a step's checkpoint."""
    return json.loads((ckpt_dir / f"{step:07d}.json").read_text())


def read_params(ckpt_dir: Path, step: int) -> dict[str, np.ndarray]:
    """The parameters of a step's checkpoint, or of its file alone."""
    return {name: tensor.read() for name, tensor in read_index(str(ckpt_dir / f"{step:07d}.params")).items()}


def states_of(ckpt_dir: Path, step: int) -> dict[str, np.ndarray]:
    """The optimizer states of a step's checkpoint."""
    with np.load(ckpt_dir / f"{step:07d}.states.npz", allow_pickle=False) as states:
        return dict(states)


def copy_step(source: Path, step: int, target: Path) -> Path:
    """Copies a step's checkpoint into another folder, which it returns."""
    target.mkdir(exist_ok=True)
    for path in source.glob(f"{step:07d}.*"):
        shutil.copy(path, target)
    return target


def arrays_of(ckpt_dir: Path, step: int) -> tuple[bytes, bytes]:
    """Parameters and optimizer states of a step's checkpoint, as bytes."""
    return tuple((ckpt_dir / f"{step:07d}{end}").read_bytes() for end in (".params", ".states.npz"))  # type: ignore
