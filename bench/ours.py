"""This project's pretraining step in one process, as training/run.py puts it together, for workers."""

from __future__ import annotations

from typing import NamedTuple

import mxnet as mx

from base.errors import InputError
from bench.work import VOCABULARY
from bench.workers import Unsupported
from bert.configuration import BertConfig
from bert.model import build_model, initialize, trainable
from bert.operators import choose_operators
from comm.local import LocalCommunicator
from tasks.pretraining.task import Pretraining
from training.optimizer.optimizer import Optimizer
from training.optimizer.scaler import LossScaler, StaticScaler
from training.step import StepSettings, TrainStep

CLIP_NORM = 1.0


class Ours(NamedTuple):
    """The step, the operators it runs on ("fused" or "mxnet"), and the numbers that it trains."""

    step: TrainStep
    operators: str
    parameters: int


class Kind(NamedTuple):
    """Device, number types and operators of a step."""

    device: mx.Context
    dtype: str
    dropout: float = 0.0
    operators: str = "auto"  # as for this option


def pretraining_step(
    config: BertConfig, kind: Kind, accumulate: int = 1, scaler: LossScaler | None = None
) -> Ours:
    """Forward, backward, norm, agreement, clipping, LAMB.

    Raises:
        Unsupported: the device cannot compute in this dtype.
    """
    task = Pretraining()
    try:
        operators = choose_operators(kind.operators, kind.dtype, kind.device)
    except InputError as reason:
        raise Unsupported(str(reason)) from None
    bert = build_model(config, VOCABULARY, kind.dropout)
    initialize(bert, kind.device, "float32", seed=0)
    parameters = trainable(bert)
    weights = [parameter.data(kind.device) for parameter in parameters.values()]
    optimizer = Optimizer("lamb", list(parameters), weights, native=operators == "fused")
    network = task.network(bert, config, kind.dtype, kind.dropout, operators)
    settings = StepSettings(accumulate, CLIP_NORM, lambda step, number: step)  # seeds of dropout
    step = TrainStep(task, network, optimizer, scaler or StaticScaler(), LocalCommunicator(), settings)
    return Ours(step, operators, sum(weight.size for weight in weights))
