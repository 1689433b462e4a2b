"""Worker: this project's training steps in one process, as training/run.py puts them together.

    python -m bench.ours step ours|ours_mxnet|products MODEL 128|512 float32|bfloat16|bfloat16x3
    python -m bench.ours finetune FOLDER float32|bfloat16
    python -m bench.ours pretraining FOLDER SEED
    python -m bench.ours latency FOLDER float32|bfloat16 SIZE ...

See bench/workers.py for what it reads and writes, bench/trainings.py for the folder. "ours" is on the fused
operators of native/operators, "ours_mxnet" on MXNet's own, as on machines where they are not built, and
"products" the matrix products of the step alone.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Callable, Mapping, NamedTuple, Sequence

import gluonnlp
import mxnet as mx
import numpy as np

from base.errors import InputError
from bench.trainings import (
    MODEL,
    OURS,
    PAIRS,
    PRETRAINING,
    WINDOWS,
    Arrays,
    ReadLosses,
    Settings,
    head_weights,
    latency_step,
    model_name,
    read_settings,
    serve_finetuning,
    serve_pretraining,
)
from bench.work import DROPOUT, VOCABULARY, Product, Work, gflop, products
from bench.workers import ReadResults, Steps, TakeStep, Unsupported, nothing, serve
from bert.configuration import BertConfig
from bert.model import build_model, initialize, network_parameters, trained
from bert.operators import choose_operators, load_operators
from bert.weights.opening import open_weights
from comm.local import LocalCommunicator
from data.classification.features import Batch as PairBatch
from data.pretraining.batches import Batch, dummy_batch
from data.questions.windows import QuestionBatch
from tasks.base import Task
from tasks.classification.task import Classification
from tasks.pretraining.task import Pretraining
from tasks.squad.task import QuestionAnswering
from training.optimizer.optimizer import Optimizer, Rule
from training.optimizer.scaler import LossScaler
from training.step import StepSettings, TrainStep, dropout_seed
from training.utilisation import matrix_peak

CLIP_NORM = 1.0
PEAK_SECONDS = 1.5


class Kind(NamedTuple):
    """Device, number types and operators of a network."""

    device: mx.Context
    dtype: str
    dropout: float = 0.0
    operators: str = "auto"  # as for this option


class Network:
    """A task's network with random parameters.

    Raises:
        Unsupported: the device cannot compute in this dtype.
    """

    def __init__(self, task: Task, config: BertConfig, vocab_size: int, kind: Kind):
        try:
            self.operators = choose_operators(kind.operators, kind.dtype, kind.device)
        except InputError as reason:
            raise Unsupported(str(reason)) from None
        self.task = task
        bert = build_model(config, vocab_size, kind.dropout, task.heads)
        initialize(bert, kind.device, "float16" if kind.dtype == "float16" else "float32", seed=0)
        self.network = task.network(bert, config, kind.dtype, kind.dropout, self.operators)

    def step(
        self, optimizer: str, rule: Rule, settings: StepSettings, scaler: LossScaler | None = None
    ) -> TrainStep:
        """Forward, backward, norm, agreement, clipping, update by a new optimizer of this name."""
        parameters = trained(self.network)
        weights = [parameter.data() for parameter in parameters.values()]
        update = Optimizer(optimizer, list(parameters), weights, rule, native=self.operators == "fused")
        communicator = LocalCommunicator()
        return TrainStep(self.task, self.network, update, scaler or LossScaler(), communicator, settings)


def pretraining_step(network: Network, accumulate: int = 1, scaler: LossScaler | None = None) -> TrainStep:
    """A step of pretraining by LAMB, with other dropout in each."""
    return network.step("lamb", Rule(), StepSettings(accumulate, CLIP_NORM, lambda step, _: step), scaler)


class Ours:
    """A network with the folder's weights: a `Learner` of bench/trainings.py."""

    def __init__(self, kind: str, folder: str, settings: Settings, dtype: str = "float32"):
        self._kind, self._folder, self._settings = kind, folder, settings
        task, self._head, self._batch = {
            PRETRAINING: (Pretraining(), "", Batch),
            WINDOWS: (QuestionAnswering(), "span_classifier", QuestionBatch),
            PAIRS: (Classification(2, ()), "label_classifier", PairBatch),
        }[kind]
        weights = self._weights(settings.seeds[0])
        kind_of = Kind(mx.cpu(), dtype, settings.dropout)
        self.built = Network(task, weights.config, weights.vocab_size, kind_of)
        self._network, self._task = self.built.network, task
        self._step: TrainStep

    def _weights(self, seed: int) -> Any:
        return open_weights(os.path.join(self._folder, model_name(self._kind, seed)), MODEL)

    def begin(self, seed: int) -> None:
        self._packed = False
        named, settings = network_parameters(self._network), self._settings
        for name, tensor in self._weights(seed).tensors.items():
            if name in named:
                named[name].set_data(mx.nd.array(tensor.read()))
        if self._head:
            weight, bias = named[f"{self._head}.weight"], named[f"{self._head}.bias"]
            weight.set_data(mx.nd.array(head_weights(seed, *weight.shape)))
            bias.set_data(mx.nd.zeros(bias.shape))
        optimizer = "lamb" if self._kind == PRETRAINING else "adamw"
        rule = Rule(settings.beta1, settings.beta2, settings.epsilon, weight_decay=settings.weight_decay)
        seeds = StepSettings(1, settings.clip_norm, lambda step, number: dropout_seed(seed, step, number))
        self._step = self.built.step(optimizer, rule, seeds)

    def batches(self, stored: Sequence[Arrays], padded: int | None = None) -> Sequence[Any]:
        return [self._batch(**batch) for batch in stored]

    def train(self, batches: Sequence[Any], rates: Sequence[float], exact: bool = False) -> ReadLosses:
        self._packed = False
        steps = zip(batches, rates)
        found = [self._step(number, [batch], rate).sums for number, (batch, rate) in enumerate(steps, 1)]
        mx.nd.waitall()

        def read() -> list[float]:
            counts = [self._task.count([batch]) for batch in batches]
            return [float((sums.asnumpy()[: len(of)] / of).sum()) for sums, of in zip(found, counts)]

        return read

    def _outputs(self, batch: Any) -> Any:
        """Outputs of the network without dropout, by the packed weights."""
        if not self._packed:
            self._network.pack_weights()
            self._packed = True
        ones = [mx.nd.ones((1,))] * len(self._task.denominators)
        return self._network(*self._task.inputs(batch, mx.cpu()), *ones)

    def logits(self, batches: Sequence[Any]) -> list[np.ndarray]:
        return [self._outputs(batch)[2].asnumpy() for batch in batches]

    def held_out(self, batches: Sequence[Any]) -> float:
        total = sum(float(self._outputs(batch)[1].asnumpy()[0]) for batch in batches)
        return total / sum(float(np.sum(batch.masked_weights)) for batch in batches)


def set_up_step(key: str, *words: str) -> tuple[TakeStep, dict[str, Any]]:
    """A contestant of bench/step.py, of the words of its work: the step of a run of one process on CPUs."""
    work, operators = Work.read(words), "auto" if key == OURS else "mxnet"
    if key == "products":
        return set_up_products(work)
    network = Network(Pretraining(), work.config, VOCABULARY, Kind(mx.cpu(), work.dtype, DROPOUT, operators))
    step = pretraining_step(network)
    fused, size = network.operators == "fused", work.batch
    batch = dummy_batch(*size, VOCABULARY, np.random.default_rng(0))
    count = 0

    def take_step() -> ReadResults:
        nonlocal count
        count += 1
        sums = step(count, [batch], lr=1e-4).sums
        mx.nd.waitall()

        def read() -> dict[str, float]:
            mlm, nsp = (float(value) for value in sums[:2].asnumpy())
            return {"loss": mlm / (size.sequences * size.masked) + nsp / size.sequences}

        return read

    facts = {
        "operators": "fused" if fused else "MXNet's",
        "parameters": sum(each.data().size for each in trained(network.network).values()),
        "gflop": work.gflop(top=size.needed if fused else None),
    }
    return take_step, facts


def set_up_products(work: Work) -> tuple[TakeStep, dict[str, Any]]:
    """The products of one step by weights and nothing else, on the operators that the step takes for them.

    The products inside the attention are left out: they cannot be told apart from the rest of it.
    """
    fused = load_operators() and hasattr(mx.nd, "bert_dense")
    if work.dtype != "float32" and not fused:
        raise Unsupported(f"products in {work.dtype} need the fused operators")
    chosen = products(work, work.batch.needed if fused else None)
    jobs: list[tuple[Product, Any, Any, list[Any]]] = []  # rows, the results' gradient, weights of their own
    for product in chosen:
        rows = mx.nd.random.normal(shape=(product.rows, product.inner))
        gradient = mx.nd.random.normal(shape=(product.rows, product.columns))
        shape = product.columns, product.inner
        weights = [mx.nd.random.normal(0, 0.02, shape) for _ in range(product.times)]
        for array in (rows, *weights):
            array.attach_grad()
        packed = [mx.nd.bert_pack(each, num_weights=1, dtype=work.dtype) for each in weights if fused]
        jobs.append((product, rows, gradient, list(zip(weights, packed)) if fused else weights))

    def multiply(product: Product, rows: Any, weight: Any) -> Any:
        if fused:
            return mx.nd.bert_dense(rows, *weight, num_weights=1, bias=0, dtype=work.dtype)
        options = {"num_hidden": product.columns, "no_bias": True, "flatten": False}
        return mx.nd.FullyConnected(rows, weight, None, **options)

    def compute() -> ReadResults:
        with mx.autograd.record():
            results = [[multiply(job, rows, each) for each in weights] for job, rows, _, weights in jobs]
        for (_, _, gradient, _), of_job in zip(jobs, results):
            for result in of_job:
                result.backward(gradient)
        mx.nd.waitall()
        return nothing

    peak = matrix_peak(work.dtype, ["fused" if fused else "mxnet"], mx.cpu(), PEAK_SECONDS) / 1e9
    return compute, {"gflop": gflop(chosen), "square_gflops": peak}


def set_up_finetuning(folder: str, dtype: str) -> tuple[Steps, dict[str, Any]]:
    steps = serve_finetuning(folder, OURS, lambda kind, settings: Ours(kind, folder, settings, dtype))
    return steps, {"operators": choose_operators("auto", dtype, mx.cpu())}


def set_up_pretraining(folder: str, seed: str) -> tuple[Steps, dict[str, Any]]:
    learner = Ours(PRETRAINING, folder, read_settings(folder))
    return serve_pretraining(folder, int(seed), learner), {"operators": learner.built.operators}


def set_up_latency(folder: str, dtype: str, *sizes: str) -> tuple[Steps, dict[str, Any]]:
    learner = Ours(WINDOWS, folder, read_settings(folder), dtype)
    learner.begin(seed=0)
    steps = {size: latency_step(folder, size, learner.batches, learner.logits) for size in sizes}
    return steps, {"operators": learner.built.operators}


SET_UPS: Mapping[str, Callable[..., tuple[Steps, dict[str, Any]]]] = {
    "step": set_up_step,
    "finetune": set_up_finetuning,
    "pretraining": set_up_pretraining,
    "latency": set_up_latency,
}


def set_up(what: str, *words: str) -> tuple[Steps, dict[str, Any]]:
    """Steps and facts, from the words of the command line."""
    steps, facts = SET_UPS[what](*words)
    mx.nd.waitall()
    versions = {"MXNet": mx.__version__, "GluonNLP": gluonnlp.__version__}
    return steps, {**versions, "threads": int(os.environ["OMP_NUM_THREADS"]), **facts}


if __name__ == "__main__":
    serve(lambda: set_up(*sys.argv[1:]))
