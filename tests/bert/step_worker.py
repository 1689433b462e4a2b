"""One rank of a run that takes optimizer steps on known batches; prints what it saw as JSON.

    step_worker.py OUTPUT_DIRECTORY

Run alone it takes the batches of both ranks as two micro-batches, which must give what two ranks give.
"""

from __future__ import annotations

import json
import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")

import mxnet as mx  # noqa: E402
import numpy as np  # noqa: E402

from bert.accumulation import make_accumulation  # noqa: E402
from bert.errors import TrainingError  # noqa: E402
from bert.loss import PretrainingLoss  # noqa: E402
from bert.model import build_model, initialize, trainable  # noqa: E402
from bert.optimizer import Optimizer  # noqa: E402
from bert.scaler import SkipCounter, StaticScaler  # noqa: E402
from bert.step import TrainStep  # noqa: E402
from comm.horovod import HorovodCommunicator  # noqa: E402
from data.batches import Batch, dummy_batch  # noqa: E402

VOCAB, ROWS, LENGTH, PREDICTIONS = 97, 4, 16, 3


def batch(step: int, share: int) -> Batch:
    return dummy_batch(ROWS, LENGTH, PREDICTIONS, VOCAB, np.random.default_rng([step, share]))


def poisoned(clean: Batch) -> Batch:
    weights = clean.masked_weights.copy()
    weights[0, 0] = np.nan
    return clean._replace(masked_weights=weights)


def main(directory: str) -> None:
    communicator = HorovodCommunicator()
    device = mx.cpu()
    bert = build_model("bert_2_16_2", VOCAB, dropout=0.0)
    initialize(bert, device, "float32", seed=1)
    network = PretrainingLoss(bert, "float32")
    network.hybridize(static_alloc=True, static_shape=True)
    parameters = trainable(bert)
    optimizer = Optimizer("lamb", list(parameters), [each.data() for each in parameters.values()])
    shares = [communicator.rank] if communicator.size > 1 else [0, 1]
    accumulate = len(shares)
    take_step = TrainStep(
        network,
        make_accumulation(list(parameters.values()), device, accumulate, network.adds_in_backward),
        optimizer, StaticScaler(), communicator, device, 1.0, lambda step: step,
    )  # fmt: skip
    skips = SkipCounter()
    seen = {"applied": [], "grad_norm": [], "unchanged": None, "keep_going": []}

    for step in range(1, 6):
        result = take_step(step, [batch(step, share) for share in shares], lr=0.01)
        seen["applied"].append(result.applied)
        seen["grad_norm"].append(result.grad_norm)
    values = {name: each.data().asnumpy() for name, each in parameters.items()}
    np.savez(os.path.join(directory, f"after-{communicator.size}-{communicator.rank}.npz"), **values)

    if communicator.size > 1:
        # Only the last rank meets the bad data.
        last = communicator.rank == communicator.size - 1
        message = None
        try:
            for step in range(6, 40):
                share = batch(step, communicator.rank)
                result = take_step(step, [poisoned(share) if last else share], lr=0.01)
                seen["applied"].append(result.applied)
                skips.update(result.applied, step, "0000005.params")
        except TrainingError as error:
            message = str(error)
        seen["message"] = message
        seen["unchanged"] = all(
            np.array_equal(values[name], each.data().asnumpy()) for name, each in parameters.items()
        )
        # Only rank 0 is asked to stop.
        result = take_step(40, [batch(40, communicator.rank)], lr=0.01, keep_going=communicator.rank != 0)
        seen["keep_going"] = result.keep_going
    print(json.dumps(seen), flush=True)
    communicator.close()


if __name__ == "__main__":
    main(sys.argv[1])
