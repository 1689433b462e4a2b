"""A bit that flips in one rank's memory is noticed at the next checkpoint, which is not saved."""

from __future__ import annotations

import pytest

from tests.faults.jobs import SCRIPTS, patched
from tests.processes import ROOT, run_ranks
from tests.training.small_runs import command
from training.checkpoint import list_steps
from training.replicas import majority

# Flips a bit in the memory of one rank, after a step.
FLIP = """
import os
import training.step as step_module
from comm.bits import memory_of
from training.start.restoring import live_arrays
names = ("OMPI_COMM_WORLD_RANK", "DMLC_WORKER_ID")
own = int(next(os.environ[name] for name in names if name in os.environ))
Step = step_module.TrainStep
call = Step.__call__

def flipping(self, step, *given, **named):
    result = call(self, step, *given, **named)
    if (step, own) == ({step}, {rank}):
        states = self._optimizer.state_arrays()
        weights = live_arrays(self._network.bert._collect_params_with_prefix())
        memory_of({{**weights, **states}}[{name!r}])[5] ^= 1 << 6
    return result

Step.__call__ = flipping
"""
WEIGHT, MOMENT = "encoder.transformer_cells.0.ffn.ffn_1.weight", "word_embed.0.weight.var"


@pytest.mark.parametrize(
    "launcher, ranks, flipped, name", [("mpirun", 2, 0, WEIGHT), ("byteps", 3, 2, MOMENT)]
)
def test_a_flipped_bit_ends_the_run_before_it_is_saved(tmp_path, launcher, ranks, flipped, name):
    given = "--num_steps 9 --ckpt_interval 3 --log_interval 1 --seed 3"
    words = command(tmp_path / "run", *given.split())
    code = patched(ROOT / SCRIPTS[launcher], FLIP.format(step=5, rank=flipped, name=name))
    result = run_ranks(code, ranks, launcher, args=words)
    assert result.returncode == 1, result.describe()
    (line, *_) = [each for each in result.stderr.splitlines() if "error: step 6: " in each]
    assert f"{name}) of rank {flipped if ranks == 3 else 1} (" in line
    if ranks == 3:
        assert "are not the other 2 ranks', and not saved" in line
    else:
        assert "are not rank 0's (" in line and "no majority says whose are right" in line
    assert list_steps(str(tmp_path / "run")) == [3]


@pytest.mark.parametrize(
    "digests, usual, odd",
    [
        ([7, 7], [0, 1], []),
        ([7, 8], [0], [1]),
        ([8, 7, 7], [1, 2], [0]),
        ([7, 7, 8, 9, 7], [0, 1, 4], [2, 3]),
        ([7, 8, 9], [0], [1, 2]),
        ([7, 7, 8, 8], [0, 1], [2, 3]),
    ],
)
def test_the_odd_ones(digests, usual, odd):
    assert majority(dict(enumerate(digests))) == (usual, odd)
