"""Worker: this project's training step, and its matrix products alone.

    python -m bench.step_ours ours|ours_mxnet|products MODEL 128|512 float32|bfloat16|bfloat16x3

See bench/workers.py for what it reads and writes. "ours" is on the fused operators of native/operators,
"ours_mxnet" on MXNet's own, as on machines where they are not built.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Callable

import gluonnlp
import mxnet as mx
import numpy as np

from bench.ours import Kind, pretraining_step
from bench.work import DROPOUT, SQUARE, VOCABULARY, Product, Work, gflop, products
from bench.workers import ReadLoss, TakeStep, Unsupported, best_gflops, no_loss, serve
from bert.operators import load_operators
from data.pretraining.batches import dummy_batch

Multiplication = tuple[Callable[[], Any], Callable[[Any], None]]  # forward, and backward from its results


def set_up_step(work: Work, operators: str) -> tuple[TakeStep, dict[str, Any]]:
    """The step of a run of one process on the CPU; `operators` as for this option."""
    ours = pretraining_step(work.config, Kind(mx.cpu(), work.dtype, DROPOUT, operators))
    fused, size = ours.operators == "fused", work.batch
    batch = dummy_batch(*size, VOCABULARY, np.random.default_rng(0))
    count = 0

    def take_step() -> ReadLoss:
        nonlocal count
        count += 1
        sums = ours.step(count, [batch], lr=1e-4).sums
        mx.nd.waitall()

        def mean_loss() -> float:
            mlm, nsp = (float(value) for value in sums[:2].asnumpy())
            return mlm / (size.sequences * size.masked) + nsp / size.sequences

        return mean_loss

    facts = {
        "operators": "fused" if fused else "MXNet's",
        "parameters": ours.parameters,
        "gflop": gflop(products(work.config, size, top=size.needed if fused else None)),
    }
    return take_step, facts


def multiplication(product: Product, dtype: str, fused: bool) -> Multiplication:
    """Products of one shape by weights of their own: functions for forward and both of the backward pass."""
    rows = mx.nd.random.normal(shape=(product.rows, product.inner))
    gradient = mx.nd.random.normal(shape=(product.rows, product.columns))
    shape = product.columns, product.inner
    weights = [mx.nd.random.normal(0, 0.02, shape) for _ in range(product.times)]
    for array in (rows, *weights):
        array.attach_grad()
    if fused:
        packed = [mx.nd.bert_pack(weight, num_weights=1, dtype=dtype) for weight in weights]
        options = {"num_weights": 1, "bias": 0, "dtype": dtype}
    else:
        options = {"num_hidden": product.columns, "no_bias": True, "flatten": False}

    def forward() -> list[Any]:
        with mx.autograd.record():
            if fused:
                return [mx.nd.bert_dense(rows, *each, **options) for each in zip(weights, packed)]
            return [mx.nd.FullyConnected(rows, weight, None, **options) for weight in weights]

    def backward(results: list[Any]) -> None:
        for result in results:
            result.backward(gradient)

    return forward, backward


def set_up_products(work: Work) -> tuple[TakeStep, dict[str, Any]]:
    """The products of one step by weights and nothing else, on the operators that the step takes for them.

    The products inside the attention are left out: they cannot be told apart from the rest of it.
    """
    fused = load_operators() and hasattr(mx.nd, "bert_dense")
    if work.dtype != "float32" and not fused:
        raise Unsupported(f"products in {work.dtype} need the fused operators")
    everything = products(work.config, work.batch, top=work.batch.needed if fused else None)
    chosen = [product for product in everything if product.weights]

    def compute(jobs: list[Multiplication]) -> ReadLoss:
        results = [forward() for forward, _ in jobs]
        for (_, backward), result in zip(jobs, results):
            backward(result)
        mx.nd.waitall()
        return no_loss

    jobs = [multiplication(product, work.dtype, fused) for product in chosen]
    square = multiplication(Product(1, 1, SQUARE, SQUARE, SQUARE, True), work.dtype, fused)
    peak = best_gflops(lambda: compute([square]), 3 * 2 * SQUARE**3 / 1e9)
    return lambda: compute(jobs), {"gflop": gflop(chosen), "square_gflops": peak}


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
