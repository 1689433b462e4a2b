"""One rank of a run that takes optimizer steps on known batches; prints what it saw as JSON.

    step_worker.py OUTPUT_DIRECTORY

A step has three micro-batches: two of rank 0 and one of rank 1. Rank 0 then takes all of them by itself,
which must give what two ranks give.
"""

from __future__ import annotations

import json
import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")

import mxnet as mx  # noqa: E402
import numpy as np  # noqa: E402

from base.errors import TrainingError  # noqa: E402
from bert.configuration import named_config
from bert.model import build_model, initialize, trainable  # noqa: E402
from comm.base import Communicator, DelegatingCommunicator  # noqa: E402
from comm.horovod import HorovodCommunicator  # noqa: E402
from comm.local import LocalCommunicator  # noqa: E402
from data.pretraining.batches import dummy_batch  # noqa: E402
from data.pretraining.sources import Batch  # noqa: E402
from data.sharing import Share  # noqa: E402
from tasks.pretraining.loss import PretrainingLoss  # noqa: E402
from tasks.pretraining.task import Pretraining  # noqa: E402
from training.optimizer.optimizer import Optimizer  # noqa: E402
from training.optimizer.scaler import SkipCounter, StaticScaler  # noqa: E402
from training.step import StepSettings, TrainStep  # noqa: E402

VOCAB, ROWS, LENGTH, PREDICTIONS = 97, 4, 16, 3


def batch(step: int, number: int) -> Batch:
    """The micro-batches differ in their numbers of masks."""
    made = dummy_batch(ROWS, LENGTH, PREDICTIONS, VOCAB, np.random.default_rng([step, number]))
    made.masked_weights[:, PREDICTIONS - number :] = 0
    return made


def poisoned(clean: Batch) -> Batch:
    weights = clean.masked_weights.copy()
    weights[0, 0] = np.nan
    return clean._replace(masked_weights=weights)


class Run:
    """A network and its optimizer, and five steps with known batches."""

    def __init__(self, communicator: Communicator) -> None:
        self.rank, device = communicator.rank, mx.cpu()
        bert = build_model(named_config("bert_2_16_2"), VOCAB, dropout=0.0)
        initialize(bert, device, "float32", seed=1)
        network = PretrainingLoss(bert, "float32")
        network.hybridize(static_alloc=True, static_shape=True)
        self.parameters = trainable(bert)
        arrays = [each.data() for each in self.parameters.values()]
        self.own = Share(communicator.rank, communicator.size, 3).own
        self.take_step = TrainStep(
            Pretraining(), network, Optimizer("lamb", list(self.parameters), arrays),
            StaticScaler(), communicator, StepSettings(len(self.own), 1.0, lambda step, number: step),
        )  # fmt: skip
        self.seen = {"applied": [], "grad_norm": []}
        for step in range(1, 6):
            result = self.take_step(step, [batch(step, number) for number in self.own], lr=0.01)
            self.seen["applied"].append(result.applied)
            self.seen["grad_norm"].append(result.grad_norm)

    def values(self) -> dict[str, np.ndarray]:
        return {name: each.data().asnumpy() for name, each in self.parameters.items()}


def meet_bad_data(run: Run, last: bool) -> None:
    """Only the last rank does."""
    values, skips = run.values(), SkipCounter()
    try:
        for step in range(6, 40):
            batches = [batch(step, number) for number in run.own]
            result = run.take_step(step, [poisoned(batches[0])] if last else batches, lr=0.01)
            run.seen["applied"].append(result.applied)
            skips.update(result.applied, step, "the last good checkpoint is 0000005.params")
    except TrainingError as error:
        run.seen["message"] = str(error)
    run.seen["unchanged"] = all(np.array_equal(values[name], found) for name, found in run.values().items())


def main(directory: str) -> None:
    communicator = HorovodCommunicator()
    run = Run(communicator)
    divided = Run(DelegatingCommunicator(communicator))  # whose gradients are divided by the communicator
    np.savez(os.path.join(directory, f"rank-{run.rank}.npz"), **run.values())
    run.seen["factors"] = [run.take_step.factor, divided.take_step.factor]
    run.seen["as_if_divided"] = divided.seen["grad_norm"] == run.seen["grad_norm"] and all(
        np.array_equal(value, divided.values()[name]) for name, value in run.values().items()
    )
    meet_bad_data(run, last=run.rank == communicator.size - 1)
    # Only rank 0 is asked to stop.
    result = run.take_step(40, [batch(40, number) for number in run.own], lr=0.01, keep_going=run.rank != 0)
    run.seen["keep_going"] = result.keep_going
    if run.rank == 0:
        alone = Run(LocalCommunicator())
        np.savez(os.path.join(directory, "alone.npz"), **alone.values())
        run.seen["alone"] = alone.seen
    print(json.dumps(run.seen), flush=True)
    communicator.close()


if __name__ == "__main__":
    main(sys.argv[1])
