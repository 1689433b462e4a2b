"""Worker: this project's training step at any size, for bench/scaling.py.

    python -m bench.scaling_worker layers=4 units=512 heads=8 vocabulary=30522 length=128 batch=8 \\
        dtype=float32

See bench/serve.py for what it reads and writes. "step" is the whole step of training/step.py; "update" takes
the update by LAMB alone, on the gradient that the last step has left.
"""

from __future__ import annotations

import sys
from typing import Any

import mxnet as mx
import numpy as np

from base.errors import InputError
from bench.scaling_work import Point
from bench.serve import ReadLoss, TakeStep, Unsupported, no_loss, peak_bytes, serve
from bench.work import DROPOUT
from bert.model import build_model, initialize, trainable
from bert.operators import choose_operators
from comm.local import LocalCommunicator
from data.pretraining.batches import dummy_batch
from tasks.pretraining.task import Pretraining
from training.optimizer.optimizer import Optimizer
from training.optimizer.scaler import StaticScaler
from training.step import StepSettings, TrainStep

CLIP_NORM, LR = 1.0, 1e-4


def set_up(point: Point) -> tuple[dict[str, TakeStep], dict[str, Any]]:
    """The steps, and the memory that the process held before it had a model."""
    imported = peak_bytes()
    device, task = mx.cpu(), Pretraining()
    try:
        operators = choose_operators("auto", point.dtype, device, point.config)
    except InputError as reason:
        raise Unsupported(str(reason)) from None
    bert = build_model(point.config, point.vocabulary, DROPOUT)
    initialize(bert, device, "float32", seed=0)
    parameters = trainable(bert)
    weights = [parameter.data(device) for parameter in parameters.values()]
    optimizer = Optimizer("lamb", list(parameters), weights, native=operators == "fused")
    network = task.network(bert, point.config, point.dtype, DROPOUT, operators)
    settings = StepSettings(1, CLIP_NORM, lambda step, number: step)  # seeds of dropout
    step = TrainStep(task, network, optimizer, StaticScaler(), LocalCommunicator(), settings)
    sizes = (point.batch, point.length, point.masked)
    batch = dummy_batch(*sizes, point.vocabulary, np.random.default_rng(0))
    count = 0

    def take_step() -> ReadLoss:
        nonlocal count
        count += 1
        result = step(count, [batch], lr=LR)
        mx.nd.waitall()
        return lambda: float(result.sums[0].asscalar()) / (point.batch * point.masked)

    def update() -> ReadLoss:
        optimizer.step(step.gradients, lr=LR)
        mx.nd.waitall()
        return no_loss

    parameter_count = sum(int(np.prod(each.shape)) for each in parameters.values())
    facts = {"imported_bytes": imported, "parameters": parameter_count, "operators": operators}
    return {"step": take_step, "update": update}, facts


if __name__ == "__main__":
    serve(lambda: set_up(Point.read(sys.argv[1:])))
