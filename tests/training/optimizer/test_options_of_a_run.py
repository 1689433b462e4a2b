"""The optimizer's options in a real run: from one checkpoint to the next, in float64 NumPy."""

from __future__ import annotations

import numpy as np

from bert.weights.params_file import read_index
from tests.training.small_runs import trained
from training.optimizer.optimizer import is_excluded

WORDS = (
    *("--optimizer", "bertadam", "--num_steps", 8, "--warmup_ratio", 0.25, "--lr", 0.1),
    *("--ckpt_interval", 1, "--dropout", 0),
)
GIVEN = {"beta1": 0.7, "beta2": 0.9, "epsilon": 1e-3, "weight_decay": 0.3}


def test_a_step_has_the_numbers_that_are_given(tmp_path):
    options = [word for name, value in GIVEN.items() for word in (f"--{name}", value)]
    assert trained(tmp_path / "run", *WORDS, *options) == 0
    weights, means, variances = [], [], []
    for step in (1, 2):
        with np.load(tmp_path / f"run/{step:07d}.states.npz") as states:
            names = [name[:-5] for name in states if name.endswith(".mean")]
            for kind, found in ((".mean", means), (".var", variances)):
                found.append({name: states[name + kind].astype(np.float64) for name in names})
        index = read_index(str(tmp_path / f"run/{step:07d}.params"))
        weights.append({name: index[name].read().astype(np.float64) for name in names})
    for name in names:
        # The first step's moments are those of its gradient alone.
        first = means[0][name] / (1 - GIVEN["beta1"])
        np.testing.assert_allclose(
            variances[0][name], (1 - GIVEN["beta2"]) * first**2, rtol=1e-5, atol=1e-14, err_msg=name
        )
        gradient = (means[1][name] - GIVEN["beta1"] * means[0][name]) / (1 - GIVEN["beta1"])
        expected = GIVEN["beta2"] * variances[0][name] + (1 - GIVEN["beta2"]) * gradient**2
        np.testing.assert_allclose(variances[1][name], expected, rtol=1e-3, atol=1e-9, err_msg=name)
        update = means[1][name] / (np.sqrt(variances[1][name]) + GIVEN["epsilon"])
        if not is_excluded(name):
            update += GIVEN["weight_decay"] * weights[0][name]
        moved = weights[1][name] - weights[0][name]
        np.testing.assert_allclose(moved, -0.1 * update, rtol=1e-4, atol=1e-6, err_msg=name)
