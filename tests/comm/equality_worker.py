"""One rank of a training run whose result must not depend on how its ranks exchange gradients.

    python tests/comm/equality_worker.py local|horovod|byteps OUTPUT_DIRECTORY [RANKS [SEED]]

It trains once for each entry of RUNS and writes, as OUTPUT_DIRECTORY/<rank>.<run>. and an ending: steps.json
(what every step saw), gradients.npz (averaged, of the first step, times the loss scale) and parameters.npz
(after the last step). A process of its own takes the micro-batches of all RANKS ranks (2 by default), one
rank's after the other's, and so the same global batch; it trains ROUNDED times more with gradients that are
rounded at random, which shows how much rounding matters to these runs. SEED is that of the data.
OMP_NUM_THREADS=1 is the caller's to set: sums in several threads are formed in another order.
RANKS_DEVICE=gpu (bench/gpu.py) gives each rank the GPU of its place.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Sequence

import mxnet as mx
import numpy as np

from bert.model import trainable
from comm.base import Communicator
from comm.local import LocalCommunicator
from data.pretraining.sources import Batch
from tasks.pretraining.loss import FusedPretrainingLoss
from tests.comm import contract_worker
from tests.training.tiny import make_step, random_batch, tiny_network, weights
from training.optimizer.scaler import DynamicScaler
from training.step import TrainStep

RANKS = 2
RUNS = {"accumulate-1": 1, "accumulate-3": 3, "accumulate-1-again": 1}  # name: micro-batches of a rank
ROUNDED = 4
STEPS = 50
OVERFLOW_STEP = 20
DATA_REPEATS_AFTER = 5  # steps: the model learns these by heart, and the losses show every lost update
# Every micro-batch has as many sequences and masked tokens as any other. A rank divides by its own numbers, a
# process of its own by those of the whole step: only so do both weigh every token alike.
ROWS, LENGTH, MASKED = 4, 16, 4
LR = 0.005
CLIP_NORM = 1.0
GROWTH_INTERVAL = 8  # the loss scale changes several times on the way
HUGE_WEIGHT = 2.0**120  # times the loss scale it is beyond float32's range


@dataclass(frozen=True)
class World:
    """Ranks of the global batch, and the seed of its content."""

    ranks: int = RANKS
    seed: int = 0


class Rounding(LocalCommunicator):
    """Rounds gradients at random as much as another order of their sums may. Of n addends each counts as one
    that is off by at most (n - 1) units of rounding (Higham, Accuracy and Stability, section 4.2), and as one
    as large as the sum. (Added to that the root of the array's mean square makes no difference.)"""

    def __init__(self, addends: int, seed: int):
        self._unit = (addends - 1) * 2.0**-24
        self._rng = np.random.default_rng(seed)

    def scaled_average(self, arrays: Sequence[Any]) -> float:
        for array in arrays:
            values = array.asnumpy().astype(np.float64)
            array[:] = values * (1 + self._unit * self._rng.uniform(-1, 1, values.shape))
        return super().scaled_average(arrays)


def make_communicator(name: str) -> Communicator:
    """With several buckets, as a large model has."""
    return contract_worker.make_communicator(name, bucket_bytes=1 << 14)


def micro_batches(step: int, accumulate: int, rank: int, world: World) -> list[Batch]:
    """A rank's share of the global batch. In OVERFLOW_STEP the last rank's last sequence makes its gradient
    overflow; the other ranks' stay finite."""
    batches = [
        random_batch(
            np.random.default_rng([step % DATA_REPEATS_AFTER, rank, number, world.seed]),
            *(ROWS, LENGTH, MASKED, MASKED),
        )
        for number in range(accumulate)
    ]
    if step == OVERFLOW_STEP and rank == world.ranks - 1:
        masked_weights = batches[-1].masked_weights.copy()
        # A pair that cancels: a large sum of weights would divide the gradient by as much.
        masked_weights[-1, :2] = HUGE_WEIGHT, -HUGE_WEIGHT
        batches[-1] = batches[-1]._replace(masked_weights=masked_weights)
    return batches


def train(communicator: Communicator, accumulate: int, path: Path, world: World) -> None:
    """One run; its files' names begin with `path`."""
    shares = range(world.ranks) if communicator.size == 1 else [communicator.rank]
    # The ranks begin apart: that they are brought together is part of what must work.
    operators = "fused" if mx.context.current_context().device_type == "cpu" else "mxnet"
    network = tiny_network(seed=communicator.rank, spread=0.1, operators=operators)
    communicator.broadcast([parameter.data() for parameter in trainable(network.bert).values()])
    scaler = DynamicScaler()
    scaler.growth_interval = GROWTH_INTERVAL
    take_step, _ = make_step(network, accumulate * len(shares), CLIP_NORM, scaler, communicator)
    seen: dict[str, list[Any]] = {"sums": [], "grad_norm": [], "applied": [], "scale": []}
    for step in range(1, STEPS + 1):
        batches = [batch for rank in shares for batch in micro_batches(step, accumulate, rank, world)]
        seen["scale"].append(scaler.scale)
        result = take_step(step, batches, lr=LR)
        seen["sums"].append(result.sums.asnumpy().tolist())
        seen["grad_norm"].append(result.grad_norm)
        seen["applied"].append(result.applied)
        if step == 1:
            np.savez(f"{path}.gradients.npz", **gradients_of(take_step, network))
    mx.nd.waitall()
    np.savez(f"{path}.parameters.npz", **weights(network))
    Path(f"{path}.steps.json").write_text(json.dumps(seen), encoding="utf-8")


def gradients_of(take_step: TrainStep, network: FusedPretrainingLoss) -> dict[str, np.ndarray]:
    """The step's averages over the ranks, by name."""
    names, factor = trainable(network.bert), np.float32(take_step.factor)
    return {name: array.asnumpy() / factor for name, array in zip(names, take_step.gradients)}


def main(backend: str, directory: Path, world: World = World()) -> None:
    communicator = make_communicator(backend)
    on_gpu = os.environ.get("RANKS_DEVICE") == "gpu"
    with mx.gpu(communicator.local_rank) if on_gpu else mx.cpu():
        for name, accumulate in RUNS.items():
            train(communicator, accumulate, directory / f"{communicator.rank}.{name}", world)
            for seed in range(ROUNDED) if backend == "local" else ():
                rounding = Rounding(accumulate * world.ranks, seed)
                train(rounding, accumulate, directory / f"{seed}.{name}.rounded", world)
        communicator.close()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), World(*map(int, sys.argv[3:])))
