"""Worker of bench/finetune.py: fine-tuning of this project.

    python -m bench.finetune_ours FOLDER float32|bfloat16

See bench/workers.py for what it reads and writes, bench/finetune_work.py for the folder. Steps are those of
training/run.py, evaluation is that of training/evaluation.py without scores.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Sequence

import mxnet as mx
import numpy as np

from base.errors import InputError
from bench.finetune_work import MODEL, PAIRS, Arrays, Settings, head_weights, serve_learners
from bench.workers import ReadLoss, Steps, Unsupported, serve
from bert.model import build_model, initialize, network_parameters, trained
from bert.operators import choose_operators
from bert.weights.opening import open_weights
from bert.weights.tensors import Weights
from comm.local import LocalCommunicator
from data.classification.features import Batch
from data.questions.windows import QuestionBatch
from tasks.classification.task import Classification
from tasks.squad.task import QuestionAnswering
from training.optimizer.optimizer import Optimizer
from training.optimizer.scaler import StaticScaler
from training.optimizer.update_rule import Rule
from training.step import StepSettings, TrainStep, dropout_seed


class Ours:
    """A task's network above the folder's BERT: a `Learner` of bench/finetune_work.py."""

    def __init__(self, pairs: bool, weights: Weights, settings: Settings, dtype: str):
        device = mx.cpu()
        try:
            self.operators = choose_operators("auto", dtype, device)
        except InputError as reason:
            raise Unsupported(str(reason)) from None
        self._weights, self._settings = weights, settings
        self._task = Classification(2, ()) if pairs else QuestionAnswering()
        self._head = "label_classifier" if pairs else "span_classifier"
        self._batch: Any = Batch if pairs else QuestionBatch
        bert = build_model(weights.config, weights.vocab_size, settings.dropout, self._task.heads)
        initialize(bert, device, "float32", seed=0)
        self._network = self._task.network(bert, weights.config, dtype, settings.dropout, self.operators)
        self._step: TrainStep

    def begin(self, seed: int) -> None:
        named = network_parameters(self._network)
        for name, tensor in self._weights.tensors.items():
            if name in named:
                named[name].set_data(mx.nd.array(tensor.read()))
        weight, bias = named[f"{self._head}.weight"], named[f"{self._head}.bias"]
        weight.set_data(mx.nd.array(head_weights(seed, *weight.shape)))
        bias.set_data(mx.nd.zeros(bias.shape))
        parameters, settings = trained(self._network), self._settings
        optimizer = Optimizer(
            "adamw",
            list(parameters),
            [parameter.data() for parameter in parameters.values()],
            Rule(epsilon=settings.epsilon, weight_decay=settings.weight_decay),
            native=self.operators == "fused",
        )
        self._step = TrainStep(
            self._task,
            self._network,
            optimizer,
            StaticScaler(),
            LocalCommunicator(),
            StepSettings(1, settings.clip_norm, lambda step, number: dropout_seed(seed, step, number)),
        )

    def batches(self, stored: Sequence[Arrays], padded: int | None = None) -> Sequence[Any]:
        return [self._batch(**batch) for batch in stored]

    def train(self, batches: Sequence[Any], rates: Sequence[float], exact: bool = False) -> ReadLoss:
        for number, (batch, rate) in enumerate(zip(batches, rates), start=1):
            sums = self._step(number, [batch], rate).sums
        mx.nd.waitall()
        return lambda: float(sums[0].asscalar()) / len(batches[-1].examples)

    def logits(self, batches: Sequence[Any]) -> list[np.ndarray]:
        self._network.pack_weights()
        ones = [mx.nd.ones((1,))] * len(self._task.denominators)
        return [self._network(*self._task.inputs(batch, mx.cpu()), *ones)[2].asnumpy() for batch in batches]


def set_up(folder: str, dtype: str) -> tuple[Steps, dict[str, Any]]:
    weights = open_weights(os.path.join(folder, MODEL), "model")
    operators = []

    def make(kind: str, settings: Settings) -> Ours:
        learner = Ours(kind == PAIRS, weights, settings, dtype)
        operators.append(learner.operators)
        return learner

    steps = serve_learners(folder, "ours", make, pads=False)
    return steps, {"MXNet": mx.__version__, "operators": operators[0]}


def main() -> None:
    folder, dtype = sys.argv[1:]
    serve(lambda: set_up(folder, dtype))


if __name__ == "__main__":
    main()
