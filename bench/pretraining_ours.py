"""Worker of bench/pretraining.py: pretraining of this project.

    python -m bench.pretraining_ours FOLDER SEED

See bench/workers.py for what it reads and writes, bench/pretraining_work.py for the folder. The step is that
of training/run.py, float32 on the operators that a run would choose.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Sequence

import mxnet as mx
import numpy as np

from bench.finetune_work import Arrays
from bench.pretraining_work import Settings, model_name, read_settings, serve_chunks
from bench.workers import Steps, serve
from bert.model import build_model, initialize, trainable
from bert.operators import choose_operators
from bert.weights.opening import open_weights
from bert.weights.tensors import Weights
from comm.local import LocalCommunicator
from data.pretraining.batches import Batch
from tasks.pretraining.task import Pretraining
from training.optimizer.optimizer import Optimizer
from training.optimizer.scaler import StaticScaler
from training.optimizer.update_rule import Rule
from training.step import StepSettings, TrainStep

TASK = Pretraining()


class Ours:
    """BERT with both heads from given weights: a `Learner` of bench/pretraining_work.py."""

    def __init__(self, weights: Weights, settings: Settings):
        device = mx.cpu()
        self.operators = choose_operators("auto", "float32", device)
        bert = build_model(weights.config, weights.vocab_size, dropout=0.0)
        initialize(bert, device, "float32", seed=0)
        named = bert._collect_params_with_prefix()
        for name, tensor in weights.tensors.items():
            named[name].set_data(mx.nd.array(tensor.read()))
        self._network = TASK.network(bert, weights.config, "float32", 0.0, self.operators)
        parameters = trainable(bert)
        optimizer = Optimizer(
            "lamb",
            list(parameters),
            [parameter.data() for parameter in parameters.values()],
            Rule(settings.beta1, settings.beta2, settings.epsilon, weight_decay=settings.weight_decay),
            native=self.operators == "fused",
        )
        settings_of_step = StepSettings(1, settings.clip_norm, lambda step, number: step)
        communicator = LocalCommunicator()
        self._step = TrainStep(TASK, self._network, optimizer, StaticScaler(), communicator, settings_of_step)

    def prepare(self, batches: Sequence[Arrays]) -> Sequence[Batch]:
        return [Batch(**batch) for batch in batches]

    def train(self, batches: Sequence[Batch], rates: Sequence[float]) -> Sequence[Any]:
        found = [
            (self._step(number, [batch], rate).sums, TASK.count([batch]))
            for number, (batch, rate) in enumerate(zip(batches, rates), start=1)
        ]
        mx.nd.waitall()
        return found

    def read(self, losses: Sequence[Any]) -> list[float]:
        return [float((sums.asnumpy()[:2] / counts).sum()) for sums, counts in losses]

    def evaluate(self, batches: Sequence[Batch]) -> float:
        self._network.pack_weights()
        ones = [mx.nd.ones((1,))] * len(TASK.denominators)
        total = masked = 0.0
        for batch in batches:
            sums = self._network(*TASK.inputs(batch, mx.cpu()), *ones)[1].asnumpy()
            total, masked = total + float(sums[0]), masked + float(np.sum(batch.masked_weights))
        return total / masked


def set_up(folder: str, seed: int) -> tuple[Steps, dict[str, Any]]:
    weights = open_weights(os.path.join(folder, model_name(seed)), "model")
    learner = Ours(weights, read_settings(folder))
    facts = {
        "MXNet": mx.__version__,
        "operators": learner.operators,
        "threads": int(os.environ["OMP_NUM_THREADS"]),
    }
    return serve_chunks(folder, "ours", seed, learner), facts


def main() -> None:
    folder, seed = sys.argv[1:]
    serve(lambda: set_up(folder, int(seed)))


if __name__ == "__main__":
    main()
