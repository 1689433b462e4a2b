"""A BERT small enough for unit tests, batches for it, and a training step over it."""

from __future__ import annotations

import threading
from typing import Any, Sequence

import mxnet as mx
import numpy as np

from bert.configuration import BertConfig, named_config
from bert.model import build_model, initialize, live_arrays, trainable
from bert.operators import choose_operators
from comm.local import LocalCommunicator
from data.pretraining.sources import Batch
from tasks.pretraining.loss import FusedPretrainingLoss, PretrainingLoss
from tasks.pretraining.task import Pretraining
from training.optimizer.optimizer import Optimizer, Rule
from training.optimizer.scaler import LossScaler
from training.report import Reporter
from training.step import StepSettings, TrainStep

MODEL = "bert_2_32_4"
VOCAB_SIZE = 50
TASK = Pretraining()


class Heard(Reporter):
    """Keeps what a run says to people."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.warnings: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)

    def warn(self, message: str) -> None:
        self.warnings.append(message)


class Waiting(mx.operator.CustomOp):
    """Copies its input when `released` is set, which a test clears before, or after a minute; then it sets
    `computed`."""

    released, computed = threading.Event(), threading.Event()
    in_time = False

    def forward(self, is_train: Any, req: Any, in_data: Any, out_data: Any, aux: Any) -> None:
        Waiting.in_time = self.released.wait(60)
        self.assign(out_data[0], req[0], in_data[0])
        self.computed.set()


@mx.operator.register("waiting")
class WaitingProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx: Any, shapes: Any, dtypes: Any) -> Waiting:
        return Waiting()


def tiny_network(
    seed: int = 0,
    dropout: float = 0.0,
    model: str | BertConfig = MODEL,
    spread: float = 0.0,
    operators: str = "mxnet",
    dtype: str = "float32",
) -> PretrainingLoss | FusedPretrainingLoss:
    """A hybridized network on the current device, on MXNet's or the fused operators; `dtype` is that of its
    products.

    `spread` is the standard deviation of noise added to every parameter: without it biases are zero and gains
    one, and much of a gradient is too small to be compared.
    """
    config = named_config(model) if isinstance(model, str) else model
    bert = build_model(config, VOCAB_SIZE, dropout=dropout)
    device = mx.context.current_context()
    initialize(bert, device, "float32", seed)
    rng = np.random.default_rng(seed)
    for parameter in trainable(bert).values():
        noise = rng.normal(0, spread, parameter.shape)
        parameter.set_data(parameter.data() + mx.nd.array(noise))
    choose_operators(operators, dtype, device)  # loads them
    return TASK.network(bert, config, dtype, dropout, operators)


def block_arrays(block: mx.gluon.Block) -> dict[str, mx.nd.NDArray]:
    """A block's live arrays under the names that Block.save_parameters gives them."""
    return live_arrays(block._collect_params_with_prefix())


def random_batch(
    rng: np.random.Generator, rows: int, length: int, predictions: int, least_masked: int = 0
) -> Batch:
    """Sequences of 4 to `length` tokens with `least_masked` to `predictions` masks; token 0 is padding."""
    valid = rng.integers(4, length + 1, rows).astype(np.int32)
    inside = np.arange(length) < valid[:, None]
    masked = np.minimum(rng.integers(least_masked, predictions + 1, rows), valid)
    positions = np.zeros((rows, predictions), np.int32)
    ids = np.zeros((rows, predictions), np.int32)
    weights = np.zeros((rows, predictions), np.float32)
    for row, count in enumerate(masked):
        positions[row, :count] = np.sort(rng.choice(valid[row], count, replace=False))
        ids[row, :count] = rng.integers(1, VOCAB_SIZE, count)
        weights[row, :count] = 1
    return Batch(
        (rng.integers(1, VOCAB_SIZE, (rows, length)) * inside).astype(np.int32),
        ((np.arange(length) >= valid[:, None] // 2) & inside).astype(np.int32),
        valid,
        positions,
        ids,
        weights,
        rng.integers(0, 2, rows).astype(np.int32),
    )


def joined(batches: Sequence[Batch]) -> Batch:
    """All sequences of the batches as one batch, padded to the longest and the most masked."""
    columns = []
    for column in zip(*batches):
        if column[0].ndim == 2:
            width = max(array.shape[1] for array in column)
            column = [np.pad(array, ((0, 0), (0, width - array.shape[1]))) for array in column]
        columns.append(np.concatenate(column))
    return Batch(*columns)


def make_step(
    network: PretrainingLoss,
    accumulate: int = 1,
    clip_norm: float = 0.0,
    scaler: Any = None,
    communicator: Any = None,
    random_seed_of: Any = lambda step, number: step + 1000 * number,
    **optimizer_options: Any,
) -> tuple[TrainStep, Optimizer]:
    """A step with a new optimizer over all parameters of the network."""
    parameters = trainable(network.bert)
    native = optimizer_options.pop("native", isinstance(network, FusedPretrainingLoss))
    kind, moments = optimizer_options.pop("kind", "lamb"), optimizer_options.pop("moments", None)
    weights = [parameter.data() for parameter in parameters.values()]
    optimizer = Optimizer(kind, list(parameters), weights, Rule(**optimizer_options), native, moments)
    step = TrainStep(
        TASK,
        network,
        optimizer,
        scaler or LossScaler(),
        communicator or LocalCommunicator(),
        StepSettings(accumulate, clip_norm, random_seed_of),
    )
    return step, optimizer


def gradients(network: PretrainingLoss) -> dict[str, np.ndarray]:
    return {name: parameter.grad().asnumpy() for name, parameter in trainable(network.bert).items()}


def weights(network: PretrainingLoss) -> dict[str, np.ndarray]:
    return {name: parameter.data().asnumpy() for name, parameter in trainable(network.bert).items()}


def relative_difference(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> float:
    """Norm of the difference over the norm of what is expected, over all arrays together."""
    assert list(found) == list(expected)
    difference = sum(float(np.sum((found[k].astype(np.float64) - expected[k]) ** 2)) for k in expected)
    return (difference / sum(float(np.sum(expected[k].astype(np.float64) ** 2)) for k in expected)) ** 0.5


def same_bits(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> bool:
    return list(found) == list(expected) and all(
        found[name].dtype == expected[name].dtype and found[name].tobytes() == expected[name].tobytes()
        for name in expected
    )
