"""Runs with --optimizer_state bfloat16: resumed, with the other type, and estimated."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert.configuration import OPERATORS_LIBRARY
from bert.weights.tensors import BFLOAT16
from tests.training.small_runs import command, parts_of, trained
from training.estimate import estimate

if not os.path.exists(OPERATORS_LIBRARY):
    pytest.skip("the fused operators have not been built", allow_module_level=True)

WORDS = ("--operators", "fused", "--num_steps", "6", "--ckpt_interval", "3", "--log_interval", "1")
LOW = ("--optimizer_state", "bfloat16")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing interrupts."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    assert trained(folder, *WORDS, *LOW, "--seed", "3") == 0
    return folder


def half_of(whole: Path, folder: Path) -> Path:
    """The same run, ended at its first checkpoint."""
    folder.mkdir()
    for file in whole.glob("0000003.*"):
        shutil.copy(file, folder)
    return folder


def states(folder: Path, step: int = 6) -> dict[str, np.ndarray]:
    with np.load(folder / f"{step:07d}.states.npz", allow_pickle=False) as file:
        return dict(file)


def test_checkpoints_have_the_moments_in_their_type(whole: Path) -> None:
    found = states(whole)
    assert {str(array.dtype) for name, array in found.items() if name != "t"} == {str(BFLOAT16)}
    assert found["t"] == 6
    assert '\noptimizer_state: "bfloat16"\n' in (whole / "run.yaml").read_text()


def test_a_resumed_run_is_the_same_to_the_bit(whole: Path, tmp_path: Path) -> None:
    folder = half_of(whole, tmp_path / "half")
    assert trained(folder, *WORDS, *LOW, "--resume") == 0  # the seed is the checkpoint's
    for name in ("0000006.params", "0000006.states.npz"):
        assert (folder / name).read_bytes() == (whole / name).read_bytes(), name


def test_a_run_goes_on_with_the_other_type(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = half_of(whole, tmp_path / "half")
    assert trained(folder, *WORDS, "--resume") == 0
    message = "--optimizer_state float32: the checkpoint's run had bfloat16; its moments are converted"
    assert message in "".join(capsys.readouterr())
    assert {array.dtype for name, array in states(folder).items() if name != "t"} == {np.dtype(np.float32)}

    for file in folder.glob("0000003.*"):  # and back again
        file.unlink()
    words = [*WORDS, *LOW, "--resume"]
    words[words.index("6")] = "7"
    assert trained(folder, *words) == 0
    assert message.replace("float32", "x").replace("bfloat16", "float32").replace("x", "bfloat16") in "".join(
        capsys.readouterr()
    )
    assert {array.dtype for name, array in states(folder, 7).items() if name != "t"} == {BFLOAT16}


def test_the_estimate_counts_it(tmp_path: Path) -> None:
    def of(*words: Any) -> Any:
        (part,) = parts_of(command(tmp_path / "run", *WORDS, *words))
        return estimate(part, "local", {})

    full, low = of(), of(*LOW)
    count = full.parts["optimizer states"] // 8
    assert low.parts["optimizer states"] == 4 * count
    assert full.copied - low.copied == 4 * count
    assert full.of_process - low.of_process == 4 * count
