"""Optimizer states divided over real ranks have the bits of one optimizer with all, and a run its files."""

from __future__ import annotations

import shutil

import mxnet as mx
import pytest

from base.errors import InputError
from tests.faults.jobs import SCRIPTS, patched
from tests.processes import ROOT, run_ranks
from tests.training.small_runs import SHAPE, command, parts_of
from tests.training.staged import arrays_of
from tests.training.test_feed import Rank
from training.checkpoint import list_steps
from training.estimate import estimate
from training.optimizer.optimizer import Rule
from training.optimizer.shards import ShardedOptimizer, shares

WORKER = """
import os
if "DMLC_ROLE" in os.environ:
    from comm.byteps.communicator import BytePSCommunicator as Communicator
else:
    from comm.horovod import HorovodCommunicator as Communicator
comm = Communicator()
import mxnet as mx
import numpy as np
from bert.operators import load_operators
from tests.training.tiny import same_bits
from training.optimizer.optimizer import Optimizer, Rule
from training.optimizer.shards import ShardedOptimizer

def weights(dtype):
    drawn = np.random.default_rng(1)
    shapes = {"c.gamma": (7,), "a.bias": (40,), "d.weight": (9, 9)}
    shapes.update({"a.transformer_cells.0.weight": (40, 7), "b.transformer_cells.0.weight": (3, 40)})
    return {name: mx.nd.array(drawn.normal(size=shape), dtype=dtype) for name, shape in shapes.items()}

def steps(optimizer, number, dtype, seed):
    drawn = np.random.default_rng(seed)
    shapes = [each.shape for each in weights(dtype).values()]
    for _ in range(number):
        optimizer.step([mx.nd.array(drawn.normal(size=shape), dtype=dtype) for shape in shapes], 0.01)

def room(name, array):
    return np.empty(array.shape, array.dtype)

def values(arrays):
    return {name: array.asnumpy() for name, array in arrays.items()}

fused = load_operators()
cases = [("lamb", "float32", fused), ("lamb", "float32", False), ("lamb", "float16", False)]
cases += [("muon", "float32", fused), ("muon", "float16", False)]
for kind, dtype, native in cases:
    whole, divided = weights(dtype), weights(dtype)
    one = Optimizer(kind, list(whole), list(whole.values()), native=native)
    sharded = ShardedOptimizer(comm, kind, divided, Rule(), native)
    steps(one, 3, dtype, 2)
    steps(sharded, 3, dtype, 2)
    assert same_bits(values(divided), values(whole)), (kind, dtype)
    state = sharded.gathered(room)
    assert same_bits(state, one.state()) if comm.rank == 0 else state == {}, dtype
    held = sum(array.size for array in sharded.state_arrays().values())
    assert held < 0.7 * sum(array.size for array in one.state_arrays().values()), held

    # Another run continues from rank 0's state, which the others do not have.
    again = {name: array.copy() for name, array in divided.items()}
    other = ShardedOptimizer(comm, kind, again, Rule(), native)
    other.take(one.state() if comm.rank == 0 else None, keeps=True)
    steps(one, 2, dtype, 3)
    steps(other, 2, dtype, 3)
    assert other.t == 5 and same_bits(values(again), values(whole)), dtype

    # Another stage begins with the masters alone.
    other = ShardedOptimizer(comm, kind, again, Rule(), native)
    other.take(one.state() if comm.rank == 0 else None, keeps=False)
    masters = {name: array for name, array in one.state().items() if name.endswith("master")}
    found = {name: array for name, array in other.gathered(room).items() if name.endswith("master")}
    assert other.t == 0 and (comm.rank or same_bits(found, masters)), dtype
    assert len(masters) == (5 if dtype == "float16" else 0)
print("as one", flush=True)
comm.close()
"""
# Rank 1 is stopped while rank 0 writes step 3: if it ended, mpirun would leave rank 0 little time.
STOPS = """
import os, signal, time, training.saving, training.step
save, step = training.saving.save, training.step.TrainStep.__call__
def call(self, number, *given, **named):
    if number == 5 and os.environ["OMPI_COMM_WORLD_RANK"] == "1":
        os.kill(os.getpid(), signal.SIGSTOP)
    return step(self, number, *given, **named)
training.saving.save = lambda *given: time.sleep(15) or save(*given)
training.step.TrainStep.__call__ = call
"""
RUN = "--num_steps 6 --ckpt_interval 3 --log_interval 1 --seed 3 --accumulate 3"


def test_shares_are_even_and_have_each_parameter_once():
    sizes = {"a": 3, "b": 9, "c": 4, "d": 1, "e": 5}
    assert shares(sizes, 1) == [list(sizes)]
    assert shares(sizes, 2) == [["a", "b"], ["c", "d", "e"]]
    assert shares(sizes, 3) == [["b"], ["d", "e"], ["a", "c"]]


@pytest.mark.parametrize("launcher, ranks", [("mpirun", 2), ("byteps", 3)])
def test_an_optimizer_over_ranks_is_one(launcher, ranks):
    result = run_ranks(WORKER, ranks, launcher)
    assert result.returncode == 0 and result.stdout.count("as one") == ranks, result.describe()


@pytest.mark.parametrize("launcher", ["mpirun", "byteps"])
def test_the_files_of_a_run_are_those_of_one_without(tmp_path, launcher):
    def run(folder: str, ranks: int, *words: str) -> None:
        given = command(tmp_path / folder, *RUN.split(), *words)
        result = run_ranks(ROOT / SCRIPTS[launcher], ranks, launcher, args=given)
        assert result.returncode == 0, result.describe()

    def files(folder: str) -> list:
        return [arrays_of(tmp_path / folder, step) for step in (3, 6)]

    run("whole", 2)
    run("divided", 2, "--shard_states")
    assert files("divided") == files("whole")
    if launcher == "mpirun":  # on another number of ranks, with and without
        for folder, words in (("again", ["--shard_states"]), ("again whole", [])):
            shutil.copytree(tmp_path / "divided", tmp_path / folder)
            run(folder, 3, "--start_step", "3", *words)
        assert files("again") == files("again whole")


def test_after_a_failure_the_checkpoint_before_is_left(tmp_path):
    """A rank that is left has a share of the states, and does not save it as if it were all; what rank 0 is
    writing at that moment it completes."""
    words = command(tmp_path / "run", *RUN.split(), "--shard_states", "--comm_timeout", "5")
    result = run_ranks(patched(ROOT / SCRIPTS["mpirun"], STOPS), 2, args=words)
    assert result.returncode != 0
    assert "step 4 is not saved: other ranks have some of its states (--shard_states)" in result.stderr
    assert list_steps(str(tmp_path / "run")) == [3]


def test_the_estimate_counts_the_share(tmp_path):
    def states(*words):
        (part,) = parts_of(command(tmp_path / "run", *RUN.split(), *words))
        return estimate(part, "hvd", {"OMPI_COMM_WORLD_SIZE": "2"}).parts["optimizer states"]

    assert states("--shard_states") == -(-states() // 2)
    units, hidden = SHAPE["hidden_size"], SHAPE["intermediate_size"]
    matrices = SHAPE["num_hidden_layers"] * (4 * units * units + 2 * units * hidden)
    assert states() - states("--optimizer", "muon") == 4 * matrices  # one moment of theirs, not two


def test_fewer_parameters_than_ranks():
    with pytest.raises(InputError, match="3 processes for 2 arrays of parameters"):
        weights = {"a": mx.nd.ones((2, 2)), "b": mx.nd.ones((2, 2))}
        ShardedOptimizer(Rank(size=3), "lamb", weights, Rule(), native=False)
