"""Worker: this project's training step, and its matrix products alone.

    python -m bench.step_ours ours|ours_mxnet|products MODEL 128|512 float32|bfloat16|bfloat16x3

See bench/serve.py for what it reads and writes. The step is the one of training/run.py: forward, backward,
norm, agreement, clipping, LAMB. "ours" is on the fused operators of native/operators, "ours_mxnet" on MXNet's
own, as on machines where they are not built.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import gluonnlp
import mxnet as mx
import numpy as np

from base.errors import InputError
from bench.serve import ReadLoss, TakeStep, Unsupported, best_gflops, no_loss, serve
from bench.work import DROPOUT, MODELS, VOCABULARY, Batch, Product, Work, gflop, products
from bert.configuration import named_config
from bert.model import build_model, initialize, trainable
from bert.operators import choose_operators, load_operators
from comm.local import LocalCommunicator
from data.pretraining.batches import dummy_batch
from tasks.pretraining.task import Pretraining
from training.optimizer.optimizer import Optimizer
from training.optimizer.scaler import StaticScaler
from training.step import StepSettings, TrainStep

SQUARE = 2048  # rows and columns of the product that gives the machine's peak
CLIP_NORM = 1.0


def set_up_step(work: Work, operators: str) -> tuple[TakeStep, dict[str, Any]]:
    """The step of a run of one process on the CPU; `operators` as for this option."""
    config, device, task = named_config(MODELS.get(work.model, work.model)), mx.cpu(), Pretraining()
    try:
        operators = choose_operators(operators, work.dtype, device, config)
    except InputError as reason:
        raise Unsupported(str(reason)) from None
    fused = operators == "fused"
    bert = build_model(config, VOCABULARY, DROPOUT)
    initialize(bert, device, "float32", seed=0)
    parameters = trainable(bert)
    weights = [parameter.data(device) for parameter in parameters.values()]
    optimizer = Optimizer("lamb", list(parameters), weights, native=fused)
    network = task.network(bert, config, work.dtype, DROPOUT, operators)
    settings = StepSettings(1, CLIP_NORM, lambda step, number: step)  # seeds of dropout
    step = TrainStep(task, network, optimizer, StaticScaler(), LocalCommunicator(), settings)
    batch = dummy_batch(*work.batch, VOCABULARY, np.random.default_rng(0))
    count = 0

    def take_step() -> ReadLoss:
        nonlocal count
        count += 1
        result = step(count, [batch], lr=1e-4)
        mx.nd.waitall()
        return lambda: mean_loss(result.sums, work.batch)

    facts = {
        "operators": "fused" if fused else "MXNet's",
        "parameters": sum(int(np.prod(each.shape)) for each in parameters.values()),
        "gflop": gflop(products(work.size, work.batch, top=work.batch.needed if fused else None)),
    }
    return take_step, facts


def mean_loss(sums: Any, batch: Batch) -> float:
    mlm, nsp = (float(value) for value in sums[:2].asnumpy())
    return mlm / (batch.sequences * batch.masked) + nsp / batch.sequences


class Multiplication:
    """Products of one shape by weights of their own: forward, then both of the backward pass."""

    def __init__(self, product: Product, dtype: str, fused: bool):
        self._fused, self._dtype, self._columns = fused, dtype, product.columns
        self._input = mx.nd.random.normal(shape=(product.rows, product.inner))
        self._input.attach_grad()
        self._weights = [
            mx.nd.random.normal(0, 0.02, (product.columns, product.inner)) for _ in range(product.times)
        ]
        self._gradient = mx.nd.random.normal(shape=(product.rows, product.columns))
        for weight in self._weights:
            weight.attach_grad()
        if fused:
            self._packed = [mx.nd.bert_pack(weight, num_weights=1, dtype=dtype) for weight in self._weights]

    def forward(self) -> list[Any]:
        with mx.autograd.record():
            return [self._product(index) for index in range(len(self._weights))]

    def backward(self, results: list[Any]) -> None:
        for result in results:
            result.backward(self._gradient)

    def _product(self, index: int) -> Any:
        weight = self._weights[index]
        if not self._fused:
            return mx.nd.FullyConnected(
                self._input, weight, None, num_hidden=self._columns, no_bias=True, flatten=False
            )
        return mx.nd.bert_dense(
            self._input, weight, self._packed[index], num_weights=1, bias=0, dtype=self._dtype
        )


def set_up_products(work: Work) -> tuple[TakeStep, dict[str, Any]]:
    """The products of one step by weights and nothing else, on the operators that the step takes for them.

    The products inside the attention are left out: they cannot be told apart from the rest of it.
    """
    fused = load_operators() and hasattr(mx.nd, "bert_dense")
    if work.dtype != "float32" and not fused:
        raise Unsupported(f"products in {work.dtype} need the fused operators")
    everything = products(work.size, work.batch, top=work.batch.needed if fused else None)
    chosen = [product for product in everything if product.weights]
    jobs = [Multiplication(product, work.dtype, fused) for product in chosen]

    def take_step() -> ReadLoss:
        results = [job.forward() for job in jobs]
        for job, result in zip(jobs, results):
            job.backward(result)
        mx.nd.waitall()
        return no_loss

    square = Multiplication(Product(1, 1, SQUARE, SQUARE, SQUARE, True), work.dtype, fused)

    def multiply() -> None:
        square.backward(square.forward())
        mx.nd.waitall()

    peak = best_gflops(multiply, 3 * 2 * SQUARE**3 / 1e9)
    return take_step, {"gflop": gflop(chosen), "square_gflops": peak}


def main() -> None:
    kind, *words = sys.argv[1:]
    work = Work.read(words)

    def set_up() -> tuple[TakeStep, dict[str, Any]]:
        if kind == "products":
            take_step, facts = set_up_products(work)
        else:
            take_step, facts = set_up_step(work, "auto" if kind == "ours" else "mxnet")
        mx.nd.waitall()
        versions = {"MXNet": mx.__version__, "GluonNLP": gluonnlp.__version__}
        return take_step, {**versions, "threads": int(os.environ["OMP_NUM_THREADS"]), **facts}

    serve(set_up)


if __name__ == "__main__":
    main()
