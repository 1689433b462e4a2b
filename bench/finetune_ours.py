"""Worker of bench/finetune.py: fine-tuning of this project.

    python -m bench.finetune_ours FOLDER float32|bfloat16

See bench/serve.py for what it reads and writes, bench/finetune_work.py for the folder. Steps are those of
training/run.py, evaluation is that of training/evaluation.py without scores.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from functools import partial
from typing import Any, Sequence

import mxnet as mx
import numpy as np

from base.errors import InputError
from bench.finetune_work import (
    CASES,
    EVALUATION,
    LOSS_STEPS,
    LOSSES,
    MODEL,
    PAIRS,
    Settings,
    head_weights,
    logits_name,
    read_batches,
    read_settings,
    training_name,
    write_logits,
    write_losses,
)
from bench.serve import ReadLoss, TakeStep, Unsupported, serve
from bert.model import build_model, initialize, network_parameters, trained
from bert.operators import choose_operators
from bert.weights.opening import open_weights
from bert.weights.tensors import Weights
from comm.local import LocalCommunicator
from data.classification.features import Batch
from data.questions.windows import QuestionBatch
from tasks.base import Task
from tasks.classification.task import Classification
from tasks.squad.task import QuestionAnswering
from training.optimizer.optimizer import Optimizer
from training.optimizer.scaler import StaticScaler
from training.optimizer.update_rule import Rule
from training.step import StepSettings, TrainStep, dropout_seed


class Learner:
    """A task's network above the folder's BERT."""

    def __init__(self, task: Task, head: str, weights: Weights, settings: Settings, dtype: str):
        device = mx.cpu()
        try:
            self.operators = choose_operators("auto", dtype, device, weights.config)
        except InputError as reason:
            raise Unsupported(str(reason)) from None
        self._task, self._head, self._weights, self._settings = task, head, weights, settings
        bert = build_model(weights.config, weights.vocab_size, settings.dropout, task.heads)
        initialize(bert, device, "float32", seed=0)
        self._network = task.network(bert, weights.config, dtype, settings.dropout, self.operators)
        self._step: TrainStep

    def begin(self, seed: int) -> None:
        """Takes the weights as they are in the folder, a new head and a new optimizer."""
        named = network_parameters(self._network)
        for name, tensor in self._weights.tensors.items():
            if name in named:
                named[name].set_data(mx.nd.array(tensor.read()))
        weight, bias = named[f"{self._head}.weight"], named[f"{self._head}.bias"]
        weight.set_data(mx.nd.array(head_weights(seed, *weight.shape)))
        bias.set_data(mx.nd.zeros(bias.shape))
        parameters = trained(self._network)
        settings = self._settings
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

    def train(self, batches: Sequence[Any], lr: float | None = None) -> mx.nd.NDArray:
        """A step for each batch, at `lr` or the schedule's rates; the last step's sums."""
        for number, batch in enumerate(batches, start=1):
            rate = self._settings.rate(number) if lr is None else lr
            sums = self._step(number, [batch], rate).sums
        return sums

    def outputs(self, batches: Sequence[Any]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Numbers and outputs of the examples, batch by batch."""
        self._network.pack_weights()
        ones = [mx.nd.ones((1,))] * len(self._task.denominators)
        found = []
        for batch in batches:
            _, _, logits = self._network(*self._task.inputs(batch, mx.cpu()), *ones)
            found.append((batch.examples, logits.asnumpy()))
        return found


def set_up(folder: str, dtype: str) -> tuple[dict[str, TakeStep], dict[str, Any]]:
    """The trainings for the scores, and the cases, by name."""
    settings = read_settings(folder)
    weights = open_weights(os.path.join(folder, MODEL), "model")
    answers = Learner(QuestionAnswering(), "span_classifier", weights, settings, dtype)
    labels = Learner(Classification(2, ()), "label_classifier", weights, settings, dtype)
    for learner in (answers, labels):
        learner.begin(seed=0)

    def train(seed: int) -> ReadLoss:
        answers.begin(seed)
        batches = [QuestionBatch(**batch) for batch in read_batches(folder, training_name(seed))]
        sums = answers.train(batches)
        mx.nd.waitall()

        def evaluate() -> float:
            evaluation = [QuestionBatch(**batch) for batch in read_batches(folder, EVALUATION)]
            write_logits(folder, logits_name("ours", seed), answers.outputs(evaluation))
            return float(sums[0].asscalar()) / len(batches[-1].examples)

        return evaluate

    def take_first_steps() -> ReadLoss:
        learner = Learner(
            QuestionAnswering(), "span_classifier", weights, replace(settings, dropout=0.0), dtype
        )
        learner.begin(settings.seeds[0])
        losses = []
        stored = read_batches(folder, training_name(settings.seeds[0]))[:LOSS_STEPS]
        for number, batch in enumerate(stored, start=1):
            sums = learner.train([QuestionBatch(**batch)], settings.rate(number))
            losses.append(float(sums[0].asscalar()) / len(batch["examples"]))
        write_losses(folder, "ours", losses)
        return lambda: losses[-1]

    steps: dict[str, TakeStep] = {training_name(seed): partial(train, seed) for seed in settings.seeds}
    steps[LOSSES] = take_first_steps
    for name, case in CASES.items():
        kind, learner = (Batch, labels) if name == PAIRS else (QuestionBatch, answers)
        steps[name] = _step(learner, [kind(**batch) for batch in read_batches(folder, name)], case.trains)
    return steps, {"MXNet": mx.__version__, "operators": answers.operators}


def _step(learner: Learner, batches: Sequence[Any], trains: bool) -> TakeStep:
    def take_step() -> ReadLoss:
        if not trains:
            learner.outputs(batches)
            return lambda: None
        sums = learner.train(batches, lr=1e-6)
        mx.nd.waitall()
        return lambda: float(sums[0].asscalar()) / len(batches[-1].examples)

    return take_step


def main() -> None:
    folder, dtype = sys.argv[1:]
    serve(lambda: set_up(folder, dtype))


if __name__ == "__main__":
    main()
