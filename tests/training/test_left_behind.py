"""Parts of a pipeline's stages that a failure has left, joined by the next start."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bert.weights.params_file import read_index
from tests.training.test_checkpoint import FACTS
from training.checkpoint import list_steps, newest_complete, save
from training.left_behind import ORDER, PARTS, bring_back, folder_of_part


@pytest.mark.parametrize(
    ("steps", "joined"), [((6, 6), True), ((6, 5), False), ((6,), False), ((2, 2), False)]
)
def test_parts_of_one_step_that_is_newer_are_a_checkpoint(steps, joined, tmp_path):
    folder, said = str(tmp_path), []
    save(folder, 3, {"a": np.ones(2, np.float32)}, {"t": np.array(3)}, FACTS)
    for stage, step in enumerate(steps):
        own = {f"{stage}.weight": np.full(2, stage, np.float32), "word": np.ones(3, np.float32)}
        save(
            folder_of_part(folder, stage, 2),
            step,
            own,
            {"t": np.array(step), f"{stage}.weight.mean": own["word"], f"{stage}.weight.var": own["word"]},
            {**FACTS, ORDER: ["1.weight", "word", "0.weight"]},
        )
    bring_back(folder, said.append)
    assert list_steps(folder) == ([3, 6] if joined else [3]) and not Path(folder, PARTS).exists()
    assert said == (["the checkpoint of step 6 is joined from the parts of 2 stages"] if joined else [])
    if joined:
        found = newest_complete(folder, pytest.fail)
        assert list(read_index(found.params_path)) == ["1.weight", "word", "0.weight"]
        with found.open_states() as states:
            assert (
                list(states)
                == ["t", *(f"{stage}.weight.{kind}" for stage in (1, 0) for kind in ("mean", "var"))]
                and states["t"] == 6
            )
        assert found.manifest["seed"] == FACTS["seed"] and ORDER not in found.manifest
